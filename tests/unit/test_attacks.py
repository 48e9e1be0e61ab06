"""Whoever reads, verifies, replays or publishes a stranger's results is safe."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factories import make_site, read_plan_of
from pages import Words
from rankbench.cli import main
from rankbench.record import Layout
from rankbench.results.bundle.signatures import write_sums
from rankbench.results.bundle.verify import verify_bundle
from rankbench.results.bundle.write import sign_bundle, write_bundle
from rankbench.results.elements import section
from rankbench.results.numbers.result_set import read
from rankbench.results.read.archive import list_files
from rankbench.results.read.records import read_launch
from rankbench.results.render.files import write_results
from unit import attacks
from unit.attacks import ATTACKS, HONEST, PRIVATE, Attack, lacks, put
from unit.keys import make_key, needs_ssh_keygen
from unit.synthetic import (
    plan_cell,
    plan_one,
    write_launch,
    write_launches,
    write_plan,
    write_profile,
)

pytestmark = [pytest.mark.unit, pytest.mark.equipment]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60

NET = "open({!r}, 'w')\ndef build(image_size, channels, classes): ...\n"
BASES = {
    "plain": HONEST,
    "own": HONEST + "model: net.py\n",
    "env": HONEST + "env: {LD_AUDIT: x.so, OMP_PLACES: cores}\n",
}


def write_base(place: Path, text: str) -> None:
    """A small bundle that `replay` could measure, without names."""
    place.mkdir(parents=True)
    (place / "net.py").write_text(NET.format(str(place / "executed")))
    plan = read_plan_of(place, text, make_site())
    layout = Layout(place / "results")
    layout.work.mkdir(parents=True)
    layout.plan.write_bytes(plan.to_json())
    shutil.copyfile(place / "experiment.yaml", layout.experiment)
    for cell in json.loads(layout.plan.read_text())["cells"]:
        launch = write_launch(layout, cell, wanted=1)
        (launch / "rank0.log").write_text("it went well\n")
        if own := cell["cell"]["own_files"]:
            copy = layout.own(own["model"]["digest"])
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(place / "net.py", copy)
    write_bundle(layout, place / "bundle", anonymise=True)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bases")
    for name, text in BASES.items():
        write_base(place / name, text)
    keys = place / "keys"
    keys.mkdir()
    if shutil.which("ssh-keygen"):
        for name in ("jdoe", "roe"):
            make_key(keys / name)
            shutil.copy(keys / f"{name}.pub", keys / f"{name}.keys")
        public = (keys / "jdoe.pub").read_text()
        (keys / "allowed_signers").write_text(f"jdoe@example.org {public}")
        shutil.copytree(place / "plain", place / "signed")
        sign_bundle(place / "signed/bundle", keys / "jdoe")
    return place


@pytest.fixture(autouse=True)
def _timer() -> Iterator[None]:
    """What waits for a pipe fails."""
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


@pytest.fixture
def attack(
    bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Callable[..., tuple[int, str]]:
    """Copy a bundle, change it, and run the command of its victim."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(
        change: attacks.Change, command: str, base: str = "plain", sealed: bool = True
    ) -> tuple[int, str]:
        if base == "signed":
            needs_ssh_keygen()
        place = tmp_path / "at"
        bundle = shutil.copytree(bases / base / "bundle", place / "bundle")
        (place / "private").mkdir()
        (place / "private/id").write_text(PRIVATE)
        (tmp_path / "keys").symlink_to(bases / "keys")
        path = change(bundle)
        if sealed and not list_files(bundle)[1]:
            write_sums(bundle)
        if command.startswith("replay"):
            shutil.copytree(ROOT / "local_profile", here / "local_profile")
        before, there = listing(place), listing(here)
        words = command.format(
            **{"b": path if isinstance(path, Path) else bundle, "keys": bases / "keys"},
            good=bases / "plain/bundle",
        ).split()
        capsys.readouterr()
        status = main(words)
        said = "".join(capsys.readouterr())
        # Nothing was executed, followed, or written elsewhere.
        assert listing(here) == there
        assert not list(bases.glob("*/executed"))
        after = listing(place)
        assert after["private"] == before["private"]
        if words[0] in ("verify", "replay", "compare", "status"):
            assert after == before
        for path in (*here.rglob("*"), *(bundle / "site").glob("**/*.log")):
            assert not path.is_file() or PRIVATE.encode() not in path.read_bytes()
        assert all(char.isprintable() or char == "\n" for char in said), said
        return status, said

    return run


def listing(place: Path) -> dict[str, Any]:
    """Everything below a folder, links not followed."""
    return {
        path.relative_to(place).as_posix(): (
            path.open("rb").read(2**20)
            if path.is_file() and not path.is_symlink()
            else None
        )
        for path in sorted(place.rglob("*"))
    } | {"private": sorted(p.name for p in place.glob("private/*"))}


@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: row.name)
def test_an_attack_is_refused_or_said(row: Attack, attack):
    status, said = attack(row.change, row.command, row.base, row.sealed)
    assert row.said in said, said
    assert status == row.status, said


@pytest.mark.parametrize("base", [*BASES, "signed"])
def test_the_bundles_are_good_before(base, attack):
    status, said = attack(attacks.same, attacks.STRICT, base, sealed=False)
    first, *lines = said.splitlines()
    assert (status, first.rpartition(": ")[2]) == (0, "its numbers were derived again")
    assert lines[-1].startswith("not checked: plots/*.png (")


@pytest.mark.parametrize("seed", range(40))
def test_no_change_at_random_is_verified(seed, attack):
    refuse_random(seed, attack)


@pytest.mark.further
def test_none_of_a_thousand_changes_is_verified(attack, tmp_path):
    for seed in range(1000, 2000):
        refuse_random(seed, attack)
        for name in ("at", "keys"):
            place = tmp_path / name
            place.unlink() if place.is_symlink() else shutil.rmtree(place)


def refuse_random(seed: int, attack: Callable[..., tuple[int, str]]) -> None:
    """A signed bundle with a random change is not verified, and the file is named."""
    signal.alarm(SECONDS)
    what: list[str] = []
    dice = random.Random(seed)
    change = lambda root: what.extend(attacks.random_change(root, dice))  # noqa: E731
    status, said = attack(change, attacks.SIGNED, "signed", sealed=False)
    kind, *names = what
    assert status in (1, 2), (what, said)
    sealed = kind in ("sealed byte", "version")
    assert any(
        n in said for n in ("SHA256SUMS", "jdoe") if sealed or "sig" in names[0]
    ) or any(name in said for name in names), (what, said)


# --- texts that are shown, and not obeyed ---------------------------------------------

TEXTS = (
    *(attacks.FORMULA, "+1+1", "-1+1", "@SUM(A1)", "\t=1+1", attacks.SCRIPT),
    *(attacks.TERMINAL, "](javascript:alert(1))", 'a | b\nc, "d"'),
    "$\\frac{1}{0}$ \\input{/etc/passwd}",
)


def write_texts(root: Path, texts: Sequence[str]) -> Layout:
    """Results with each text wherever free text may stand."""
    planned, rows = [], []
    for size, text in enumerate(texts, 1):
        for name, topology in (("single", "1x1"), ("ddp", "1x2"), ("ddp", "1x4")):
            own = {"batch_size": size, "suffix": f".batch_size={size}"}
            planned.append(plan_cell(name, topology, **own))
        planned[-1]["infeasible"] = text
        row = {"label": text, "cell": planned[-3]["id"], "step_ms": 3, "note": text}
        rows.append(row)
    study = {"source": {"title": "".join(texts), "base": "row"}, "rows": rows}
    layout = write_plan(root, planned, study=study)
    for text, single, failed in zip(texts, planned[::3], planned[1::3], strict=True):
        host = {"host": text, "cpu": text, "cores": 2, "memory_gib": 1, "gpus": []}
        software = {"torch": text, "python": text, "cuda": None, "nccl": None}
        write_launches(layout, single, hosts=[host], software=software)
        write_launches(layout, failed, count=2, status="crashed", reason=text)
        label = text if text.isprintable() else "another"
        span = {"kind": "phase", "name": label, "start_ms": 0.0, "ms": 1.0}
        operator = {"name": label, "calls": 1, "cpu_ms": 1.0, "device_ms": 0.0}
        profile = {"rank": 0, "steps": 1, "operators": [operator], "spans": [span]}
        write_profile(layout, single, profile=[profile])
    return layout


def test_texts_are_shown_and_not_obeyed(tmp_path, cli, monkeypatch):
    # One panel is enough, because all look alike.
    monkeypatch.setattr(section, "MOST_PANELS", 1)
    layout = write_texts(tmp_path / "results", TEXTS)
    assert all(c.isprintable() or c == "\n" for c in cli("table", layout.root).out)
    for path in layout.root.rglob("*.csv"):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        # No column has negative numbers, so these may get a quote as well.
        assert not [c for c in cells if c.startswith(("=", "+", "-", "@", "\t", "\r"))]
    for page in (layout.table("html"), layout.report):
        assert "script" not in Words(page.read_text()).tags
    for path in (*layout.root.glob("*.md"), *layout.root.glob("plots/*.svg")):
        shown = path.read_text()
        assert "<script" not in shown
        assert "](javascript" not in shown or path.suffix == ".svg"
    tex = layout.table("tex").read_text().splitlines()
    assert not [line for line in tex if "\\input{" in line.partition("%")[0]]
    write_bundle(layout, tmp_path / "results.tar.zst", anonymise=True)
    assert verify_bundle(tmp_path / "results.tar.zst").findings == []


# --- any other change -----------------------------------------------------------------

VALUES: list[Any] = [None, -1, 0, 10**30, 1e300, "x", "", [], {}, [None], True]

# Fields that not every record has.
TOLD = {
    "model": {"parameters": 5, "parameter_bytes": 20, "flops_per_sample": 7},
    "shape": plan_cell("ddp", "1x2")["shape"],
    "gate": {
        **{"status": "ok", "dtype": "float64", "lossy": False, "tolerance": 1e-6},
        **{"weights_error": 1e-9, "loss_error": 1e-9},
    },
    "transport": {"seen": [{"libraries": {"nccl": {"gpudirect_rdma": True}}}]},
    "devices": [{"utilisation_mean": 0.5}],
    "collectives": [
        {
            **{"operation": "all_reduce", "bytes": size, "times_weights": 1.0},
            "seconds": [1e-3, 2e-3],
        }
        for size in (1024, 4096)
    ],
    "hosts": [
        {
            **{"host": "n1", "cpu": "a CPU", "cores": 2, "memory_gib": 8.0},
            **{"os": "an OS", "kernel": "6.1", "gpu_driver": None, "gpu_links": []},
            "gpus": [{"name": "a GPU", "memory_gib": 80.0}],
            "nics": [{"name": "eth0", "model": None, "driver": "x", "gbit_s": 25}],
        }
    ],
}


def find_leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value within a value, inner ones included."""
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, one in value.items():
            yield from find_leaves(one, (*path, str(key)))


@pytest.mark.parametrize("what", ["record", "plan", "profile"])
def test_any_change_gives_a_table_or_a_clear_no(tmp_path, what):
    """One value at a time is replaced by a wrong value, or left out."""
    planned = plan_cell("ddp", "1x2")
    layout = write_plan(tmp_path / "results", [planned], launches=1)
    place = write_launch(layout, planned, wanted=1) / "record.json"
    profile = write_profile(layout, planned) / "record.json"
    path = {"record": place, "plan": layout.plan, "profile": profile}[what]
    good = json.loads(path.read_text()) | (TOLD if what == "record" else {})
    changes = [
        (".".join(leaf), value)
        for leaf in find_leaves(good)
        for value in (*VALUES, KeyError)
        if not any("." in part for part in leaf)
    ]
    refusals = 0
    for leaf, value in random.Random(6).sample(changes, 150):
        path.write_text(json.dumps(good))
        change = lacks if value is KeyError else partial(put, value=value)
        change(path.name, leaf)(path.parent)
        try:
            write_results(read(layout, strict=True), plots=False)
        except Exception as error:
            clear = isinstance(error, ValueError) and str(layout.root) in str(error)
            if not clear:
                raise AssertionError(f"{leaf} = {value!r}: {error!r}") from error
            refusals += 1
    assert 20 < refusals < 150


def test_a_flipped_bit_in_the_header_of_an_array_names_the_file(tmp_path):
    """With a wrong checksum, as after a fault of a disk, and with a correct one."""
    path = write_launch(*plan_one(tmp_path, "ddp", "1x2")) / "steps.npz"
    launch = read_launch(path.parent)
    sound, whole = launch.read_steps(), path.read_bytes()
    with zipfile.ZipFile(path) as members:
        member = members.read("rank0/seconds.npy")
    start, header = whole.index(member), len(member) - 8 * sound.timed[0].size
    words = set()
    for bit in range(8 * header):
        flipped = bytearray(whole)
        flipped[start + bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"steps\.npz is damaged: "):
            launch.read_steps()
        path.write_bytes(whole)
        attacks.member(bytes(flipped[start : start + len(member)]))(path.parent)
        try:
            timed = launch.read_steps().timed
        except ValueError as error:
            words.add(str(error))
        else:
            # Some bits have no meaning, such as one in the white space at the end.
            assert np.array_equal(timed, sound.timed)
    assert all(said.startswith(f"{path} is damaged: ") for said in words)
    # One damage makes numpy fail while it parses the header as Python.
    assert any("EOF in multi-line statement" in said for said in words)


def test_promises_are_tests():
    named = re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 9
    assert set(named) <= there
