"""The status, reason and cause of a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logs
from factories import make_cell, make_shape, make_spec
from logs import (
    MANUAL_KILLED,
    PORT_TAKEN,
    SPAWN_KILLED,
    SPAWN_RAISED,
    TORCHRUN_KILLED,
)
from rankbench.launch.hosts.slurm import parse_end
from rankbench.launch.launchers import find_launcher
from rankbench.launch.process.classify import Ending, Outcome, classify
from rankbench.record import CAUSES, STATUSES
from rankbench.schema import load_yaml

pytestmark = pytest.mark.unit

CASES = load_yaml(Path(__file__).parent / "cases/endings.yaml")
FINE: dict[int, dict[str, Any]] = {0: {"rank": {}}, 1: {"rank": {}}}


def failed(message: str, kind: str = "RuntimeError", oom: bool = False) -> dict:
    return {"error": {"type": kind, "message": message, "oom": oom}}


def ending(
    launcher: str = "torchrun",
    is_spread: bool = False,
    in_image: bool = False,
    **changes: Any,
) -> Ending:
    """The end of a launch of two ranks: the launcher failed, and no rank reported."""
    values = {
        "spec": make_spec(
            cell=make_cell(launcher=launcher),
            shape=make_shape(2, nodes=1 + is_spread),
            image={} if in_image else None,
        ),
        "returncode": 1,
        "stopped": None,
        "time_limit": 60.0,
        "progress": "rank 0 in training, step 3",
        "log": "",
        **changes,
    }
    return Ending(**values)


LAUNCHER_KILLED = """\
srun: error: node1: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=46.1
srun: error: node2: task 1: Exited with exit code 1
"""
PEER = failed("[gloo] Connection closed by peer [127.0.0.1]:1234")


def in_words(outcome: Outcome) -> str:
    assert outcome.status in STATUSES
    assert outcome.parting is None
    # Only the cell's fault has another status, and then no cause.
    assert (outcome.status == "cancelled") == (outcome.cause in CAUSES)
    cause = f" ({outcome.cause})" if outcome.cause else ""
    return f"{outcome.status}{cause}" + (
        f": {outcome.reason}" if outcome.reason else ""
    )


def read_case(group: str, name: str) -> tuple[dict[str, Any], str]:
    """How a launch ended, and what comes of it."""
    case = dict(CASES[group][name])
    if "real_log" in case:
        case["log"] = getattr(logs, case.pop("real_log"))
    for key in case.keys() & {"reports", "exits", "rank_logs"}:
        case[key] = {int(rank): value for rank, value in case[key].items()}
    if "reports" in case:
        case["reports"] = {rank: report(x) for rank, x in case["reports"].items()}
    if end := case.get("job_ended"):
        said = " ".join(f"{key}={value}" for key, value in end.items())
        case["job_ended"] = parse_end(said)
    return case, case.pop("outcome")


def report(text: str | None) -> dict[str, Any]:
    if text in (None, "done"):
        return {"rank": {}} if text else {}
    kind, _, message = text.removeprefix("oom ").partition(": ")
    return failed(message, kind, oom=text.startswith("oom "))


@pytest.mark.parametrize("name", CASES["endings"])
def test_classify(name):
    what, expected = read_case("endings", name)
    assert in_words(classify(ending(**what))) == expected


@pytest.mark.parametrize(
    ("what", "parting"),
    [
        ({"returncode": 0}, None),
        # If all ranks end well, an out-of-memory kill hit a process outside the launch.
        ({"returncode": 0, "oom_kills": 1}, None),
        (
            {"returncode": 3, "log": "bye"},
            "after the reports of all ranks: torchrun ended with exit code 3: bye",
        ),
        (
            {"returncode": 1, "exits": {1: -11}},
            "after the reports of all ranks: rank 1 was ended by SIGSEGV; "
            "rank 0 in training, step 3",
        ),
        *(
            (
                {"stopped": stopped, "returncode": -15},
                "after their reports the ranks did not end: rank 0 in training, step 3",
            )
            for stopped in ("leaving", "timeout")
        ),
    ],
)
def test_what_goes_wrong_after_the_last_report_takes_nothing_away(what, parting):
    assert classify(ending(reports=FINE, **what)) == Outcome("ok", parting=parting)


@pytest.mark.parametrize("name", CASES["in_a_slurm_job"])
def test_classify_in_a_slurm_job(name):
    """srun tells how ranks have ended."""
    what, expected = read_case("in_a_slurm_job", name)
    exits = find_launcher("srun").read_exits(what.get("log", ""))
    outcome = classify(ending(launcher="srun", exits=exits, **what))
    assert in_words(outcome) == expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PEER, "torchrun on the host node1 was ended by SIGKILL"),
        (failed("the disk is full"), "rank 1: RuntimeError: the disk is full"),
    ],
)
def test_a_launcher_of_one_host_was_killed(error, reason):
    """Unless srun killed it, because a rank had failed."""
    outcome = classify(ending(reports={1: error}, log=LAUNCHER_KILLED))
    assert outcome == Outcome("crashed", reason)


@pytest.mark.parametrize(
    ("launcher", "log"),
    [
        ("torchrun", TORCHRUN_KILLED),
        ("torch_launch", TORCHRUN_KILLED),
        ("spawn", SPAWN_KILLED),
        ("manual", MANUAL_KILLED),
    ],
)
def test_killed_rank_is_named_from_the_real_log(launcher, log):
    exits = find_launcher(launcher).read_exits(log)
    outcome = classify(ending(launcher=launcher, log=log, exits=exits))
    assert outcome.status == "crashed"
    assert outcome.reason == "rank 1 was ended by SIGKILL; rank 0 in training, step 3"


def test_port_that_another_process_took_meanwhile():
    reports = {0: failed(PORT_TAKEN, "DistNetworkError")}
    outcome = classify(ending(launcher="manual", reports=reports, exits={0: 1}))
    assert (outcome.status, outcome.cause) == ("cancelled", "host")


def test_exception_is_named_from_the_real_log():
    outcome = classify(ending(launcher="spawn", log=SPAWN_RAISED))
    assert outcome.reason == (
        "spawn ended with exit code 1, nothing from rank 0: RuntimeError: no luck"
    )


def test_a_job_array_that_does_not_start_in_time():
    said = "not started within 60 s: of 3 tasks 1 (Resources), 2 (Priority)"
    log = f"job array 12: 3 tasks\n{said}\n"
    outcome = classify(ending(launcher="job_array", returncode=1, log=log))
    assert outcome == Outcome("cancelled", f"job array {said}", "site")
