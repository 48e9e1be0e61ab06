"""Anonymised bundles: names of people and machines are replaced, and nothing else."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from factories import read_pairs
from rankbench.record import Layout
from rankbench.results.bundle.disguise import Disguise
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import write_bundle
from unit.synthetic import (
    edited,
    plan_cell,
    write_example,
    write_plan,
    write_profile,
)

pytestmark = pytest.mark.unit

HOME = "/" + "home/jdoe"  # no path of a machine stands in the repository
NAMES = {
    "path": {"/root", HOME},
    "host": {"n7", "login-2"},
    "user": {"jdoe"},
    "account": {"phys042"},
    "gpu": {"GPU-5c0ffee5-0001"},
    "partition": {"smith-lab", "far"},
    "value": {"hf_abcdefgh"},
}
JOBS = {"job": {"64", "4711042"}}
CELL = "ddp.gloo.1x2.convnet.digits"


@pytest.fixture
def disguise() -> Disguise:
    return Disguise(NAMES | JOBS, {CELL})


@pytest.mark.parametrize(("text", "hidden"), read_pairs("disguise.txt"))
def test_names_in_texts(disguise, text, hidden):
    text = text.replace("HOME", HOME).replace("CELL", CELL)
    assert disguise.in_text(text) == hidden.replace("CELL", CELL)


def test_the_same_name_has_the_same_placeholder(disguise):
    value = {"hosts": [{"host": "login-2"}, {"host": "n7.example.org"}], "job_id": "64"}
    hidden = disguise.in_value(value)
    assert hidden == {"hosts": [{"host": "host1"}, {"host": "host2"}], "job_id": "job1"}
    assert disguise.in_text("n7 waits for login-2") == "host2 waits for host1"
    # As bytes are printed, a new line is two letters.
    assert disguise.in_text(f"b'no\\n{HOME}/x'") == "b'no\\n/path1/x'"


def test_a_host_may_have_any_name():
    """A host may be called like a strategy: the data of the tables must not change."""
    kinds = ("account", "job", "gpu", "path", "partition", "value")
    names: dict[str, set[str]] = {kind: set() for kind in kinds}
    names |= {"host": {"ddp"}, "user": {"gloo"}}
    record = {"cell": {"strategy": "ddp", "backend": "gloo"}, "cell_id": CELL}
    record |= {"status": "ok", "launch": 3}
    named = {"hosts": [{"host": "ddp"}], "reason": "ddp is down"}
    hidden = Disguise(names, {CELL}).in_value(record | named)
    told = {"hosts": [{"host": "host1"}], "reason": "host1 is down"}
    assert hidden == record | told


# --- a whole bundle -----------------------------------------------------------------

# `node1` is of tests/unit/synthetic.py.
REAL = (
    *("jdoe", "bigiron17", "node1", "scratch-project", "8150042", "phys042"),
    *("GPU-5c0ffee5-0001", "10.11.12.13", "fd00:aa::17", "hf_abcdefgh"),
    *("smith-lab", "lab-module"),
)


LOG = f"""\
[bigiron17] jdoe: NET/Socket eth0:10.11.12.13<0> {HOME}/.netrc
peer fd00:aa::17, login with hf_abcdefgh in partition smith-lab
ranks 0 and 1 used the same GPU (GPU-5c0ffee5-0001)
slurmstepd: *** STEP 8150042.0 ON bigiron17 CANCELLED ***
"""


def write_results(root: Path) -> Layout:
    """Results with names of people and machines in every possible place."""
    layout = write_example(root)
    with edited(layout.plan) as plan:
        plan["site"] = {"account": "phys042", "partition": "smith-lab"}
        plan["site"]["data_dir"] = "/scratch-project/jdoe/data"
        plan["experiment"]["description"] = "of jdoe, on bigiron17"
    write_profile(layout, plan["cells"][1])
    launcher = {
        "name": "srun",
        "argv": [f"{HOME}/.venv/bin/python", "--host=bigiron17:29500"],
        "env": {
            **{"HOME": f"{HOME}", "USER": "jdoe", "PATH": f"{HOME}/bin:/bin"},
            **{"HF_TOKEN": "hf_abcdefgh", "MODULES": "lab-module"},
            **{"OMP_PLACES": "cores", "LEVEL": "3"},
        },
        "hosts": ["bigiron17"],
    }
    owner = {"host": "bigiron17.example.org", "job_id": "8150042", "boot": "b0"}
    trace = {"name": "/scratch-project/x", "host": "bigiron17", "ts": 8150042.5}
    for path in sorted(layout.records.rglob("record.json")):
        with edited(path) as record:
            record |= {"launcher": launcher, "job_id": "8150042"}
            for rank in record.get("ranks", []):
                rank["gpus"] = [{"uuid": "GPU-5c0ffee5-0001", "pci": "00:1a:00"}]
            if record["status"] == "crashed":
                record["reason"] = f"bigiron17: {HOME}/train.py failed in job 8150042"
        (path.parent / "claim.json").write_text(json.dumps(owner))
        (path.parent / "rank0.log").write_text(LOG)
        if path.parent.parent.name == "profile":
            with gzip.open(path.parent / "trace0.json.gz", "wt") as file:
                json.dump(trace, file)
    return layout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("disguise")
    layout = write_results(place / "jdoe" / "bigiron17")
    write_bundle(layout, place / "open", anonymise=False)
    write_bundle(layout, place / "hidden", anonymise=True)
    return place


def read_all(bundle: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(p for p in bundle.rglob("*") if p.is_file()):
        data = path.read_bytes()
        name = path.relative_to(bundle).as_posix()
        found[name] = gzip.decompress(data) if name.endswith(".gz") else data
    return found


def test_no_real_name_is_left_anywhere(made):
    hidden, open_ = read_all(made / "hidden"), read_all(made / "open")
    assert hidden.keys() == open_.keys()
    for name in REAL:
        assert any(name.encode() in data for data in open_.values())
        left = [file for file, data in hidden.items() if name.encode() in data]
        # A time in a trace is a number, not a job id.
        traces = [f for f in left if name == "8150042" and f.endswith("trace0.json.gz")]
        assert left == traces
        assert not [file for file in hidden if name in file]
    assert verify_bundle(made / "hidden").findings == []


def test_tables_are_the_same_but_for_names(made):
    hidden, open_ = read_all(made / "hidden"), read_all(made / "open")
    changed = {
        name
        for name in hidden
        if name.startswith("plots/") or "/" not in name
        if hidden[name] != open_[name]
    }
    # A reason names a host, a file and a job; the answer quotes it.
    shown = {"answer.json", "answer.md", "report.html"}
    shown |= {f"table.{suffix}" for suffix in ("csv", "html", "md", "tex")}
    described = {"about.json", "SHA256SUMS", "plan.json", "ro-crate-metadata.json"}
    assert changed == shown | described
    assert re.search(rb"host\d+: /path\d+ failed in job job1", hidden["table.csv"])


def test_numbers_of_records_are_the_same(made):
    for path in sorted((made / "open").rglob("record.json")):
        name = path.relative_to(made / "open")
        before = json.loads(path.read_text())
        after = json.loads((made / "hidden" / name).read_text())
        assert before.keys() == after.keys()
        for key in ("cell", "cell_hash", "phases", "samples", "accuracy", "started"):
            assert before.get(key) == after.get(key)
        windows = [[r["window_s"] for r in x.get("ranks", ())] for x in (before, after)]
        assert windows[0] == windows[1]


def test_ids_that_name_hosts_cannot_be_hidden(tmp_path):
    cell = plan_cell("single", hosts="n7", suffix=".hosts=n7")
    layout = write_plan(tmp_path, [cell])
    with pytest.raises(ValueError, match="names hosts, and ids stay"):
        Disguise.of(layout, json.loads(layout.plan.read_text()))
