"""The parent of ranks that are started as by hand."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time

import pytest

from rankbench.rank.world.manual import (
    await_ranks,
    choose_rendezvous,
    places_here,
)

pytestmark = pytest.mark.unit

FOR_EVER = "import time; print('up', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOR_EVER}"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def start(*programs: str) -> dict[int, subprocess.Popen[bytes]]:
    """A process for each; those that run for ever are up."""
    ranks = {}
    for rank, program in enumerate(programs):
        command = [sys.executable, "-c", program]
        ranks[rank] = subprocess.Popen(command, stdout=subprocess.PIPE)
        if FOR_EVER in program:
            stream = ranks[rank].stdout
            assert stream
            assert stream.readline() == b"up\n"
    return ranks


def test_places_of_a_host(monkeypatch):
    monkeypatch.setenv("SLURM_NODEID", "1")
    alone = places_here(1, 2)
    assert [(p.rank, p.size, p.node) for p in alone] == [(0, 2, 0), (1, 2, 0)]
    second = places_here(3, 2)
    assert [(p.rank, p.size, p.node) for p in second] == [(2, 6, 1), (3, 6, 1)]
    assert [(p.local_rank, p.local_size) for p in second] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("first", [(), ("localhost", 20017)])
def test_rendezvous(tmp_path, first, monkeypatch):
    """Of one host at a free port of its own, of several hosts at a given one."""
    address, wanted = first or ("127.0.0.1", None)
    url, variables = choose_rendezvous("env", tmp_path, *first)
    assert (url, variables["MASTER_ADDR"]) == ("env://", address)
    tcp, no_variables = choose_rendezvous("tcp", tmp_path, *first)
    assert (tcp.rpartition(":")[0], no_variables) == (f"tcp://{address}", {})
    for port in (variables["MASTER_PORT"], tcp.rpartition(":")[2]):
        assert 0 < int(port) < 65536
        assert wanted in (None, int(port))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    file = tmp_path / "rendezvous.4711.3"
    if first:
        file.touch()  # by a rank of another host that was faster
    assert choose_rendezvous("file", tmp_path, *first) == (f"file://{file}", {})
    assert file.exists() is bool(first)


def test_rendezvous_at_an_unknown_host_or_a_stale_file(tmp_path):
    said = rf"the host {socket.gethostname()} cannot resolve no-host.invalid: "
    with pytest.raises(OSError, match=said):
        choose_rendezvous("env", tmp_path, "no-host.invalid", 20017)
    (tmp_path / "rendezvous").touch()
    with pytest.raises(ValueError, match="rendezvous is left from an earlier launch"):
        choose_rendezvous("file", tmp_path)
    assert choose_rendezvous("tcp", tmp_path), "it is in the way of no other method"


@pytest.mark.parametrize(
    ("programs", "failed"),
    [
        pytest.param(["", "import time; time.sleep(0.2)", ""], {}, id="all end well"),
        pytest.param([FOR_EVER, "raise SystemExit(3)"], {1: 3}, id="exit code"),
        pytest.param(["", FOR_EVER, KILLED], {2: -9}, id="signal"),
        pytest.param([DEAF, KILLED], {1: -9}, id="the other takes no SIGTERM"),
    ],
)
def test_others_are_ended_and_only_the_failed_is_named(programs, failed):
    ranks = start(*programs)
    begun = time.monotonic()
    assert await_ranks(ranks, grace=0.5) == failed
    assert time.monotonic() - begun < 300
    assert all(process.returncode is not None for process in ranks.values())


def test_torch_is_not_imported():
    code = (
        "import sys, rankbench.rank.world.manual; heavy = {'torch', 'numpy'};"
        "sys.exit(' '.join(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ([], r"0 (\d+) 127\.0\.0\.1"),
        (["--address=localhost", "--port=20017"], "3 (20017) localhost"),
    ],
)
def test_a_command_gets_a_place_to_meet_and_the_number_of_its_host(place, said):
    show = "import os, sys; print(sys.argv[1], os.environ['MASTER_ADDR'])"
    command = [sys.executable, "-c", show, "{node} {port}"]
    done = subprocess.run(
        [sys.executable, "-m", "rankbench.rank.world.meeting", *place, *command],
        env={**os.environ, **({"SLURM_NODEID": "3"} if place else {})},
        check=True,
        capture_output=True,
        text=True,
    )
    rendezvous, shown = done.stdout.splitlines()
    found = re.fullmatch(said, shown)
    assert found
    assert rendezvous.endswith(f"MASTER_PORT={found.group(1)}")
