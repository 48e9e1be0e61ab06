"""The test of an image finds everything that differs from its promises."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "containers" / "check_image.py"
# The packages and programs that the Python of this test has; none of them starts ranks.
PROMISE: dict[str, Any] = {
    "flavour": "cpu",
    "python": ".".join(map(str, sys.version_info[:2])),
    "torch": "2.13.0",
    "backends": [],
    "rpc": False,
    "horovod": [],
    "packages": ["numpy"],
    "programs": ["python3"],
}

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_image", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def proofs(
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict,
    linkage: str = "\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n",
    **promise: Any,
) -> list[str]:
    """The result for an image with these facts, whose commands all succeed."""
    known = {
        "packages": {"numpy": "2"},
        "cuda": None,
        "gpus": 0,
        "nccl": "",
        "backends": ["gloo"],
        "unmet": [],
        **{key: PROMISE[key] for key in ("flavour", "python", "torch")},
    }
    answer = json.dumps(known | facts)

    def run(command: list[str], settings: dict[str, str] | None = None) -> str:
        if "--check-build" in command:
            return "Tensor Operations:\n    [ ] CCL\n    [X] NCCL\n    [X] Gloo\n"
        if command[0] == "ldd":
            return linkage
        return f"a library's own words\n{answer}\n"

    monkeypatch.setattr(check, "run", run)
    return list(check.proofs(PROMISE | promise))


def test_what_is_promised_is_proved(check, monkeypatch):
    promise = {"backends": ["gloo"], "rpc": True, "horovod": ["gloo"]}
    # Others open this library at run time.
    promise["libraries"] = ["libibverbs.so.1"]
    shown = proofs(check, monkeypatch, {}, **promise)
    assert "gloo: init_process_group, all-reduce of 2 ranks" in shown
    assert "rpc: a call between 2 ranks" in shown
    assert "horovod over gloo: all-reduce of 2 ranks" in shown
    assert "library libibverbs.so.1 loads" in shown


@pytest.mark.parametrize(
    ("facts", "promise", "message"),
    [
        ({"torch": "2.12.1"}, {}, "torch: promised 2.13.0, found 2.12.1"),
        ({"flavour": "cuda"}, {}, "flavour: promised cpu, found cuda"),
        ({"unmet": ["a requires b, found none"]}, {}, "not met: a requires b"),
        ({"python": "3.9"}, {}, r"python: promised 3\.\d+, found 3.9"),
        (
            {},
            {"backends": ["gloo", "mpi"]},
            "torch.distributed: promised gloo, mpi, found gloo",
        ),
        ({}, {"horovod": ["mpi"]}, "horovod: promised mpi, found nccl, gloo"),
        ({}, {"programs": ["no-such-run"]}, "program no-such-run: .* not on PATH"),
    ],
)
def test_a_promise_that_is_not_kept_is_named(
    check, monkeypatch, facts, promise, message
):
    with pytest.raises(check.Broken, match=message):
        proofs(check, monkeypatch, facts, **promise)


@pytest.mark.parametrize(
    ("gpus", "alone", "by_horovod"),
    [
        (0, "loads; no GPU here to reduce on", "loads; no GPU here to reduce on"),
        (1, "init_process_group, all-reduce of 1 ranks", "all-reduce of 1 ranks"),
        (8, "init_process_group, all-reduce of 2 ranks", "all-reduce of 2 ranks"),
    ],
)
def test_nccl_reduces_on_what_gpus_there_are(
    check, monkeypatch, gpus, alone, by_horovod
):
    facts = {"backends": ["nccl"], "nccl": "2.29.7", "cuda": "13.0", "gpus": gpus}
    shown = proofs(check, monkeypatch, facts, backends=["nccl"], horovod=["nccl"])
    assert "CUDA 13.0, NCCL 2.29.7" in shown
    assert f"nccl: {alone}" in shown
    assert f"horovod over nccl: {by_horovod}" in shown


def test_a_library_that_does_not_load_is_named(check):
    check.run(check.part("load", "libc.so.6"))
    with pytest.raises(check.Broken, match=r"libnone\.so\.1: cannot open"):
        check.run(check.part("load", "libnone.so.1"))


def test_only_the_driver_may_be_missing(check, monkeypatch):
    assert proofs(check, monkeypatch, {}, "\tlibcuda.so.1 => not found\n")
    with pytest.raises(check.Broken, match=r"linked with libmpi\.so\.12, which is not"):
        proofs(check, monkeypatch, {}, "\tlibmpi.so.12 => not found\n")


def test_a_command_that_does_not_end_is_ended(check, monkeypatch):
    monkeypatch.setattr(check, "TIME_LIMIT", 0.5)
    begin = time.monotonic()
    with pytest.raises(check.Broken, match="no end after"):
        # Its child keeps the pipe open, as ranks do.
        check.run(["sh", "-c", "sleep 600 & wait"])
    assert time.monotonic() - begin < 300
    with pytest.raises(check.Broken, match=r"(?s)exit status 3: .*first.*second"):
        check.run(["sh", "-c", "echo first; echo second >&2; exit 3"])


def test_an_incomplete_promise_is_named(check, monkeypatch, tmp_path, capsys):
    file = tmp_path / "image.json"
    file.write_text(json.dumps({"torch": "2.13.0"}))
    monkeypatch.setattr(sys, "argv", ["check_image.py", "--image-json", str(file)])
    assert check.main() == 1
    assert "image.json has no backends, flavour" in capsys.readouterr().err
