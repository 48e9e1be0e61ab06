"""Every link of the documentation has a target, and every page can be reached."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.unit

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_PATH = re.compile(r"`((?:src|tests|workflow|containers|benchmarks|studies)/[\w./-]+)`")

# Files that a page tells the reader to write.
EXAMPLES = {
    "src/rankbench/rank/models/perceptron.py",
    "src/rankbench/rank/data/stripes.py",
    "src/rankbench/rank/strategies/late_average.py",
    "src/rankbench/results/sections/slow_steps.py",
}


def find_pages() -> list[Path]:
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    pages = [ROOT / name for name in names if name.endswith(".md")]
    # The tables of the published example link to files of that example.
    return [page for page in pages if ROOT / "docs/example" not in page.parents]


def slugs_of(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    found: list[str] = []
    for line in _FENCE.sub("", text).splitlines():
        if heading := re.match(r"#{1,6} (.+)", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            count = sum(one == slug for one in found)
            found.append(slug)
            if count:
                found.append(f"{slug}-{count}")
    return set(found)


def find_broken(page: Path) -> Iterator[str]:
    """The links of a page that have no target."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text()))
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue  # another host
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{page.name}: {link}"
        elif anchor and anchor not in slugs_of(target.read_text()):
            yield f"{page.name}: {link}: no such heading"


def find_linked(page: Path) -> set[Path]:
    text = _FENCE.sub("", page.read_text())
    links = (link.partition("#")[0] for link in _LINK.findall(text))
    return {(page.parent / link).resolve() for link in links if link}


def test_links_lead_somewhere():
    pages = find_pages()
    assert len(pages) > 20
    assert [broken for page in pages for broken in find_broken(page)] == []


def test_every_page_is_in_the_index():
    index = ROOT / "docs/README.md"
    pages = {page for page in find_pages() if ROOT / "docs" in page.parents}
    assert pages - find_linked(index) - {index} == set()
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        linked = {path.name for path in find_linked(page)}
        assert {"architecture.md", "glossary.md"} <= linked, page


def test_the_method_keeps_all_twelve_rules_in_files_that_are_there():
    text = (ROOT / "docs/method.md").read_text()
    rules = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert rules == [str(number) for number in range(1, 13)]
    names = re.findall(r"`results/([\w/]+\.py)`", text)
    assert names
    for name in names:
        assert (ROOT / "src/rankbench/results" / name).exists(), name


def test_paths_in_the_documents_exist():
    missing = [
        f"{page.name}: {path}"
        for page in find_pages()
        if page.name != "CHANGELOG.md"
        for path in _PATH.findall(page.read_text())
        if path not in EXAMPLES and "NAME" not in path and not (ROOT / path).exists()
    ]
    assert missing == []
