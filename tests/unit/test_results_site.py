"""The site: its page, the files beside it, and its errors."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from base64 import b64decode, b64encode
from pathlib import Path

import itables.options
import pytest

from pages import Words
from rankbench.record import PLOTS, Layout
from rankbench.results.bundle.write import (
    LONGEST_LOG,
    Publication,
    write_site,
)
from unit.synthetic import (
    plan_cell,
    write_example,
    write_many,
    write_plan,
    write_tables,
)

pytestmark = pytest.mark.unit

DDP = "ddp.gloo.1x2.convnet.digits"
HOSTILE = '</script><script>alert(1)</script><!-- & "q" \u2028'


def write(layout: Layout) -> Publication:
    """The site of results as they lie, with something in the place of a bundle."""
    bundle = layout.root / "results.tar.zst"
    bundle.write_bytes(b"bundle")
    return write_site(layout, bundle, layout.root / "site")


def read_text(layout: Layout) -> str:
    return (layout.root / "site/index.html").read_text()


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Layout:
    """A site that tests leave as it is."""
    layout = write_example(tmp_path_factory.mktemp("site"))
    (layout.launch(DDP, 1, 1) / "rank0.log").write_text("a line\n")
    (layout.launch(DDP, 1, 1) / "rank1.log").touch()
    write(layout)
    return layout


@pytest.fixture
def published(shown: Layout, tmp_path: Path) -> Layout:
    """A copy, to change at will."""
    return Layout(shutil.copytree(shown.root, tmp_path / "copy"))


def test_the_site_is_the_page_of_the_table_with_a_script_and_downloads(published):
    write_tables(published)
    table = published.table("html").read_text()
    assert "<script" not in table
    site = Words(read_text(published)).text
    for line in Words(table).text.splitlines():
        # The site has no files of sections beside it.
        assert line.strip() in site or "All columns" in line or ".csv" in line


def test_every_cell_has_a_part_that_says_what_it_is(shown):
    page = Words(read_text(shown))
    text = page.text
    plan = json.loads(shown.plan.read_text())
    assert {f"cell-{cell['id']}" for cell in plan["cells"]} <= set(page.ids)
    # Links lead to parts that exist.
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    reasons = ("rank 1 ended by SIGSEGV", "nccl carries CUDA tensors only")
    command = "spawn 'a cell'"
    for part in (f"rankbench rerun {DDP}", command, *reasons, "oversubscribe"):
        assert part in text
    # What all cells share stands once, above the table.
    assert "learning_rate" not in text.partition("Each cell")[2]
    assert str(shown.root) not in read_text(shown)


def test_logs_lie_beside_and_long_ones_are_cut(tmp_path):
    layout = write_example(tmp_path)
    launch = layout.launch(DDP, 1, 1)
    (launch / "rank0.log").write_text("begin" + "x" * LONGEST_LOG + "end")
    (launch / "rank1.log").touch()
    layout.log(DDP).parent.mkdir()
    layout.log(DDP).write_text("a run\n")
    site = write(layout)
    logs = [link for link in Words(read_text(layout)).links if link.endswith(".log")]
    assert logs == [f"work/logs/{DDP}.log", f"records/{DDP}/1/1/rank0.log"]
    texts = [(tmp_path / "site" / log).read_text() for log in logs]
    assert texts[0] == "a run\n"
    assert texts[1].startswith("[the first 8 bytes are left out]\n")
    assert texts[1].endswith("xend")
    assert site.bytes == site.page.stat().st_size


def test_the_command_publishes_what_the_bundle_holds_and_has_it_beside(tmp_path, cli):
    layout = write_example(tmp_path)
    told = json.loads(cli("publish", tmp_path, "--json", "--anonymise").out)
    assert Path(told["page"]) == layout.root / "site/index.html"
    assert told["cells"] == 10
    folder = tmp_path / "site"
    tables = {f"table.{suffix}" for suffix in ("csv", "md", "tex")}
    names = tables | {f"plots/{name}.svg" for name in PLOTS} | {"results.tar.zst"}
    assert names <= set(Words(read_text(layout)).links)
    assert all((folder / name).stat().st_size for name in names)
    bundle = (tmp_path / "results.tar.zst").read_bytes()
    assert (folder / "results.tar.zst").read_bytes() == bundle
    assert told["bundle_bytes"] == len(bundle)
    assert "Example CPU" in read_text(layout)
    for path in folder.rglob("*.*"):
        if path.suffix in (".html", ".csv", ".md", ".log"):
            assert "node1" not in path.read_text()
    (tmp_path / "none").mkdir()
    said = cli("publish", tmp_path / "none", status=2).err
    assert "no experiment was run here" in said


def test_a_new_site_replaces_the_old_one_whole(published):
    folder = published.root / "site"
    (folder / "left.txt").touch()
    before = read_text(published)
    shutil.rmtree(published.launch(DDP, 1, 1))
    write(published)
    assert not (folder / "left.txt").exists()
    assert read_text(published) != before
    assert sorted(p.name for p in published.root.glob(".*")) == []


def test_the_policy_allows_the_script_of_the_page_and_no_request(shown):
    text = read_text(shown)
    page = Words(text)
    digest = b64encode(hashlib.sha256(page.scripts[None].encode()).digest()).decode()
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}' blob:"
    assert "connect-src" not in rules
    assert not re.search(r"<(?:script|link|iframe)[^>]* (?:src|href)=", text)
    library = gzip.decompress(b64decode(page.scripts["datatables"]))
    assert library == Path(itables.options.dt_bundle).read_bytes()


def test_hostile_text_ends_no_script(tmp_path):
    layout = write_plan(tmp_path, [plan_cell("ddp", "1x2", infeasible=HOSTILE)])
    write(layout)
    page = Words(read_text(layout))
    assert set(page.scripts) == {"datatables", None}
    assert "alert(1)" in page.text


def test_damaged_record_is_named_and_the_old_site_stays(published):
    before = read_text(published)
    path = published.launch(DDP, 1, 3) / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hosts": [3]}))
    with pytest.raises(ValueError, match=r"1/3/record\.json is damaged"):
        write(published)
    assert read_text(published) == before


def test_a_cell_takes_little_room(tmp_path):
    layouts = [write_many(tmp_path / str(count), count) for count in (140, 160)]
    sizes = [write(layout).page.stat().st_size for layout in layouts]
    assert (sizes[1] - sizes[0]) / 20 < 3_000
    assert "The first 100 of " in read_text(layouts[0])
