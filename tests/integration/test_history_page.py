"""The page of `rankbench history` in a real browser, from disk and offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser import LOCAL, Browser
from rankbench.results.history.lines import follow
from rankbench.results.history.page import write_page
from rankbench.results.history.store import add_run, read_store
from unit.test_history import A, B, make_run, scatter

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def page(open_tmp: Path) -> Path:
    """Two cells, of which one is slower with another torch."""
    levels = scatter(20)
    levels[15:] *= 0.9
    for night, level in enumerate(levels):
        torch = "2.14.0" if night >= 15 else "2.13.0"
        add_run(open_tmp / "store", make_run(night, {A: level, B: 500.0}, torch=torch))
    store = read_store(open_tmp / "store")
    write_page(open_tmp / "history.html", store, follow(store.runs))
    return open_tmp / "history.html"


def columns(browser: Browser, source: str, name: str) -> list[float]:
    """A column of what the figure draws."""
    found: list[float] = browser.run(
        """
        const drawn = (window.Bokeh?.documents ?? [])
          .map((doc) => doc.get_model_by_name(arguments[0]))
          .find((model) => model);
        return drawn ? [...drawn.get_column(arguments[1])] : [];
        """,
        source,
        name,
    )
    return found


def open_page(browser: Browser, page: Path, *, width: int = 1280) -> None:
    browser.open(page, width=width)
    browser.wait_for(lambda: columns(browser, "points", "y"), "the plot")


def test_the_changed_cell_is_plotted_first_and_another_when_chosen(browser, page):
    open_page(browser, page)
    assert len(columns(browser, "points", "y")) == 20
    assert len(columns(browser, "changes", "x")) == 1
    assert len(columns(browser, "environment", "x")) == 1
    assert "torch: 2.13.0 -> 2.14.0" in browser.find("#line-environment").text
    browser.find(f"#chosen select option[value='{[A, B].index(B)}']").click()
    browser.wait_for(lambda: not columns(browser, "changes", "x"), "the other cell")
    assert max(columns(browser, "points", "y")) < 510
    assert f"cell={B}" in browser.run("return location.hash")
    browser.find("#changes a").click()
    browser.wait_for(lambda: columns(browser, "changes", "x"), "the first cell")
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(LOCAL)] == []


def test_nothing_is_wider_than_a_narrow_window(browser, page):
    open_page(browser, page, width=400)
    wide = browser.run("return document.documentElement.scrollWidth")
    assert wide <= 400
