"""The replacement of ssh, between two processes that act as two hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from factories import read_pairs
from rankbench.rank.world.places import find_free_port
from rankbench.rank.world.remote import find_address, listen, read_ssh

pytestmark = pytest.mark.unit

MODULE = (sys.executable, "-m", "rankbench.rank.world.remote")


@pytest.mark.parametrize(("arguments", "found"), read_pairs("ssh_commands.txt"))
def test_arguments_of_ssh(arguments, found):
    host, command = read_ssh(arguments.split())
    assert f"{host} [{command}]" == found
    with pytest.raises(ValueError, match="no host"):
        read_ssh(["-x", "-p", "22"])


class Hosts:
    """Two hosts; the second one is waiting already."""

    def __init__(self, folder: Path) -> None:
        self._secret = folder / "secret"
        self._secret.write_text("of this launch")
        self._port = str(find_free_port())
        self.second = self._start("1", "true")

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the shell on the first, which reaches the second by ssh."""
        first = self._start("0", "sh", "-c", script)
        out, _ = first.communicate(timeout=400)
        return subprocess.CompletedProcess(script, first.returncode, out)

    def _start(self, node: str, *command: str) -> subprocess.Popen[str]:
        hosts = ("--hosts=localhost,localhost", f"--node={node}")
        meeting = (f"--port={self._port}", f"--secret={self._secret}")
        return subprocess.Popen(
            [*MODULE, *hosts, *meeting, *command],
            env={**os.environ, "NODE": node, "CUDA_VISIBLE_DEVICES": f"{node},7"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self) -> str:
        """What the second has printed, when it has ended."""
        out, _ = self.second.communicate(timeout=400)
        return out


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    both = Hosts(tmp_path)
    yield both
    both.second.kill()
    both.second.communicate()


def test_a_command_runs_on_the_other_host_and_both_end(hosts):
    done = hosts.run("ssh -x localhost 'echo on host $NODE; exit 3'; exit $?")
    assert done.returncode == 3
    assert hosts.said() == "on host 1\n"
    assert hosts.second.returncode == 0


def test_a_host_keeps_its_own_gpus_whatever_a_launcher_exports(hosts):
    """As horovodrun does: its commands export all variables of the first host."""
    ask = (
        "import os; from rankbench.environ import restore_devices; restore_devices();"
        "print(os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    exported = "export CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES;"
    hosts.run(f'ssh localhost "{exported} {sys.executable} -c \\"{ask}\\""')
    assert hosts.said() == "1,7\n"


def test_commands_run_at_the_same_time(hosts, tmp_path):
    wait = f"'until [ -e {tmp_path}/there ]; do sleep 0.05; done'"
    touch = f"touch {tmp_path}/there"
    done = hosts.run(f"ssh localhost {wait} & ssh localhost {touch} && wait")
    assert done.returncode == 0


def test_a_command_ends_with_whoever_wanted_it(hosts, tmp_path):
    mark = tmp_path / "mark"
    script = f"'echo $$ > {mark}; exec sleep 600'"
    hosts.run(
        f"ssh localhost {script} & until [ -s {mark} ]; do sleep 0.05; done; kill $!"
    )
    pid = int(mark.read_text())
    deadline = time.monotonic() + 400
    while Path(f"/proc/{pid}/cwd").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (["10.0.0.2"], "10.0.0.2"),
        (["10.0.0.2", "10.0.0.2"], "10.0.0.2"),
        # With two addresses, other hosts may choose the other one.
        (["10.0.0.2", "10.1.0.2"], ""),
        # Debian maps the host's own name to 127.0.1.1, which no other host can reach.
        (["127.0.1.1"], ""),
        ([], ""),
    ],
)
def test_the_address_to_listen_at_is_the_only_one_of_the_name(
    monkeypatch, found, address
):
    def getaddrinfo(*_: object) -> list[tuple[object, ...]]:
        if not found:
            raise socket.gaierror
        return [(2, 1, 6, "", (one, 0)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert find_address("node2") == address


def test_it_listens_at_that_address_alone(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("of this launch")
    monkeypatch.setenv("RANKBENCH_REMOTE_SECRET", str(tmp_path / "secret"))
    with listen("127.0.0.2", 0) as listener:
        assert listener.address[0] == "127.0.0.2"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.address[1]))
    # A translated (NAT) address belongs to no interface of this host.
    with listen("192.0.2.1", 0) as listener:
        assert listener.address[0] == "0.0.0.0"  # noqa: S104


def test_who_does_not_know_the_secret_is_not_obeyed(hosts, tmp_path):
    other = tmp_path / "other"
    other.write_text("another")
    done = hosts.run(
        f"RANKBENCH_REMOTE_SECRET={other} ssh localhost touch {tmp_path}/done"
    )
    assert done.returncode != 0
    assert "AuthenticationError" in done.stdout
    assert not (tmp_path / "done").exists()
    assert hosts.second.wait(30) == 0, "it still listens to its own"
