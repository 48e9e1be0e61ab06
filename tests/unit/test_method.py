"""The worked example of docs/method.md gives what the table of docs/example prints."""

from __future__ import annotations

import re

import pytest

from bracket import work_out
from make_example import EXAMPLE, METHOD, fill, make_bracket
from rankbench.record import Layout
from rankbench.results.elements.text import show_estimate
from rankbench.results.numbers.result_set import read
from rankbench.results.numbers.statistics import Estimate

pytestmark = pytest.mark.unit

TEXT = METHOD.read_text().partition("<!-- bracket -->")[2].partition("<!-- /br")[0]


def test_the_page_shows_the_published_example():
    """`python tests/make_example.py --readme` writes it."""
    page = METHOD.read_text()
    assert fill(page, make_bracket(), "bracket") == page


def test_the_formulas_give_the_printed_brackets_from_the_page_alone():
    names = re.findall(r"^- ([A-Z]): `(.*)`$", TEXT, re.M)
    lines = re.findall(r"^\| r(\d+) \| (.*) \|$", TEXT, re.M)
    launches = {
        name: {
            int(number): float(rate)
            for number, cells in lines
            if (rate := cells.split(" | ")[place].strip())
        }
        for place, (_, name) in enumerate(names)
    }
    (count,) = re.findall(r"the table has (\d+) brackets", TEXT)
    base, *others = launches
    rows = {one.id: one for one in read(Layout(EXAMPLE)).rows}
    for name in others:
        found = work_out(launches, name, base, int(count))
        printed = show_estimate(Estimate(found.ratio, found.low, found.high))
        speedup = rows[name].numbers["speedup"]
        verdict = f" {speedup.verdict}" if speedup.verdict else ""
        assert f"{printed}{verdict}" == str(show_estimate(speedup)), name
