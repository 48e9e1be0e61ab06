"""The inspection of the machine, and its cache."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from factories import make_probe
from rankbench.launch.site import machine as probe
from rankbench.launch.site.machine import probe_machine

pytestmark = pytest.mark.unit


class Looks:
    """Stands in for the process that imports torch."""

    def __init__(self) -> None:
        self.count = 0
        self.answer = subprocess.CompletedProcess([], 0, json.dumps(make_probe()), "")

    def __call__(self, argv: list[str], **_options: Any) -> Any:
        assert argv[-1] == "rankbench.rank.facts.host"
        self.count += 1
        return self.answer


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(subprocess, "run", looks)
    monkeypatch.setattr(probe, "find_programs", lambda _: make_probe()["programs"])
    return looks


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "var" / "probe.json"


def test_another_machine_is_looked_at_again(looks, cache, monkeypatch):
    first = probe_machine(cache=cache)
    assert first == probe_machine(cache=cache) == make_probe()
    assert looks.count == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    probe_machine(cache=cache)
    assert looks.count == 2
    monkeypatch.setattr(probe.sys, "executable", "/another/python")
    probe_machine(cache=cache)
    assert looks.count == 3
    # Each of these calls replaced the previous answer in the cache.
    probe_machine(cache=cache)
    assert looks.count == 3


@pytest.mark.parametrize(
    ("package", "file"),
    [("torch", "version.py"), ("horovod", "__init__.py"), ("torchao", "__init__.py")],
)
def test_another_build_of_a_package_is_looked_at_again(
    package, file, looks, cache, tmp_path, monkeypatch
):
    path = tmp_path / package / file
    path.parent.mkdir()
    path.write_text("1")
    spec = type("Spec", (), {"origin": str(path.with_name("__init__.py"))})
    specs = {package: spec}
    monkeypatch.setattr(probe.importlib.util, "find_spec", specs.get)
    probe_machine(cache=cache)
    os.utime(path, (1, 1))
    probe_machine(cache=cache)
    assert looks.count == 2


def test_a_dry_run_uses_what_is_there_and_writes_nothing(looks, cache):
    assert probe_machine(write=False, cache=cache) == make_probe()
    assert not cache.parent.exists()
    probe_machine(cache=cache)
    before = cache.stat().st_mtime_ns
    probe_machine(write=False, cache=cache)
    assert looks.count == 2
    assert cache.stat().st_mtime_ns == before


def test_an_answer_that_is_damaged_or_cannot_be_kept_is_given(looks, cache):
    cache.parent.mkdir()
    cache.write_text('{"fingerpr')
    assert probe_machine(cache=cache) == make_probe()
    assert json.loads(cache.read_text())["facts"] == make_probe()
    assert probe_machine(cache=cache / "below" / "probe.json") == make_probe()


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (
            "Traceback\nModuleNotFoundError: No module named 'torch'\n",
            "No module named",
        ),
        ("", "nothing"),
    ],
)
def test_torch_that_does_not_work(looks, cache, stderr, said):
    looks.answer = subprocess.CompletedProcess([], 1, "", stderr)
    with pytest.raises(ValueError, match=f"torch does not work in .*: .*{said}"):
        probe_machine(cache=cache)
    assert not cache.exists()


def test_the_real_look(cache):
    found = probe_machine(cache=cache)
    assert found.keys() == make_probe().keys()
    assert 1 <= found["cores"] <= len(os.sched_getaffinity(0))
    assert "gloo" in found["backends"]


def test_programs_are_those_beside_this_python_or_on_the_path(tmp_path, monkeypatch):
    here, there = tmp_path / "venv/bin", tmp_path / "bin"
    for folder, name in ((here, "horovodrun"), (there, "mpirun")):
        folder.mkdir(parents=True)
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(probe.sys, "executable", str(here / "python"))
    monkeypatch.setenv("PATH", str(there))
    found = probe.find_programs(["mpirun", "deepspeed", "horovodrun"])
    assert [name for name, present in found.items() if present] == [
        "mpirun",
        "horovodrun",
    ]
