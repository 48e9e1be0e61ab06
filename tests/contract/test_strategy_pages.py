"""Every strategy has a page that names what it can be asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankbench.matrix.catalog import load_catalog

pytestmark = pytest.mark.contract

PAGES = Path(__file__).resolve().parents[2] / "docs" / "strategies"
STRATEGIES = load_catalog().strategies


@pytest.mark.parametrize("name", STRATEGIES)
def test_its_page_names_its_options_and_backends(name: str) -> None:
    facts = STRATEGIES[name]
    text = (PAGES / f"{name}.md").read_text()
    assert re.match(rf"# {name}\b", text)
    assert set(facts.options) <= set(re.findall(r"`(\w+)`", text))
    own = {facts.needs["own_backend"]} - {"none"}
    assert {*facts.needs["backends"], *own} <= set(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_default_of_its_own_options_is_the_documented_one(name: str) -> None:
    """A row of the table of options: name, default, meaning."""
    options = STRATEGIES[name].options
    text = (PAGES / f"{name}.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    documented = {option: default.strip(" `") for option, default in rows}
    for option in options.keys() & documented.keys():
        default = options[option]["default"]
        spelled = str(default).lower() if isinstance(default, bool) else str(default)
        assert documented[option] == spelled, option


def test_the_index_links_each_page() -> None:
    index = (PAGES / "README.md").read_text()
    linked = set(re.findall(r"\]\((\w+)\.md\)", index))
    assert linked >= set(STRATEGIES)
