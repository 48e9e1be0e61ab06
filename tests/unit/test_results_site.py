"""The site: its page, the files beside it, and its errors."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from base64 import b64decode, b64encode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pages import Words
from rankbench.cli import main
from rankbench.record import PLOTS, Layout
from rankbench.results.bundle.publish import (
    LONGEST_LOG,
    Publication,
    publish,
    write_site,
)
from rankbench.results.render.html.facts import Pool, number
from unit.synthetic import (
    make_cell,
    plan_cell,
    write_example,
    write_launch,
    write_launches,
    write_many,
    write_plan,
    write_profile,
)

pytestmark = pytest.mark.unit

DDP = "ddp.gloo.1x2.convnet.digits"
HOSTILE = '</script><script>alert(1)</script><!-- & "q" \u2028'


class Scripts(HTMLParser):
    """Scripts of a page by their id, as a browser parts them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: dict[str | None, str] = {}
        self.policy = ""
        self._id: str | None = None
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self._inside = tag == "script"
        self._id = attributes.get("id")
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[self._id] = self.scripts.get(self._id, "") + data


def write(layout: Layout) -> Publication:
    """The site of results as they lie, with something in the place of a bundle."""
    bundle = layout.root / "results.tar.zst"
    bundle.write_bytes(b"bundle")
    return write_site(layout, bundle, layout.root / "site")


def read_page(layout: Layout) -> Scripts:
    return Scripts((layout.root / "site/index.html").read_text())


def unpack(block: str) -> str:
    return gzip.decompress(b64decode(block)).decode()


def read_data(layout: Layout) -> Any:
    return json.loads(unpack(read_page(layout).scripts["data"]))


@pytest.fixture
def published(tmp_path: Path) -> Layout:
    layout = write_example(tmp_path)
    (layout.launch(DDP, 1, 1) / "rank0.log").write_text("a line\n")
    (layout.launch(DDP, 1, 1) / "rank1.log").touch()
    write(layout)
    return layout


def find_cell(layout: Layout, cell_id: str = DDP) -> Any:
    return next(cell for cell in read_data(layout)["cells"] if cell["id"] == cell_id)


def test_page_holds_every_cell_with_its_numbers(published):
    data = read_data(published)
    plan = json.loads(published.plan.read_text())
    assert [cell["id"] for cell in data["cells"]] == [c["id"] for c in plan["cells"]]
    cell = find_cell(published)
    assert cell["status"] == "ok"
    assert cell["numbers"]["throughput"] == [1507, 1478, 1537]
    assert cell["bases"][0] == "single.none.1x1.convnet.digits = 803.9/s"
    assert cell["rerun"] == f"rankbench rerun {DDP}"


def test_common_fields_stand_once(published):
    data = read_data(published)
    plan = {c["id"]: c["cell"] for c in json.loads(published.plan.read_text())["cells"]}
    assert data["common"]["model"] == "convnet"
    for cell in data["cells"]:
        assert not data["common"].keys() & cell["own"].keys()
        assert data["common"] | cell["own"] == plan[cell["id"]]


def test_launches_tell_where_they_ran(published):
    data = read_data(published)
    (attempt,) = find_cell(published)["attempts"]
    assert [one["launch"] for one in attempt["launches"]] == [1, 2, 3, 4, 5, 6]
    first = attempt["launches"][0]
    on = data["facts"][first["on"]]
    assert data["facts"][on["hosts"][0]]["cpu"] == "Example CPU"
    assert data["facts"][on["software"]]["torch"] == "2.13.0"
    assert first["step_ms"] > 0
    assert len({json.dumps(fact) for fact in data["facts"]}) == len(data["facts"])


def test_every_attempt_is_shown_the_latest_first(tmp_path):
    planned = plan_cell(make_cell("ddp"))
    layout = write_plan(tmp_path, [planned])
    write_launch(layout, planned, status="crashed", reason="it fell", wanted=1)
    write_launches(layout, planned, attempt=2)
    write(layout)
    latest, first = find_cell(layout, planned["id"])["attempts"]
    assert (latest["attempt"], latest["status"]) == (2, "ok")
    assert (first["status"], first["reason"]) == ("crashed", "it fell")


def test_logs_lie_beside_and_long_ones_are_cut(tmp_path):
    layout = write_example(tmp_path)
    launch = layout.launch(DDP, 1, 1)
    (launch / "rank0.log").write_text("begin" + "x" * LONGEST_LOG + "end")
    (launch / "rank1.log").touch()
    layout.log(DDP).parent.mkdir()
    layout.log(DDP).write_text("a run\n")
    site = write(layout)
    first = find_cell(layout)["attempts"][0]["launches"][0]
    assert first["logs"] == ["rank0.log"]
    text = (tmp_path / "site/records" / DDP / "1/1/rank0.log").read_text()
    assert text.startswith("[the first 8 bytes are left out]\n")
    assert text.endswith("xend")
    assert (tmp_path / "site" / find_cell(layout)["log"]).read_text() == "a run\n"
    assert site.log_bytes == len(text) + len("a run\n")
    assert site.bytes == site.page_bytes


def test_profile_has_operators_and_a_timeline(tmp_path):
    planned = plan_cell(make_cell("ddp", "1x2"))
    layout = write_plan(tmp_path, [planned])
    write_launches(layout, planned)
    write_profile(layout, planned, ranks=2)
    write(layout)
    cell = find_cell(layout, planned["id"])
    assert cell["profile"]["plot"] == f"profile-{planned['id']}"
    assert cell["profile"]["ranks"][1]["operators"][0] == ["aten::mm", 4, 15, 0.5]
    assert cell["attempts"][0]["launches"][-1]["purpose"] == "profile"


def test_site_shows_what_the_bundle_holds_and_has_it_beside(tmp_path):
    layout = write_example(tmp_path)
    site = publish(layout)
    folder = tmp_path / "site"
    told = dict(read_data(layout)["downloads"])
    tables = {f"table.{suffix}" for suffix in ("csv", "md", "tex")}
    plots = {f"plots/{name}.svg" for name in PLOTS}
    assert told.keys() == tables | plots | {"results.tar.zst"}
    for name, size in told.items():
        assert (folder / name).stat().st_size == size
    bundle = (tmp_path / "results.tar.zst").read_bytes()
    assert (folder / "results.tar.zst").read_bytes() == bundle
    assert site.bundle_bytes == len(bundle)
    assert site.bytes == site.page_bytes + sum(told.values()) - site.bundle_bytes


def test_anonymous_site_names_no_host(tmp_path):
    layout = write_example(tmp_path)
    publish(layout)
    assert "node1" in json.dumps(read_data(layout))
    publish(layout, anonymise=True)
    text = json.dumps(read_data(layout))
    assert "node1" not in text
    assert "host1" in text


def test_a_new_site_replaces_the_old_one_whole(published):
    folder = published.root / "site"
    (folder / "left.txt").touch()
    before = (folder / "index.html").read_text()
    shutil.rmtree(published.launch(DDP, 1, 1))
    write(published)
    assert not (folder / "left.txt").exists()
    assert (folder / "index.html").read_text() != before
    assert sorted(p.name for p in published.root.glob(".*")) == []


def test_the_policy_allows_the_script_of_the_page_and_no_request(published):
    page = read_page(published)
    script = page.scripts[None]
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}' blob:"
    assert "connect-src" not in rules
    text = (published.root / "site/index.html").read_text()
    assert not re.search(r"<(?:script|link|img|iframe)[^>]* (?:src|href)=", text)


def test_hostile_text_ends_no_script(tmp_path):
    planned = plan_cell(make_cell("ddp", "1x2"), infeasible=HOSTILE)
    layout = write_plan(tmp_path, [planned], name=HOSTILE)
    write(layout)
    page = read_page(layout)
    sections = {name for name in page.scripts if name and name.startswith("section-")}
    others = {"data", "figures", "datatables", "bokeh", None}
    assert set(page.scripts) == others | sections
    for name in sections:
        assert "script" not in Words(unpack(page.scripts[name])).tags
    data = read_data(layout)
    assert data["name"] == HOSTILE
    assert data["cells"][0]["reason"] == HOSTILE


@pytest.mark.parametrize(
    ("value", "short"),
    [
        (1234.56, 1235),
        (0.1 + 0.2, 0.3),
        (float("nan"), None),
        (float("inf"), None),
        (None, None),
        ("1", None),
        (True, None),
    ],
)
def test_number(value, short):
    assert number(value) == short


def test_pool_keeps_each_value_once():
    pool = Pool()
    assert [pool.add(v) for v in ({"a": 1, "b": 2}, "x", {"b": 2, "a": 1})] == [0, 1, 0]
    assert pool.values == [{"a": 1, "b": 2}, "x"]


@pytest.mark.parametrize(
    "changes",
    [{"launcher": {"argv": [3]}}, {"hosts": [3]}, {"seconds": 3}, {"started": "now"}],
)
def test_damaged_record_is_named_and_the_old_site_stays(published, changes):
    before = (published.root / "site/index.html").read_bytes()
    path = published.launch("ddp_dp.none.1x2.convnet.digits", 1, 3) / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=r"1/3/record\.json is damaged"):
        write(published)
    assert (published.root / "site/index.html").read_bytes() == before


def test_same_plan_and_records_give_the_same_data(tmp_path):
    first, second = (write_example(tmp_path / name) for name in ("first", "second"))
    for layout in (first, second):
        write(layout)
    assert read_data(first) == read_data(second)
    assert str(tmp_path) not in json.dumps(read_data(first))


def test_an_experiment_that_was_not_measured_has_a_site(tmp_path):
    layout = write_plan(tmp_path, [plan_cell(make_cell("ddp"))])
    write(layout)
    data = read_data(layout)
    assert data["cells"][0]["status"] == "not-run"
    assert data["measured"] == []


def test_a_cell_takes_little_room(tmp_path):
    layout = write_many(tmp_path, 40)
    write(layout)
    assert len(read_page(layout).scripts["data"]) / 40 < 2_000


def test_command_writes_and_tells_what(tmp_path, capsys):
    layout = write_example(tmp_path)
    assert main(["publish", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["page"]) == layout.root / "site/index.html"
    assert told["cells"] == 10
    assert told["page_bytes"] == Path(told["page"]).stat().st_size
    assert main(["publish", str(tmp_path)]) == 0
    assert "10 cells" in capsys.readouterr().out


def test_command_says_that_nothing_was_run(tmp_path, capsys):
    assert main(["publish", str(tmp_path)]) == 2
    assert "no experiment was run here" in capsys.readouterr().err
