"""Every strategy has a section in docs/strategies.md with its options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankbench.matrix.catalog import load_catalog

pytestmark = pytest.mark.contract

PAGE = (Path(__file__).resolve().parents[2] / "docs/strategies.md").read_text()
SECTIONS = dict(
    re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
)
STRATEGIES = load_catalog().strategies


@pytest.mark.parametrize("name", STRATEGIES)
def test_its_section_names_its_options_with_their_defaults_and_its_backends(name):
    facts, text = STRATEGIES[name], SECTIONS[name]
    named = set(re.findall(r"`(\w+)`", text))
    if re.search(r"options\s+of\s+`ddp`", text):
        named |= set(STRATEGIES["ddp"]["options"])
    assert set(facts["options"]) <= named
    own = {facts["needs"]["own_backend"]} - {"none"}
    assert {*facts["needs"]["backends"], *own} <= set(re.findall(r"\w+", text.lower()))
    # A row of the table of options: name, default, meaning.
    for option, shown in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE):
        if option in facts["options"]:
            default = facts["options"][option]["default"]
            spelled = (
                f"{default}".lower() if isinstance(default, bool) else f"{default}"
            )
            assert shown.strip(" `") == spelled, option


def test_the_index_links_each_section():
    linked = set(re.findall(r"\]\(#(\w+)\)", PAGE))
    assert linked >= set(STRATEGIES)
