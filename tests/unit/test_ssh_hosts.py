"""Hosts that ssh reaches: site files, commands, paths on other hosts, copies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from factories import make_cell, make_site, make_spec
from rankbench.environ import for_hosts, read_node
from rankbench.launch.hosts import ssh as ssh_module
from rankbench.launch.hosts.base import (
    Hosts,
    Needs,
    Step,
    Waiting,
    hosts_of,
    take_lock,
)
from rankbench.launch.hosts.ssh import Session, SshHosts, places_of
from rankbench.launch_spec import SOURCE
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.feasible import find_obstacle
from rankbench.matrix.site import Site, read_site, use_hosts
from rankbench.schedulers import SCHEDULERS, scheduler_of

pytestmark = pytest.mark.unit

TWO = "scheduler: ssh\nhosts: [{name: a, devices: 2}, {name: b, devices: 1}]\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "site.yaml"
    path.write_text(text)
    return path


def ssh_site(**changes: object) -> Site:
    hosts = [
        {"name": name, "devices": count, "python": None}
        for name, count in (("a", 2), ("b", 1))
    ]
    return make_site(scheduler="ssh", nodes=2, hosts=hosts, **changes)


def session_of(name: str, folder: str | Path, python: str, control: str) -> Session:
    """A host as the steps of a launch need it, which no ssh has reached."""
    session = Session(name, control, python, str(SOURCE), {sys.executable: python})
    session.facts = {"folder": str(folder)}
    return session


@pytest.fixture(autouse=True)
def unheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "is_open", True)


def test_the_list_of_hosts_says_how_many_there_are(tmp_path):
    facts = read_site(write(tmp_path, TWO))
    assert (facts["nodes"], facts["devices_per_node"]) == (2, 2)
    assert facts["shared"] is False
    assert facts["hosts"][1] == {"python": None, "name": "b", "devices": 1}


def test_a_hostfile_of_mpirun_and_deepspeed(tmp_path):
    lines = ("\ufeff# four", "a slots=2", "", "b slots=1  # slow", "c", "d")
    text = "\n".join(lines) + " slots=2 max_slots=4\n"
    (tmp_path / "hosts").write_text(text)
    facts = read_site(write(tmp_path, "scheduler: ssh\nhosts: hosts\n"))
    found = [(host["name"], host["devices"]) for host in facts["hosts"]]
    assert found == [("a", 2), ("b", 1), ("c", 1), ("d", 2)]


@pytest.mark.parametrize("line", ["slots=2", "a slots=x", "a slots=0 # x", "a 2"])
def test_a_wrong_line_of_a_hostfile(tmp_path, line):
    (tmp_path / "hosts").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"hosts, line 1: .*such as `a slots=2`"):
        read_site(write(tmp_path, "scheduler: ssh\nhosts: hosts\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scheduler: ssh\n", "needs the hosts, such as"),
        (TWO.replace("name: b", "name: a"), "a appears twice"),
        (TWO.replace("name: b", "name: -oProxyCommand=x"), "is no name of a host"),
        (TWO.replace("name: b", "name: me@b"), "belong into ~/.ssh/config"),
        (TWO.replace("scheduler: ssh", "scheduler: slurm"), "only scheduler: ssh has"),
        ("shared: true\n", "shared: only scheduler: ssh has this key"),
        ("scheduler: ssh\nhosts: nowhere\n", "nowhere: cannot be read"),
    ],
)
def test_bad_hosts(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        read_site(write(tmp_path, text))


def test_an_experiment_chooses_hosts():
    site = use_hosts(ssh_site(), ["b"])
    assert ([host["name"] for host in site["hosts"]], site["nodes"]) == (["b"], 1)
    assert use_hosts(ssh_site(), None)["nodes"] == 2
    with pytest.raises(ValueError, match=r"hosts: c: no such host.*lists a, b"):
        use_hosts(ssh_site(), ["c"])
    with pytest.raises(ValueError, match="this site lists no hosts"):
        use_hosts(make_site(), ["a"])


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"topology": "2x2"}, "2x2 needs 2 devices on each host; b has 1"),
        ({"topology": "3x1"}, "3x1 needs 3 hosts; this site has 2"),
        ({"launcher": "srun"}, "srun is a part of slurm"),
        ({"launcher": "manual", "init_method": "file"}, "hosts that share files"),
        ({}, None),
    ],
)
def test_what_cannot_run_there(cell, said):
    values = {"strategy": "ddp", "topology": "2x1", "launcher": "torchrun", **cell}
    question = make_candidate(make_cell(**values), ssh_site(), load_catalog())
    obstacle = find_obstacle(question)
    assert obstacle is None if said is None else said in str(obstacle)


def test_launches_that_follow_each_other_meet_at_other_ports():
    hosts = SshHosts([session_of("a", "/h", "/py", "/s/0")], {})
    ports = {hosts.port(serial) for serial in range(50)}
    assert len(ports) == 50
    assert ports < {*range(20000, 32000)}
    assert not hosts.share_files


def test_a_launch_has_the_paths_of_its_hosts(tmp_path):
    own, image = {"model": tmp_path / "own/1f/net.py"}, "/images/gloo-cpu.sif"
    spec = make_spec(
        directory=tmp_path / "1",
        data_dir=Path("/data"),
        own=own,
        image={"file": image},
    )
    needs = Needs(
        source=SOURCE,
        code="ab" * 32,
        data_dir=Path("/data"),
        own=[tmp_path / "own/1f"],
        images={image: "cd" * 32},
        native=False,
    )
    session = session_of("a", "/h", "/py", "/s/0")
    there = SshHosts([session], places_of(needs)).place(spec)
    assert there.source == Path("/h/code", "ab" * 8)
    assert there.data_dir == Path("/h/data")
    assert there.own == {"model": Path("/h/own/1f/net.py")}
    assert there.image == {"file": f"/h/images/{'cd' * 32}.sif"}
    assert there.directory.parent == Path("/h/launches")
    assert SshHosts([session], None).place(spec) == spec


def test_variables_that_hold_on_other_hosts():
    own = {"SSH_AUTH_SOCK": "/s", "XDG_RUNTIME_DIR": "/r", "HOME": "/h"}
    assert for_hosts({"PATH": "/bin", **own}) == {"PATH": "/bin"}
    assert read_node({"RANKBENCH_NODE": "1"}) == 1
    assert read_node({"SLURM_NODEID": "2", "RANKBENCH_NODE": "1"}) == 2


def test_hosts_with_different_homes_cannot_share_no_files():
    def session(name: str, home: str) -> Session:
        found = session_of(name, f"{home}/.cache/rankbench", "/py", "/s")
        found.facts |= {
            **{"hostname": name, "boot": name, "executable": "/py", "versions": {}},
            **{"python": [3, 12], "fault": None, "free": 1 << 40, "rsync": True},
            **{"sees": {}, "container": None, "copied": None},
        }
        return found

    first, second = session("a", "/h/me"), session("b", "/users/me")
    needs = Needs(source=SOURCE, code="ab", data_dir=Path("/data"), native=True)
    assert not list(ssh_module._faults(second, {"shared": True}, needs, [first]))
    (fault,) = ssh_module._faults(second, {"shared": False}, needs, [first])
    assert "the same path on all hosts" in fault


# As sshd does: the user's shell runs the command, whatever ssh's options are.
SSHD = """
while :; do case "$1" in -o|-S) shift 2;; -*) shift;; *) break;; esac; done
shift
{login}
exec sh -c "$*"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Replaces ssh; returns the path of a socket. The host's folder is `cache`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh_module, "FOLDER", str(tmp_path / "cache"))

    def install(script: str) -> str:
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return str(tmp_path / "socket")

    return install


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., tuple[list[str], list[str]]]:
    """Inspect the host b, which shares files: those usable, and the faults."""

    def ask(python: str = sys.executable) -> tuple[list[str], list[str]]:
        site = {
            "hosts": [{"name": "b", "devices": 1, "python": python}],
            "shared": True,
            "results_dir": str(tmp_path),
        }
        data = tmp_path / "data"
        needs = Needs(source=SOURCE, code="ab", data_dir=data, native=True)
        with SshHosts.open(site, 1, needs, None) as hosts:
            return list(hosts.names), list(hosts.faults)

    return ask


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (
            "me@b: Permission denied (publickey).",
            r".*wants a password: .*ssh-copy-id b",
        ),
        ("Host key verification failed.", ".*ssh-keygen -R b"),
        ("ssh: Could not resolve hostname b: no", ".*no: correct hosts in site.yaml"),
        # The line about the closed connection comes last, and gives no reason.
        ("System is going down.\nConnection closed by b", r"System is going down\.$"),
    ],
)
def test_ssh_that_fails_says_why_and_what_to_do(ssh, ask, said, fault):
    ssh(f"echo '{said}' >&2\nexit 255")
    usable, (found,) = ask()
    assert not usable
    assert re.match(f"b: {fault}", found), found


def test_a_host_says_what_it_is(tmp_path, ssh, ask):
    ssh(SSHD.format(login=""))
    assert ask() == (["b"], [])
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    usable, (fault,) = ask("/no/python")
    assert not usable
    assert "no Python at /no/python: install" in fault


def test_sockets_of_a_run_that_was_killed_are_removed(tmp_path, ssh, ask, monkeypatch):
    monkeypatch.setattr(ssh_module, "SOCKETS", tmp_path)
    ssh(SSHD.format(login=""))
    for name in ("killed", "alive"):
        (tmp_path / f"rankbench-ssh.{name}").mkdir()
        (tmp_path / f"rankbench-ssh.{name}/lock").touch()
    with take_lock(tmp_path / "rankbench-ssh.alive/lock"):
        assert ask() == (["b"], [])
    left = [path.name for path in tmp_path.glob("rankbench-ssh.*")]
    assert left == ["rankbench-ssh.alive"]


@pytest.mark.parametrize(
    "login",
    [
        r"printf '\033]0;title\007'",
        "echo 42",
        """printf '{"exit": 1}'""",
        "printf '\\xff\\n'",
        "read x; :",
    ],
)
def test_what_a_login_script_prints_is_no_answer(ssh, ask, login):
    ssh(SSHD.format(login=login))
    assert ask() == (["b"], [])


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("exit 0", "the connection was closed"),
        ("echo 'Connection closed by b port 22'; exit 0", "Connection closed by b"),
        ("exec cat > /dev/null", "no answer within 0.5 s"),
    ],
)
def test_a_login_script_that_breaks_the_connection_is_named(
    monkeypatch, ssh, ask, login, said
):
    if "no answer" in said:
        monkeypatch.setattr(ssh_module, "ANSWER_SECONDS", 0.5)
    ssh(SSHD.format(login=login))
    _, (fault,) = ask()
    assert re.match(rf"b: .*{re.escape(said)}.*\.bashrc.*ssh b true", fault)


def test_waiting_for_the_first_answer_ends_at_ctrl_c(ssh, ask, monkeypatch):
    def stop() -> None:
        raise KeyboardInterrupt

    ssh("exec sleep 60")
    site = {"hosts": [{"name": "b"}], "shared": True, "results_dir": "."}
    needs = Needs(source=SOURCE, code="ab", data_dir=Path("/data"), native=True)
    waiting = Waiting(print, stop)
    with pytest.raises(KeyboardInterrupt), SshHosts.open(site, 1, needs, waiting):
        pass


def run_step(hosts: SshHosts, work: Path, script: str) -> tuple[int, str]:
    """Run a command by `ssh_step`: its exit code, and what was printed."""
    done = subprocess.run(
        hosts.step(["sh", "-c", script], Step(logs=work)),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_that_of_the_command(tmp_path, ssh, code):
    socket = ssh(SSHD.format(login=""))
    sessions = [session_of(name, tmp_path, sys.executable, socket) for name in "ab"]
    hosts = SshHosts(sessions, None)
    assert run_step(hosts, tmp_path / "work", f"exit {code}") == (code, "")


@pytest.mark.equipment
@pytest.mark.skipif(
    not shutil.which("rsync"), reason="rsync is not installed: apt-get install rsync"
)
@pytest.mark.parametrize("code", [0, 3])
def test_files_of_a_launch_go_to_a_host_and_come_back(tmp_path, ssh, code):
    work, cache = tmp_path / "launch/work", tmp_path / "cache"
    (work / "progress").mkdir(parents=True)
    (cache / "launches").mkdir(parents=True)
    (work / "launch.json").write_text("it\n")
    socket = ssh(SSHD.format(login=""))
    session = session_of("b", cache, sys.executable, socket)
    # It runs in the launch's folder of the host, whose paths it sees.
    script = (
        "pwd; cat work/launch.json; echo {} > work/rank0.json; echo log > rank0.log;"
        "touch -d @1 work/rank0.json;"
        f"echo host > launcher.log; exit {code}"
    )
    (tmp_path / "launch/launcher.log").write_text("ours\n")
    # It was fetched within the same second, before the rank has written all of it.
    (work / "rank0.json").write_text("??\n")
    os.utime(work / "rank0.json", (1, 1))
    found, said = run_step(SshHosts([session], {}), work, script)
    assert found == code, said
    assert re.match(rf"{cache}/launches/\w+\nit\n", said)
    assert (work / "launch.json").read_text() == "it\n"
    assert (work / "rank0.json").read_text() == "{}\n"
    assert (work / "../rank0.log").read_text() == "log\n"
    assert (work / "../launcher.log").read_text() == "ours\n"
    assert list((cache / "launches").iterdir()) == []


def test_each_scheduler_has_a_class_of_hosts():
    assert scheduler_of({}).name == "none"
    for name in SCHEDULERS:
        assert issubclass(hosts_of({"scheduler": name}), Hosts)
