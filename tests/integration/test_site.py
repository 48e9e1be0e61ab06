"""The site in a real browser: from disk, with keyboard, at two widths, offline."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.keys import Keys

from browser import LOCAL, Browser
from rankbench.results.bundle.publish import publish
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_example,
    write_launches,
    write_plan,
    write_profile,
)

pytestmark = pytest.mark.integration

SINGLE, DDP = "single.none.1x1.convnet.digits", "ddp.gloo.1x2.convnet.digits"
UNSUPPORTED, CRASHED = "ddp.nccl.1x2.convnet.digits", "ddp_dp.none.1x2.convnet.digits"
HIT = "window.hit = 1"
HOSTILE = f"<img src=x onerror='{HIT}'> </script><script>{HIT}</script>&lt;b&gt;"


@pytest.fixture(scope="module")
def page(open_tmp: Path) -> Path:
    """The site of rows of every status; one of them has a profile and a log."""
    layout = write_example(open_tmp / "example")
    write_profile(layout, plan_cell(make_cell("ddp", "1x2")), ranks=2)
    (layout.launch(DDP, 1, 1) / "rank0.log").write_text("a line of rank 0\n")
    return publish(layout).page


def visible_ids(browser: Browser) -> list[str]:
    """Ids of the rows of the table, which shows short names."""
    ids: list[str] = browser.run(
        """
        return [...document.querySelectorAll("#table tbody .id")]
          .filter((one) => one.checkVisibility()).map((one) => one.title);
        """
    )
    return ids


def throughputs(browser: Browser) -> list[str]:
    """As they stand in the table from top to bottom; blank for cells without one."""
    fields = browser.texts("#table tbody td:nth-child(4)")
    return [field.split("\n")[0] for field in fields]


def open_all_parts(browser: Browser) -> None:
    """Draw the plots, and unfold what is folded."""
    if browser.shown("#plots"):
        draw_plots(browser)
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")


def draw_plots(browser: Browser) -> None:
    browser.run("document.getElementById('plots').scrollIntoView()")
    browser.wait_for(lambda: plotted(browser), "the figures")


def plotted(browser: Browser, source: str = "medians") -> list[str]:
    """Ids of the cells in a figure."""
    found: list[str] = browser.run(
        """
        const drawn = (window.Bokeh?.documents ?? [])
          .map((doc) => doc.get_model_by_name(arguments[0]))
          .find((model) => model);
        return drawn ? [...new Set(drawn.get_column("cell"))] : [];
        """,
        source,
    )
    return found


def place_of(browser: Browser, cell: str) -> tuple[int, int]:
    """Where in the window the mark of a cell's median is."""
    x, y = browser.run(
        """
        const find = (name) => Bokeh.documents
          .map((doc) => doc.get_model_by_name(name)).find((model) => model);
        const { frame, canvas_view } = Bokeh.index.find_one(find("scaling"));
        const medians = find("medians");
        const at = medians.get_column("cell").indexOf(arguments[0]);
        const box = canvas_view.el.getBoundingClientRect();
        return [box.left + frame.x_scale.compute(medians.get_column("x")[at]),
                box.top + frame.y_scale.compute(medians.get_column("y")[at])];
        """,
        cell,
    )
    return round(x), round(y)


def tooltip(browser: Browser) -> str:
    """What Bokeh says of the mark under the pointer, in a shadow root of its own."""
    find = "document.querySelector('.bk-Tooltip')?.shadowRoot.textContent"
    return browser.run(f"return {find} ?? ''")


@pytest.mark.parametrize("place", ["", f"#cell={DDP}"])
def test_opens_from_disk_without_network_or_complaints(browser, page, place):
    browser.open(page, place)
    open_all_parts(browser)
    assert browser.complaints() == []
    requests = browser.requests()
    assert page.as_uri() + place in requests or page.as_uri() in requests
    assert [url for url in requests if not url.startswith(LOCAL)] == []


def test_cells_without_numbers_are_one_row_for_each_reason(browser, page):
    browser.open(page)
    ids = visible_ids(browser)
    assert len(ids) == 6
    assert ids[0] == SINGLE
    assert browser.texts("#table tbody .id")[0] == "single.none.1x1"
    assert browser.find("#count").text == "6 of 10 cells"
    text = browser.find("#cells").text
    assert "Cells without numbers" in text
    assert "All cells: convnet.digits" in text
    for reason in ("nccl carries CUDA tensors only", "rank 1 ended by SIGSEGV"):
        assert reason in text


def test_every_cell_is_a_row_with_its_status_and_reason(browser, page):
    browser.open(page, "#status=any")
    ids = visible_ids(browser)
    assert len(ids) == 10
    assert ids[0] == SINGLE
    row = browser.find('tr[data-status="crashed"]').text
    assert "ddp_dp.none.1x2" in row
    assert "rank 1 ended by SIGSEGV" in row
    assert "2/6" in row
    assert browser.find("#count").text == "10 of 10 cells"


def test_headings_sort_by_keyboard_and_blanks_stay_last(browser, page):
    browser.open(page, "#status=any")
    button = browser.tab_to(
        lambda one: "Throughput" in (one.get_attribute("aria-label") or "")
    )
    assert button.get_attribute("role") == "button"
    sorted_by = '#table th[aria-sort="{}"] [aria-label^="Throughput"]'
    for direction in ("ascending", "descending"):
        browser.press(Keys.ENTER)
        assert browser.shown(sorted_by.format(direction))
        values = throughputs(browser)
        numbers = [float(value) for value in values if value]
        assert len(numbers) == 6
        assert all(values[: len(numbers)])
        assert numbers == sorted(numbers, reverse=direction == "descending")
    browser.press(Keys.ENTER)
    assert visible_ids(browser)[0] == SINGLE


@pytest.mark.parametrize(
    ("name", "value", "cells"),
    [
        ("status", "unsupported", [UNSUPPORTED]),
        ("strategy", "single", [SINGLE]),
        ("backend", "nccl", [UNSUPPORTED]),
        ("topology", "2x2", ["ddp.gloo.2x2.convnet.digits"]),
        ("q", "SIGSEGV ddp_dp", [CRASHED]),
        ("q", "nothing has this", []),
    ],
)
def test_filters_leave_what_they_say_and_stand_in_the_address(
    browser, page, name, value, cells
):
    browser.open(page)
    browser.find(f'#filters [name="{name}"]').send_keys(value)
    browser.wait_for(lambda: visible_ids(browser) == cells, f"{name} {value}")
    count = f"{len(cells)} of 10 cells"
    assert browser.find("#count").text == count
    address = browser.driver.current_url
    assert f"{name}=" in address
    browser.driver.refresh()
    # Before the page is drawn it has no rows, but also no count.
    browser.wait_for(
        lambda: browser.find("#count").text == count, "a page that is drawn"
    )
    assert visible_ids(browser) == cells
    browser.find('#filters [type="reset"]').click()
    browser.wait_for(lambda: len(visible_ids(browser)) == 6, "all cells again")


def test_plots_show_what_the_filters_leave(browser, page):
    browser.open(page)
    draw_plots(browser)
    assert SINGLE in plotted(browser)
    assert len(plotted(browser)) == 6
    browser.find('#filters [name="strategy"]').send_keys("single")
    browser.wait_for(lambda: plotted(browser) == [SINGLE], "the only cell")
    assert plotted(browser, "bars") == [SINGLE]


def test_pointing_at_a_mark_tells_its_values_and_a_click_opens_the_cell(browser, page):
    browser.open(page)
    draw_plots(browser)
    browser.run("document.getElementById('scaling-figure').scrollIntoView()")
    pointer = ActionBuilder(browser.driver)
    pointer.pointer_action.move_to_location(*place_of(browser, DDP))
    pointer.perform()
    browser.wait_for(lambda: DDP in tooltip(browser), "the values")
    for part in ("1508 samples/s", "[1470, 1545]", "6/6"):
        assert part in tooltip(browser)
    pointer.pointer_action.click()
    pointer.perform()
    browser.wait_for(lambda: browser.shown("#cell"), "the view of the cell")
    assert browser.find("#cell-title").text == DDP


def test_a_deep_link_opens_a_cell_and_the_way_back_the_table(browser, page):
    browser.open(page, f"#cell={DDP}")
    assert browser.find("#cell-title").text == DDP
    assert not browser.shown("#overview")
    text = browser.find("#cell").text
    for part in (
        "6/6 launches",
        "Measure it again",
        f"rankbench rerun {DDP}",
        "Example CPU",
        "torch\n2.13.0",
        f"results.tar.zst below records/{DDP}/",
        "1/1/record.json",
        "Profile",
        "batch_size\n64",
    ):
        assert part in text
    log = browser.find("#cell .files a")
    assert log.text == "rank0.log"
    assert Path(log.get_attribute("href").removeprefix("file://")).read_text() == (
        "a line of rank 0\n"
    )
    picture = browser.find("#cell img")
    browser.run("arguments[0].scrollIntoView()", picture)
    browser.wait_for(
        lambda: browser.run("return arguments[0].naturalWidth", picture), "its timeline"
    )
    browser.find("#back").click()
    browser.wait_for(lambda: browser.shown("#table"), "the table")
    browser.driver.back()
    browser.wait_for(lambda: browser.shown("#cell"), "the cell again")


def test_a_cell_that_is_not_ok_tells_why(browser, page):
    browser.open(page, f"#cell={CRASHED}")
    assert "rank 1 ended by SIGSEGV" in browser.find("#cell .notice").text
    browser.open(page, "#cell=no.such.cell")
    assert "No cell no.such.cell" in browser.find("#cell").text


def test_by_keyboard_from_the_top_to_a_cell_and_back(browser, page):
    browser.open(page)
    browser.press(Keys.TAB)
    assert browser.focused().text == "Skip to the table"
    assert browser.focused().is_displayed()
    browser.tab_to(lambda one: one.get_attribute("name") == "q")
    browser.press(DDP)
    browser.wait_for(lambda: visible_ids(browser) == [DDP], "one row")
    link = browser.tab_to(lambda one: one.get_attribute("title") == DDP)
    outline = "return getComputedStyle(arguments[0]).outlineStyle"
    assert browser.run(outline, link) == "solid"
    browser.press(Keys.ENTER)
    browser.wait_for(lambda: browser.shown("#cell"), "the cell")
    assert browser.focused().get_attribute("id") == "cell-title"
    browser.tab_to(lambda one: one.text == "Copy")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("place", ["", f"#cell={DDP}", f"#cell={CRASHED}"])
def test_nothing_is_wider_than_the_window(browser, page, width, place):
    browser.open(page, place, width=width)
    open_all_parts(browser)
    size = "return [document.documentElement.scrollWidth, innerWidth]"
    wide, window = browser.run(size)
    assert window == width
    assert wide <= window


def test_everything_that_takes_input_has_a_name(browser, page):
    browser.open(page)
    draw_plots(browser)
    nameless = browser.run(
        """
        const named = (one) =>
          one.labels?.length || one.ariaLabel || one.textContent.trim();
        return [...document.querySelectorAll("input, select, button, a")]
          .filter((one) => !named(one)).map((one) => one.outerHTML);
        """
    )
    assert nameless == []


def test_what_a_record_says_is_text_and_nothing_else(browser, open_tmp):
    planned = plan_cell(make_cell("ddp", "1x2"))
    bad = {
        **plan_cell(make_cell("ddp"), infeasible=HOSTILE),
        "id": HOSTILE.replace("/", ""),
    }
    layout = write_plan(open_tmp / "hostile", [planned, bad], name=HOSTILE)
    host = {"host": HOSTILE, "cpu": HOSTILE, "cores": 2, "memory_gib": 1, "gpus": []}
    write_launches(
        layout,
        planned,
        hosts=[host],
        software={"torch": HOSTILE, "python": HOSTILE},
        launcher={"argv": [HOSTILE], "env": {HOSTILE: HOSTILE}},
    )
    page = publish(layout).page
    for place in ("", f"#cell={DDP}"):
        browser.open(page, place)
        if not place:
            draw_plots(browser)
        assert HOSTILE in browser.find("body").text
        assert browser.run("return window.hit") is None
        assert browser.complaints() == []
    assert browser.run("return document.querySelectorAll('main img').length") == 0
