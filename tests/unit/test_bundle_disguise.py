"""Anonymised bundles: names of people and machines are replaced, and nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rankbench.record import Layout
from rankbench.results.bundle import verify_bundle, write_bundle
from rankbench.results.bundle.disguise import Disguise
from unit.synthetic import (
    edited,
    make_cell,
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


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("rank 1 on n7 ended", "rank 1 on host1 ended"),
        ("n7.cluster.example.org:29500", "host1:29500"),
        ("on n7.", "on host1."),
        # A part of a word is not a host name, and neither is a longer number.
        ("an7 n71 n7_x n7-x 1.n7", "an7 n71 n7_x n7-x 1.host1"),
        ("jdoe@login-2", "user1@host1"),
        (f"{HOME}/bench/run.py", "/path1"),
        ("a=/data/x:/data/y b=/data/x", "a=/path1:/path2 b=/path1"),
        (f'File "{HOME}/x.py", line 3', 'File "/path1", line 3'),
        ("file:///scratch/jdoe/rdzv", "file:///path1"),
        ("-I/opt/x/include -L/opt/x/lib", "-I/path1 -L/path2"),
        (f"b'failed\\n{HOME}/x'", "b'failed\\n/path1/x'"),
        (
            "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
            "/path1/lib/python3.11/site-packages/torch/nn/modules/module.py",
        ),
        (
            f"{HOME}/R/records/{CELL}/1/2/work/x",
            f"/path1/records/{CELL}/1/2/work/x",
        ),
        # The path behind an unknown cell may contain anything, so it is hidden.
        (f"{HOME}/records/secret/1", "/path1"),
        ("https://pytorch.org/docs/stable", "https://pytorch.org/docs/stable"),
        ("3244 samples/s, 1/6 ok, either/or", "3244 samples/s, 1/6 ok, either/or"),
        ("from 10.0.17.3 port 22", "from address1 port 22"),
        ("tcp://127.0.0.1:29500, torch 2.13.0", "tcp://127.0.0.1:29500, torch 2.13.0"),
        ("StepId=64.0 of 64 steps", "StepId=job1.0 of 64 steps"),
        ("slurm-4711042.out", "slurm-job1.out"),
        ("4711042: 1.4711042 s", "job1: 1.4711042 s"),
        ("account phys042", "account account1"),
        ("bound to fe80::1234:5678:9abc%eth0 ok", "bound to address1%eth0 ok"),
        ("[2001:db8:0:1:2:3:4:5]:29500 ::1", "[address1]:29500 ::1"),
        ("at 12:30:45 c10::Error std::bad", "at 12:30:45 c10::Error std::bad"),
        ("HWaddr 02:42:ac:11:00:02 up", "HWaddr mac1 up"),
        ("gid fe80:0000:0000:0000:0002:c903:00a0:1234", "gid address1"),
        ("GUID 0x0002c90300a01234 0002:c903:00a0:1234", "GUID guid1 guid2"),
        ("mail smith@physics.example.org now", "mail mail1 now"),
        ("on GPU-01234567-89ab-cdef-0123-456789abcdef", "on gpu1"),
        ("on MIG-01234567-89ab-cdef-0123-456789abcdef.", "on gpu1."),
        (
            "srun -p smith-lab --partition=far",
            "srun -p partition2 --partition=partition1",
        ),
        (
            "SLURM_JOB_PARTITION=smith-lab, far away",
            "SLURM_JOB_PARTITION=partition2, far away",
        ),
        ("partition: [smith-lab, far]", "partition: [partition2, partition1]"),
        ("API_KEY=abc NCCL_IB_PKEY=7", "API_KEY=value1 NCCL_IB_PKEY=7"),
        ("--token hf_abcdefgh", "--token value1"),
    ],
)
def test_names_in_texts(disguise, text, hidden):
    assert disguise.in_text(text) == hidden


def test_the_same_name_has_the_same_placeholder(disguise):
    value = {"hosts": [{"host": "login-2"}, {"host": "n7.example.org"}], "job_id": "64"}
    hidden = disguise.in_value(value)
    assert hidden == {"hosts": [{"host": "host1"}, {"host": "host2"}], "job_id": "job1"}
    assert disguise.in_text("n7 waits for login-2") == "host2 waits for host1"


def test_a_host_may_have_any_name():
    """A host may be called like a strategy: the data of the tables must not change."""
    kinds = ("account", "job", "gpu", "path", "partition", "value")
    names: dict[str, set[str]] = {kind: set() for kind in kinds}
    names |= {"host": {"ddp"}, "user": {"gloo"}}
    record = {
        "cell": {"strategy": "ddp", "backend": "gloo"},
        "cell_id": CELL,
        "status": "ok",
        "hosts": [{"host": "ddp"}],
        "reason": "ddp is down",
        "launch": 3,
    }
    hidden = Disguise(names, {CELL}).in_value(record)
    assert hidden == record | {"hosts": [{"host": "host1"}], "reason": "host1 is down"}


# --- a whole bundle -----------------------------------------------------------------

REAL = {
    "jdoe": "user",
    "bigiron17": "host",
    "node1": "host",  # of tests/unit/synthetic.py
    "scratch-project": "folder",
    "8150042": "job",
    "phys042": "account",
    "GPU-5c0ffee5-0001": "gpu",
    "10.11.12.13": "address",
    "fd00:aa::17": "address",
    "hf_abcdefgh": "value",
    "smith-lab": "partition",
    "lab-module": "value",
}


def write_results(root: Path) -> Layout:
    """Results with names of people and machines in every possible place."""
    layout = write_example(root)
    with edited(layout.plan) as plan:
        plan["site"] = {
            "account": "phys042",
            "partition": "smith-lab",
            "data_dir": "/scratch-project/jdoe/data",
        }
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
    for path in sorted(layout.records.rglob("record.json")):
        with edited(path) as record:
            record |= {"launcher": launcher, "job_id": "8150042"}
            for rank in record.get("ranks", []):
                rank["gpus"] = [{"uuid": "GPU-5c0ffee5-0001", "pci": "00:1a:00"}]
            if record["status"] == "crashed":
                record["reason"] = f"bigiron17: {HOME}/train.py failed in job 8150042"
        owner = {"host": "bigiron17.example.org", "job_id": "8150042", "boot": "b0"}
        (path.parent / "claim.json").write_text(json.dumps(owner))
        (path.parent / "rank0.log").write_text(
            f"[bigiron17] jdoe: NET/Socket eth0:10.11.12.13<0> {HOME}/.netrc\n"
            "peer fd00:aa::17, login with hf_abcdefgh in partition smith-lab\n"
            "ranks 0 and 1 used the same GPU (GPU-5c0ffee5-0001)\n"
            "slurmstepd: *** STEP 8150042.0 ON bigiron17 CANCELLED ***\n"
        )
        if path.parent.parent.name == "profile":
            trace = {"name": "/scratch-project/x", "host": "bigiron17", "ts": 8150042.5}
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


@pytest.mark.parametrize("name", REAL)
def test_no_real_name_is_left_anywhere(made, name):
    hidden, open_ = read_all(made / "hidden"), read_all(made / "open")
    assert hidden.keys() == open_.keys()
    assert any(name.encode() in data for data in open_.values())
    left = [file for file, data in hidden.items() if name.encode() in data]
    if name == "8150042":  # A time in a trace is a number, not a job id.
        left = [file for file in left if not file.endswith("trace0.json.gz")]
    assert not left
    assert not [file for file in hidden if name in file]


def test_tables_are_the_same_but_for_names(made):
    hidden, open_ = read_all(made / "hidden"), read_all(made / "open")
    changed = [
        name
        for name in hidden
        if name.startswith("plots/") or "/" not in name
        if hidden[name] != open_[name]
    ]
    # A reason names a host, a file and a job; the answer quotes it.
    answers = ["answer.json", "answer.md", "report.html"]
    tables = ["table.csv", "table.html", "table.md", "table.tex"]
    described = ["about.json", "SHA256SUMS", "plan.json", "ro-crate-metadata.json"]
    assert changed == sorted([*answers, *described, *tables])
    text = hidden["table.csv"].decode()
    told = "host1: /path1 failed in job job1"
    assert (
        text.replace(told, "X")
        == open_["table.csv"]
        .decode()
        .replace(f"bigiron17: {HOME}/train.py failed in job 8150042", "X")
        or "failed in job job1" in text
    )


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


def test_a_bundle_without_names_verifies(made):
    assert verify_bundle(made / "hidden").findings == []


def test_ids_that_name_hosts_cannot_be_hidden(tmp_path):
    cell = plan_cell(make_cell("single", hosts="n7"), suffix=".hosts=n7")
    layout = write_plan(tmp_path, [cell])
    with pytest.raises(ValueError, match="names hosts, and ids stay"):
        Disguise.of(layout, json.loads(layout.plan.read_text()))
