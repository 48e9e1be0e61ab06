"""The status, reason and cause of a launch."""

from __future__ import annotations

from typing import Any

import pytest

from logs import (
    MANUAL_KILLED,
    PORT_TAKEN,
    SPAWN_KILLED,
    SPAWN_RAISED,
    SRUN_KILLED,
    SRUN_LOST_HOST,
    SRUN_MEMORY_LIMIT,
    SRUN_NO_IMAGE,
    SRUN_NOT_STARTED,
    SRUN_OUT_OF_MEMORY,
    SRUN_TIME_LIMIT,
    TORCHRUN_KILLED,
)
from rankbench.launch.launchers import find_launcher
from rankbench.launch.process.classify import (
    Ending,
    Outcome,
    classify,
    last_error_line,
    signal_name,
)
from rankbench.record import STATUSES

pytestmark = pytest.mark.unit

FINE: dict[int, dict[str, Any]] = {0: {"rank": {}}, 1: {"rank": {}}}


def failed(message: str, kind: str = "RuntimeError", oom: bool = False) -> dict:
    return {"error": {"type": kind, "message": message, "oom": oom}}


def ending(**changes: Any) -> Ending:
    """The end of a launch of two ranks: the launcher failed, and no rank reported."""
    values = {
        "launcher": "torchrun",
        "returncode": 1,
        "stopped": None,
        "time_limit": 60.0,
        "ranks": 2,
        "progress": "rank 0 in training, step 3",
        "log": "",
        **changes,
    }
    return Ending(**values)


OOM = {0: failed("CUDA out of memory", "OutOfMemoryError", oom=True)}
LAUNCHER_KILLED = """\
srun: error: node1: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=46.1
srun: error: node2: task 1: Exited with exit code 1
"""
PEER = failed("[gloo] Connection closed by peer [127.0.0.1]:1234")


# How a launch ended -> its status, cause and reason.
ENDINGS = {
    "all reported": ({"reports": FINE, "returncode": 0}, "ok"),
    # A launch is not ok if a report or an exit status is missing.
    "a rank said nothing": (
        {"reports": {0: {}}, "returncode": 0, "log": "bye"},
        "crashed: torchrun ended with exit code 0, nothing from rank 1: bye",
    ),
    "launcher failed": (
        {"returncode": 3},
        "crashed: torchrun ended with exit code 3, nothing from rank 0: it "
        "printed nothing",
    ),
    # Launches that the supervisor stopped.
    "parent": (
        {"stopped": "parent", "reports": FINE, "returncode": 0},
        "cancelled (owner): the run that started it ended",
    ),
    "interrupted": (
        {"stopped": "SIGINT", "reports": OOM},
        "cancelled (user): interrupted by SIGINT",
    ),
    "timeout": (
        {"stopped": "timeout", "returncode": -15},
        "timeout: time limit of 60 s reached: rank 0 in training, step 3",
    ),
    # Running out of memory is reported even if the time limit or a crash follows.
    "device memory": (
        {"reports": OOM},
        "oom: rank 0: OutOfMemoryError: CUDA out of memory",
    ),
    "oom, then the others hung": (
        {"reports": OOM, "stopped": "timeout"},
        "oom: rank 0: OutOfMemoryError: CUDA out of memory",
    ),
    "oom of one, the other lost its peer": (
        {"reports": {0: PEER, 1: OOM[0]}, "exits": {0: 1}},
        "oom: rank 1: OutOfMemoryError: CUDA out of memory",
    ),
    "killed by the kernel": (
        {"oom_kills": 1, "exits": {1: -9}, "reports": {0: PEER}},
        "oom: the kernel ended rank 1 for lack of memory",
    ),
    "a process killed by the kernel": (
        {"oom_kills": 1, "exits": {1: 1}},
        "oom: the kernel ended a process for lack of memory",
    ),
    "killed by the kernel, then the others hung": (
        {"oom_kills": 1, "stopped": "timeout"},
        "oom: the kernel ended a process for lack of memory",
    ),
    "the kernel killed somebody else": (
        {"oom_kills": 1, "reports": FINE, "returncode": 0},
        "ok",
    ),
    # Kinds of crash: a signal, an exception, a failed launcher, no message at all.
    "signal": (
        {"exits": {1: -11}, "reports": {0: PEER}},
        "crashed: rank 1 was ended by SIGSEGV; rank 0 in training, step 3",
    ),
    "the one that was not only told to end": (
        {"exits": {0: -15, 1: -9}},
        "crashed: rank 1 was ended by SIGKILL; rank 0 in training, step 3",
    ),
    "own words before the signal": (
        {"exits": {1: -6}, "reports": {1: failed("bad")}},
        "crashed: rank 1: RuntimeError: bad",
    ),
    "reason before consequence": (
        {"reports": {0: PEER, 1: failed("shapes differ\nmore")}, "exits": {0: 1}},
        "crashed: rank 1: RuntimeError: shapes differ",
    ),
    "only consequences": (
        {"reports": {0: PEER, 1: PEER}},
        "crashed: rank 0: RuntimeError: [gloo] Connection closed by peer "
        "[127.0.0.1]:1234",
    ),
    "nobody knows how the other one ended": (
        {"reports": {0: failed("[gloo] Read error")}, "exits": {0: 1}},
        "crashed: rank 1 ended without a word; rank 0 then lost it: [gloo] Read error",
    ),
    "port taken, says a rank": (
        {"reports": {0: failed("The server socket: EADDRINUSE")}},
        "crashed (port): rank 0: RuntimeError: The server socket: EADDRINUSE",
    ),
    "host gone": (
        {"reports": {1: failed("connect: No route to host")}},
        "crashed (host): rank 1: RuntimeError: connect: No route to host",
    ),
    "port taken, says the launcher": (
        {"log": "x\nDistNetworkError: Address already in use\n"},
        "crashed (port): torchrun ended with exit code 1, nothing from rank 0: "
        "DistNetworkError: Address already in use",
    ),
    "launcher killed": ({"returncode": -9}, "crashed: torchrun was ended by SIGKILL"),
    "silent exit": (
        {"exits": {1: 97}},
        "crashed: rank 1 ended with exit code 97: it printed nothing",
    ),
    "exit before a rank has a log": (
        {
            "exits": {1: 2},
            "log": "chdir /opt: no such file\n",
            "rank_logs": {0: "step 3\n"},
        },
        "crashed: rank 1 ended with exit code 2: chdir /opt: no such file",
    ),
    "exit with a word in the log of the rank": (
        {"exits": {1: 2}, "log": "summary\n", "rank_logs": {1: "a\nno licence\n"}},
        "crashed: rank 1 ended with exit code 2: no licence",
    ),
    "rank 1 is the victim of a wrong address": (
        {
            "reports": {0: failed("connect: Connection refused [127.0.1.1]:4711")},
            "is_spread": True,
            "stopped": "failure",
        },
        "crashed (site): rank 0: RuntimeError: connect: Connection refused "
        "[127.0.1.1]:4711: a host gives the others its loopback address 127.0.1.1: "
        "set interface in site.yaml",
    ),
    "silent exit, the others were told to end": (
        {"exits": {0: -15, 1: 3}, "launcher": "hydra"},
        "crashed: rank 1 ended with exit code 3: it printed nothing",
    ),
    "the others waited for it": (
        {"reports": {1: failed("no luck")}, "stopped": "failure"},
        "crashed: rank 1: RuntimeError: no luck",
    ),
}


def in_words(outcome: Outcome) -> str:
    assert outcome.status in STATUSES
    assert outcome.parting is None
    cause = f" ({outcome.cause})" if outcome.cause else ""
    return f"{outcome.status}{cause}" + (
        f": {outcome.reason}" if outcome.reason else ""
    )


@pytest.mark.parametrize("case", ENDINGS)
def test_classify(case: str) -> None:
    what, expected = ENDINGS[case]
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
def test_what_goes_wrong_after_the_last_report_takes_nothing_away(
    what: dict[str, Any], parting: str | None
) -> None:
    assert classify(ending(reports=FINE, **what)) == Outcome("ok", parting=parting)


# The same under srun, which tells how ranks have ended.
IN_A_SLURM_JOB = {
    "a rank was killed": (
        {"log": SRUN_KILLED, "reports": {0: PEER}, "job_ended": None},
        "crashed: rank 1 was ended by SIGKILL; rank 0 in training, step 3",
    ),
    "memory of a control group": (
        {"log": SRUN_OUT_OF_MEMORY, "reports": {0: PEER}},
        "oom: Slurm ended rank 1 at the memory limit of the job",
    ),
    "memory limit": (
        {"log": SRUN_MEMORY_LIMIT},
        "oom: Slurm ended a process at the memory limit of the job",
    ),
    "time limit of a step": (
        {"log": SRUN_TIME_LIMIT, "stopped": "SIGTERM", "job_ended": None},
        "timeout: time limit of the Slurm job reached: rank 0 in training, step 3",
    ),
    "time limit of the job": (
        {"stopped": "SIGTERM", "job_ended": "timeout"},
        "timeout: time limit of the Slurm job reached: rank 0 in training, step 3",
    ),
    "a host was lost": (
        {"log": SRUN_LOST_HOST, "stopped": "SIGTERM", "job_ended": "host"},
        "crashed (site): the host node2 failed; rank 0 in training, step 3",
    ),
    "a rank noticed that a host was lost, before Slurm did": (
        {"reports": {0: PEER}, "log": "srun: forcing job\nlost the host node2\n"},
        "crashed (site): the host node2 failed; rank 0 in training, step 3",
    ),
    "a host was lost, says the job": (
        {"stopped": "SIGTERM", "job_ended": "host"},
        "crashed (site): a host of the job failed; rank 0 in training, step 3",
    ),
    "a host does not answer": (
        {"log": SRUN_NOT_STARTED},
        "crashed (site): the host node2 failed; rank 0 in training, step 3",
    ),
    "no image on a host": (
        {"log": SRUN_NO_IMAGE, "reports": {0: PEER}, "in_image": True},
        "crashed: the image does not start on the host node2: could not open "
        "image /tmp/mpi.sif: stat /tmp/mpi.sif: no such file or directory",
    ),
    "no image on a host, told after a word of another": (
        {"log": "loading... " + SRUN_NO_IMAGE, "in_image": True},
        "crashed: the image does not start on the host node2: could not open "
        "image /tmp/mpi.sif: stat /tmp/mpi.sif: no such file or directory",
    ),
    "no image on a host, and nothing was told": (
        {"log": SRUN_NO_IMAGE.partition("\n")[2], "in_image": True},
        "crashed: the image does not start on the host node2: Apptainer failed "
        "there, and what it said did not arrive",
    ),
    "the same words without an image": (
        {"log": SRUN_NO_IMAGE.partition("\n")[2]},
        "crashed: rank 0 was ended by SIGKILL; rank 0 in training, step 3",
    ),
    "scancel": (
        {"stopped": "SIGTERM", "job_ended": "cancelled"},
        "cancelled (user): its Slurm job was cancelled",
    ),
    "the script of the job was killed": (
        {"reports": {0: PEER}, "returncode": 143, "job_ended": "over"},
        "cancelled (owner): its Slurm job ended before the launch",
    ),
    "a signal, but none of Slurm": (
        {"stopped": "SIGTERM", "job_ended": None},
        "cancelled (user): interrupted by SIGTERM",
    ),
}


@pytest.mark.parametrize("case", IN_A_SLURM_JOB)
def test_classify_in_a_slurm_job(case: str) -> None:
    what, expected = IN_A_SLURM_JOB[case]
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
def test_a_launcher_of_one_host_was_killed(error: dict[str, Any], reason: str) -> None:
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
def test_killed_rank_is_named_from_the_real_log(launcher: str, log: str) -> None:
    exits = find_launcher(launcher).read_exits(log)
    outcome = classify(ending(launcher=launcher, log=log, exits=exits))
    assert outcome.status == "crashed"
    assert outcome.reason == "rank 1 was ended by SIGKILL; rank 0 in training, step 3"


def test_port_that_another_process_took_meanwhile() -> None:
    reports = {0: failed(PORT_TAKEN, "DistNetworkError")}
    outcome = classify(ending(launcher="manual", reports=reports, exits={0: 1}))
    assert (outcome.status, outcome.cause) == ("crashed", "port")


def test_exception_is_named_from_the_real_log() -> None:
    outcome = classify(ending(launcher="spawn", log=SPAWN_RAISED))
    assert outcome.reason == (
        "spawn ended with exit code 1, nothing from rank 0: RuntimeError: no luck"
    )


def test_a_job_array_that_does_not_start_in_time() -> None:
    said = "not started within 60 s: of 3 tasks 1 (Resources), 2 (Priority)"
    log = f"job array 12: 3 tasks\n{said}\n"
    outcome = classify(ending(launcher="job_array", returncode=1, log=log))
    assert (outcome.status, outcome.reason) == ("timeout", f"job array {said}")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "it printed nothing"),
        ("\n one\n two \n\n", "two"),
        ("ValueError: bad\nat the end", "ValueError: bad"),
        (
            "torch.cuda.OutOfMemoryError: much\nhint",
            "torch.cuda.OutOfMemoryError: much",
        ),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("  see Error: no", "see Error: no"),
    ],
)
def test_last_error_line(log: str, line: str) -> None:
    assert last_error_line(log) == line


def test_signal_name() -> None:
    assert signal_name(15) == "SIGTERM"
    assert signal_name(200) == "signal 200"
