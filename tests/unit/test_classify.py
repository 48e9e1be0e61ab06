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


@pytest.mark.parametrize(
    ("what", "status", "reason", "cause"),
    [
        pytest.param(
            {"reports": FINE, "returncode": 0}, "ok", None, None, id="all reported"
        ),
        # A launch is not ok if a report or an exit status is missing.
        pytest.param(
            {"reports": {0: {}}, "returncode": 0, "log": "bye"},
            "crashed",
            "torchrun ended with exit code 0, nothing from rank 1: bye",
            None,
            id="a rank said nothing",
        ),
        pytest.param(
            {"returncode": 3},
            "crashed",
            "torchrun ended with exit code 3, nothing from rank 0: it printed nothing",
            None,
            id="launcher failed",
        ),
        # Launches that the supervisor stopped.
        pytest.param(
            {"stopped": "parent", "reports": FINE, "returncode": 0},
            "cancelled",
            "the run that started it ended",
            "owner",
            id="parent",
        ),
        pytest.param(
            {"stopped": "SIGINT", "reports": OOM},
            "cancelled",
            "interrupted by SIGINT",
            "user",
            id="interrupted",
        ),
        pytest.param(
            {"stopped": "timeout", "returncode": -15},
            "timeout",
            "time limit of 60 s reached: rank 0 in training, step 3",
            None,
            id="timeout",
        ),
        # Running out of memory is reported even if the time limit or a crash follows.
        pytest.param(
            {"reports": OOM},
            "oom",
            "rank 0: OutOfMemoryError: CUDA out of memory",
            None,
            id="device memory",
        ),
        pytest.param(
            {"reports": OOM, "stopped": "timeout"},
            "oom",
            "rank 0: OutOfMemoryError: CUDA out of memory",
            None,
            id="oom, then the others hung",
        ),
        pytest.param(
            {"reports": {0: PEER, 1: OOM[0]}, "exits": {0: 1}},
            "oom",
            "rank 1: OutOfMemoryError: CUDA out of memory",
            None,
            id="oom of one, the other lost its peer",
        ),
        pytest.param(
            {"oom_kills": 1, "exits": {1: -9}, "reports": {0: PEER}},
            "oom",
            "the kernel ended rank 1 for lack of memory",
            None,
            id="killed by the kernel",
        ),
        pytest.param(
            {"oom_kills": 1, "exits": {1: 1}},
            "oom",
            "the kernel ended a process for lack of memory",
            None,
            id="a process killed by the kernel",
        ),
        pytest.param(
            {"oom_kills": 1, "stopped": "timeout"},
            "oom",
            "the kernel ended a process for lack of memory",
            None,
            id="killed by the kernel, then the others hung",
        ),
        pytest.param(
            {"oom_kills": 1, "reports": FINE, "returncode": 0},
            "ok",
            None,
            None,
            id="the kernel killed somebody else",
        ),
        # Kinds of crash: a signal, an exception, a failed launcher, no message at all.
        pytest.param(
            {"exits": {1: -11}, "reports": {0: PEER}},
            "crashed",
            "rank 1 was ended by SIGSEGV; rank 0 in training, step 3",
            None,
            id="signal",
        ),
        pytest.param(
            {"exits": {0: -15, 1: -9}},
            "crashed",
            "rank 1 was ended by SIGKILL; rank 0 in training, step 3",
            None,
            id="the one that was not only told to end",
        ),
        pytest.param(
            {"exits": {1: -6}, "reports": {1: failed("bad")}},
            "crashed",
            "rank 1: RuntimeError: bad",
            None,
            id="own words before the signal",
        ),
        pytest.param(
            {"reports": {0: PEER, 1: failed("shapes differ\nmore")}, "exits": {0: 1}},
            "crashed",
            "rank 1: RuntimeError: shapes differ",
            None,
            id="reason before consequence",
        ),
        pytest.param(
            {"reports": {0: PEER, 1: PEER}},
            "crashed",
            "rank 0: RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1234",
            None,
            id="only consequences",
        ),
        pytest.param(
            {"reports": {0: failed("[gloo] Read error")}, "exits": {0: 1}},
            "crashed",
            "rank 1 ended without a word; rank 0 then lost it: [gloo] Read error",
            None,
            id="nobody knows how the other one ended",
        ),
        pytest.param(
            {"reports": {0: failed("The server socket: EADDRINUSE")}},
            "crashed",
            "rank 0: RuntimeError: The server socket: EADDRINUSE",
            "port",
            id="port taken, says a rank",
        ),
        pytest.param(
            {"reports": {1: failed("connect: No route to host")}},
            "crashed",
            "rank 1: RuntimeError: connect: No route to host",
            "host",
            id="host gone",
        ),
        pytest.param(
            {"log": "x\nDistNetworkError: Address already in use\n"},
            "crashed",
            "torchrun ended with exit code 1, nothing from rank 0: "
            "DistNetworkError: Address already in use",
            "port",
            id="port taken, says the launcher",
        ),
        pytest.param(
            {"returncode": -9},
            "crashed",
            "torchrun was ended by SIGKILL",
            None,
            id="launcher killed",
        ),
        pytest.param(
            {"exits": {1: 97}},
            "crashed",
            "rank 1 ended with exit code 97: it printed nothing",
            None,
            id="silent exit",
        ),
        pytest.param(
            {
                "exits": {1: 2},
                "log": "chdir /opt: no such file\n",
                "rank_logs": {0: "step 3\n"},
            },
            "crashed",
            "rank 1 ended with exit code 2: chdir /opt: no such file",
            None,
            id="exit before a rank has a log",
        ),
        pytest.param(
            {"exits": {1: 2}, "log": "summary\n", "rank_logs": {1: "a\nno licence\n"}},
            "crashed",
            "rank 1 ended with exit code 2: no licence",
            None,
            id="exit with a word in the log of the rank",
        ),
        pytest.param(
            {
                "reports": {0: failed("connect: Connection refused [127.0.1.1]:4711")},
                "is_spread": True,
                "stopped": "failure",
            },
            "crashed",
            "rank 0: RuntimeError: connect: Connection refused [127.0.1.1]:4711: a "
            "host gives the others its loopback address 127.0.1.1: set interface in "
            "site.yaml",
            "site",
            id="rank 1 is the victim of a wrong address",
        ),
        pytest.param(
            {"exits": {0: -15, 1: 3}, "launcher": "hydra"},
            "crashed",
            "rank 1 ended with exit code 3: it printed nothing",
            None,
            id="silent exit, the others were told to end",
        ),
        pytest.param(
            {"reports": {1: failed("no luck")}, "stopped": "failure"},
            "crashed",
            "rank 1: RuntimeError: no luck",
            None,
            id="the others waited for it",
        ),
    ],
)
def test_classify(
    what: dict[str, Any], status: str, reason: str | None, cause: str | None
) -> None:
    assert classify(ending(**what)) == Outcome(status, reason, cause)
    assert status in STATUSES


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


@pytest.mark.parametrize(
    ("what", "status", "reason", "cause"),
    [
        pytest.param(
            {"log": SRUN_KILLED, "reports": {0: PEER}, "job_ended": None},
            "crashed",
            "rank 1 was ended by SIGKILL; rank 0 in training, step 3",
            None,
            id="a rank was killed",
        ),
        pytest.param(
            {"log": SRUN_OUT_OF_MEMORY, "reports": {0: PEER}},
            "oom",
            "Slurm ended rank 1 at the memory limit of the job",
            None,
            id="memory of a control group",
        ),
        pytest.param(
            {"log": SRUN_MEMORY_LIMIT},
            "oom",
            "Slurm ended a process at the memory limit of the job",
            None,
            id="memory limit",
        ),
        pytest.param(
            {"log": SRUN_TIME_LIMIT, "stopped": "SIGTERM", "job_ended": None},
            "timeout",
            "time limit of the Slurm job reached: rank 0 in training, step 3",
            None,
            id="time limit of a step",
        ),
        pytest.param(
            {"stopped": "SIGTERM", "job_ended": "timeout"},
            "timeout",
            "time limit of the Slurm job reached: rank 0 in training, step 3",
            None,
            id="time limit of the job",
        ),
        pytest.param(
            {"log": SRUN_LOST_HOST, "stopped": "SIGTERM", "job_ended": "host"},
            "crashed",
            "the host node2 failed; rank 0 in training, step 3",
            "site",
            id="a host was lost",
        ),
        pytest.param(
            {"reports": {0: PEER}, "log": "srun: forcing job\nlost the host node2\n"},
            "crashed",
            "the host node2 failed; rank 0 in training, step 3",
            "site",
            id="a rank noticed that a host was lost, before Slurm did",
        ),
        pytest.param(
            {"stopped": "SIGTERM", "job_ended": "host"},
            "crashed",
            "a host of the job failed; rank 0 in training, step 3",
            "site",
            id="a host was lost, says the job",
        ),
        pytest.param(
            {"log": SRUN_NOT_STARTED},
            "crashed",
            "the host node2 failed; rank 0 in training, step 3",
            "site",
            id="a host does not answer",
        ),
        pytest.param(
            {"log": SRUN_NO_IMAGE, "reports": {0: PEER}, "in_image": True},
            "crashed",
            "the image does not start on the host node2: could not open image "
            "/tmp/mpi.sif: stat /tmp/mpi.sif: no such file or directory",
            None,
            id="no image on a host",
        ),
        pytest.param(
            {"log": "loading... " + SRUN_NO_IMAGE, "in_image": True},
            "crashed",
            "the image does not start on the host node2: could not open image "
            "/tmp/mpi.sif: stat /tmp/mpi.sif: no such file or directory",
            None,
            id="no image on a host, told after a word of another",
        ),
        pytest.param(
            {"log": SRUN_NO_IMAGE.partition("\n")[2], "in_image": True},
            "crashed",
            "the image does not start on the host node2: Apptainer failed there, and "
            "what it said did not arrive",
            None,
            id="no image on a host, and nothing was told",
        ),
        pytest.param(
            {"log": SRUN_NO_IMAGE.partition("\n")[2]},
            "crashed",
            "rank 0 was ended by SIGKILL; rank 0 in training, step 3",
            None,
            id="the same words without an image",
        ),
        pytest.param(
            {"stopped": "SIGTERM", "job_ended": "cancelled"},
            "cancelled",
            "its Slurm job was cancelled",
            "user",
            id="scancel",
        ),
        pytest.param(
            {"reports": {0: PEER}, "returncode": 143, "job_ended": "over"},
            "cancelled",
            "its Slurm job ended before the launch",
            "owner",
            id="the script of the job was killed",
        ),
        pytest.param(
            {"stopped": "SIGTERM", "job_ended": None},
            "cancelled",
            "interrupted by SIGTERM",
            "user",
            id="a signal, but none of Slurm",
        ),
    ],
)
def test_classify_in_a_slurm_job(
    what: dict[str, Any], status: str, reason: str, cause: str | None
) -> None:
    exits = find_launcher("srun").read_exits(what.get("log", ""))
    outcome = classify(ending(launcher="srun", exits=exits, **what))
    assert outcome == Outcome(status, reason, cause)


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
