"""The site in a real browser: from disk, with keyboard, at two widths, offline."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from browser import LOCAL, Browser
from rankbench.results.bundle.write import publish
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_example,
    write_launches,
    write_many,
    write_plan,
    write_profile,
)

pytestmark = pytest.mark.integration

SINGLE, DDP = "single.none.1x1.convnet.digits", "ddp.gloo.1x2.convnet.digits"
HIT = "window.hit = 1"
HOSTILE = f"<img src=x onerror='{HIT}'> </script><script>{HIT}</script>&lt;b&gt;"


@pytest.fixture(scope="module")
def page(open_tmp: Path) -> Path:
    """The site of rows of every status; one of them has a profile and a log."""
    layout = write_example(open_tmp / "example")
    write_profile(layout, plan_cell(make_cell("ddp", "1x2")), ranks=2)
    (layout.launch(DDP, 1, 1) / "rank0.log").write_text("a line of rank 0\n")
    return publish(layout).page


@pytest.fixture(scope="module")
def many(open_tmp: Path) -> Path:
    return publish(write_many(open_tmp / "many", 60)).page


def cells_of(browser: Browser) -> list[str]:
    """Ids of the rows of the table, which shows short names."""
    ids: list[str] = browser.run(
        """
        const table = document.querySelector("#section-table table");
        return [...table.querySelectorAll("tbody .id")].map((one) => one.title);
        """
    )
    return ids


def throughputs(browser: Browser) -> list[str]:
    """As they stand in the table from top to bottom."""
    table = "#section-table .scroll:first-of-type"
    headings = browser.texts(f"{table} thead th")
    place = next(n for n, one in enumerate(headings, 1) if "throughput" in one)
    fields = browser.texts(f"{table} tbody td:nth-child({place})")
    return [field.split("\n")[0] for field in fields]


def unfold(browser: Browser) -> None:
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))")


@pytest.mark.parametrize("place", ["", f"#cell-{DDP}"])
def test_opens_from_disk_without_network_or_complaints(browser, page, place):
    browser.open(page, place)
    unfold(browser)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(LOCAL)] == []


def test_the_page_begins_with_the_answer_and_the_table(browser, page):
    browser.open(page)
    assert browser.find(".opening .notes").text.startswith("WHAT")
    assert SINGLE in cells_of(browser)
    text = browser.find("#section-table").text
    for part in (
        "Cells without numbers",
        "All cells: convnet.digits",
        "nccl carries CUDA tensors only",
        "rank 1 ended by SIGSEGV",
    ):
        assert part in text


def test_headings_sort_by_keyboard_and_the_largest_comes_first(browser, page):
    browser.open(page)
    before = cells_of(browser)
    browser.tab_to(lambda one: "throughput" in (one.get_attribute("aria-label") or ""))
    for descending in (True, False):
        browser.press(Keys.ENTER)
        numbers = [float(value) for value in throughputs(browser)]
        assert len(numbers) == 5
        assert numbers == sorted(numbers, reverse=descending)
    browser.press(Keys.ENTER)
    assert cells_of(browser) == before


def test_many_rows_are_searched(browser, many):
    browser.open(many)
    assert len(cells_of(browser)) > 40
    search = browser.find('#section-table input[type="search"]')
    search.send_keys("fsdp 2x4")
    browser.wait_for(lambda: 0 < len(cells_of(browser)) < 10, "few rows")
    assert all(cell.startswith("fsdp.") for cell in cells_of(browser))


def test_a_cell_leads_to_what_is_known_of_it(browser, page):
    browser.open(page)
    part = f'details[id="cell-{DDP}"]'
    assert browser.find(part).get_attribute("open") is None
    link = browser.tab_to(lambda one: one.get_attribute("title") == DDP)
    outline = "return getComputedStyle(arguments[0]).outlineStyle"
    assert browser.run(outline, link) == "solid"
    browser.press(Keys.ENTER)
    browser.wait_for(lambda: browser.find(part).get_attribute("open"), "the cell")
    assert f"rankbench rerun {DDP}" in browser.find(part).text
    log = browser.find(f"{part} a")
    assert Path(log.get_attribute("href").removeprefix("file://")).read_text() == (
        "a line of rank 0\n"
    )


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(browser, page, width):
    browser.open(page, width=width)
    unfold(browser)
    size = "return [document.documentElement.scrollWidth, innerWidth]"
    wide, window = browser.run(size)
    assert window == width
    assert wide <= window


def test_on_a_telephone_the_table_is_near(browser, page):
    browser.open(page, width=400)
    top = browser.run(
        "return document.getElementById('section-table').getBoundingClientRect().top"
    )
    assert top < 1.5 * 900


def test_what_a_record_says_is_text_and_nothing_else(browser, open_tmp):
    planned = plan_cell(make_cell("ddp", "1x2"))
    bad = {
        **plan_cell(make_cell("ddp"), infeasible=HOSTILE),
        "id": HOSTILE.replace("/", ""),
    }
    layout = write_plan(open_tmp / "hostile", [planned, bad])
    host = {"host": HOSTILE, "cpu": HOSTILE, "cores": 2, "memory_gib": 1, "gpus": []}
    write_launches(
        layout,
        planned,
        hosts=[host],
        software={"torch": HOSTILE, "python": HOSTILE},
        launcher={"argv": [HOSTILE], "env": {HOSTILE: HOSTILE}},
    )
    browser.open(publish(layout).page)
    unfold(browser)
    assert HOSTILE in browser.find("body").text
    assert browser.run("return window.hit") is None
    assert browser.complaints() == []
