"""Hosts that ssh reaches: site files, commands, paths on other hosts, copies."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from factories import make_cell, make_site
from rankbench.environ import for_hosts, read_node
from rankbench.launch.hosts import ssh_session
from rankbench.launch.hosts.base import Hosts, Needs, Step, hosts_of
from rankbench.launch.hosts.ssh import SshHosts, places_of
from rankbench.launch.hosts.ssh_agent import environment_of, move_in
from rankbench.launch.hosts.ssh_session import LostHost, Session
from rankbench.launch.hosts.ssh_step import translate
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.feasible import find_obstacle
from rankbench.matrix.site import Site, read_site, use_hosts
from rankbench.rank.world.own_ssh import ENVIRONMENT, real_ssh
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


def session_of(
    name: str, folder: str | Path, python: str, control: str, **copied: str
) -> SimpleNamespace:
    """A host as the steps of a launch need it, which no ssh has reached."""
    facts = {"folder": str(folder)}
    found = {"name": name, "pid": 1, "python": python, "control": control}
    return SimpleNamespace(**found, facts=facts, copied=copied)


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


@pytest.mark.parametrize("line", ["slots=2", "a slots=x", "a slots=1 weight=2", "a 2"])
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
    assert ([host["name"] for host in site.hosts], site.nodes) == (["b"], 1)
    assert use_hosts(ssh_site(), None).nodes == 2
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


def test_the_step_is_a_program_with_what_it_needs(tmp_path):
    session = session_of("a", "/h/.cache", "/py", "/s/0", **{"/src": "code/1"})
    hosts = SshHosts([session], shared=False)
    how = Step(logs=tmp_path, first_host_only=True)
    program, _, module, facts, dashes, *command = hosts.step(["run", "me"], how)
    assert (program, module) == (sys.executable, "rankbench.launch.hosts.ssh_step")
    assert (dashes, command) == ("--", ["run", "me"])
    assert json.loads(facts) == {
        "hosts": [
            {
                "name": "a",
                "python": "/py",
                "control": "/s/0",
                "folder": "/h/.cache",
                "places": [["/src", "code/1"]],
            }
        ],
        "shared": False,
        "first_only": True,
        "work": str(tmp_path),
    }
    assert hosts.names == ("a",)
    assert len({hosts.port(serial) for serial in range(50)}) == 50
    assert all(20000 <= hosts.port(serial) < 32000 for serial in range(50))
    assert not hosts.share_files


def test_paths_are_those_of_the_other_host():
    places = [("/p/src", "/c/code"), ("/p", "/c/p"), ("/p/src/x", "/y")]
    text = "/p/src:/p/src/x.py -I/p/srcs a=/p/data '/p' /q/p/src"
    assert translate(text, places) == (
        "/c/code:/y.py -I/p/srcs a=/c/p/data '/c/p' /q/p/src"
    ).replace("/y.py", "/c/code/x.py")


def test_a_backslash_in_a_path_is_no_escape():
    assert translate("/p", [("/p", r"/a\1b")]) == r"/a\1b"


def test_the_number_of_a_host_and_its_variables():
    env = for_hosts(1, {"PATH": "/bin", "SSH_AUTH_SOCK": "/s", "XDG_RUNTIME_DIR": "/r"})
    assert env == {"PATH": "/bin", "RANKBENCH_NODE": "1"}
    assert read_node(env) == 1
    assert read_node({"SLURM_NODEID": "2", "RANKBENCH_NODE": "1"}) == 2


def test_programs_of_the_other_host_come_first(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/users/b")
    order = {"env": {"PATH": "/a/bin:/usr/bin", "HOME": "/users/a"}, "mark": "m"}
    env = environment_of(order)
    beside = str(Path(sys.executable).parent)
    assert env["PATH"] == f"{beside}:/a/bin:/usr/bin:/bin"
    assert (env["HOME"], env["RANKBENCH_LAUNCH"]) == ("/users/b", "m")


def test_programs_of_a_copied_environment_run_its_python(tmp_path):
    part, path = tmp_path / "e.part", tmp_path / "e"
    (part / "bin").mkdir(parents=True)
    (part / "bin/python").symlink_to("/usr/bin/python3")
    (part / "bin/torchrun").write_text("#!/was/.venv/bin/python\nimport torch\n")
    (part / "bin/other").write_text("#!/was/.venvs/bin/python\n")
    move_in({"part": str(part), "path": str(path), "was": "/was/.venv"})
    assert (path / "bin/torchrun").read_text() == f"#!{path}/bin/python\nimport torch\n"
    assert (path / "bin/other").read_text() == "#!/was/.venvs/bin/python\n"
    assert os.readlink(path / "bin/python") == "/usr/bin/python3"


def test_copies_lie_under_their_digest(tmp_path):
    needs = Needs(
        source=tmp_path / "src",
        code="ab" * 32,
        data_dir=tmp_path / "data",
        images={"/images/gloo-cpu.sif": "cd" * 32},
        native=False,
    )
    assert places_of(needs) == {
        f"{tmp_path}/src": "code/" + "ab" * 8,
        f"{tmp_path}/data": "data",
        "/images/gloo-cpu.sif": f"images/{'cd' * 32}.sif",
    }


# As sshd does: the user's shell runs the command, whatever ssh's options are.
SSHD = """
while :; do case "$1" in -o|-S) shift 2;; -*) shift;; *) break;; esac; done
shift
{login}
exec sh -c "$*"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Replaces ssh; returns the path of a socket."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def install(script: str) -> str:
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return str(tmp_path / "socket")

    return install


def test_ssh_that_fails_says_why_and_what_to_do(ssh):
    socket = ssh("echo 'me@b: Permission denied (publickey).' >&2\nexit 255")
    session = Session("b", ["python3"], socket)
    with pytest.raises(LostHost, match="wants a password: let `ssh-copy-id b`"):
        session.receive()
    session.close()


def test_an_agent_runs_in_the_first_python_that_is_there(tmp_path, ssh):
    socket = ssh(SSHD.format(login=""))
    session = Session("b", ["/no/python", sys.executable], socket)
    session.send(do="hold", folder=str(tmp_path / "cache"), look_for=["/", "/none"])
    facts = session.receive()
    assert facts["executable"] == sys.executable
    assert facts["sees"] == {"/": True, "/none": False}
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert session.ask(do="have", paths=["/", "/none"])["have"] == facts["sees"]
    session.close()
    none = Session("b", ["/no/python"], socket)
    with pytest.raises(LostHost, match="no Python at /no/python: install"):
        none.receive()
    none.close()


@pytest.mark.parametrize(
    "login",
    [
        r"printf '\033]0;title\007'",
        "echo 42",
        """echo '{"exit": 1}'""",
        """printf '{"exit": 1}'""",
        "printf '\\xff\\n'",
    ],
)
def test_what_a_login_script_prints_is_no_answer(tmp_path, ssh, login):
    socket = ssh(SSHD.format(login=login))
    session = Session("b", [sys.executable], socket, first=True)
    session.send(do="hold", folder=str(tmp_path / "cache"), look_for=[])
    facts = session.get_first(lambda: None)
    assert facts["executable"] == sys.executable
    session.close()


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("read x", "has read the input"),
        ("exit 0", "the connection was closed"),
        ("echo bye; exit 0", "bye"),
        ("cat > /dev/null", r"no answer within 0\.5 s"),
    ],
)
def test_a_login_script_that_breaks_the_connection_is_named(
    monkeypatch, ssh, login, said
):
    monkeypatch.setattr(ssh_session, "ANSWER_SECONDS", 0.5)
    session = Session("b", [sys.executable], ssh(SSHD.format(login=login)), first=True)
    session.send(do="hold", folder="/none", look_for=[])
    with pytest.raises(LostHost, match=rf"b: .*{said}.*\.bashrc.*ssh b true"):
        session.get_first(lambda: None)
    session.close(patience=0.1)


def test_waiting_for_the_first_answer_ends_at_ctrl_c(ssh):
    def stop() -> None:
        raise KeyboardInterrupt

    session = Session("b", [sys.executable], ssh("cat > /dev/null"), first=True)
    with pytest.raises(KeyboardInterrupt):
        session.get_first(stop)
    session.close(patience=0.1)


@pytest.mark.parametrize(("code", "first_only"), [(0, True), (3, True), (0, False)])
def test_the_exit_code_is_that_of_hosts_that_run_the_command(
    tmp_path, ssh, code, first_only
):
    """Hosts that only wait for the first one's launcher are ended; it is no fault."""
    (tmp_path / "work").mkdir()
    socket = ssh(SSHD.format(login=""))
    sessions = [session_of(name, tmp_path, sys.executable, socket) for name in "ab"]
    how = Step(logs=tmp_path / "work", first_host_only=first_only)
    argv = SshHosts(sessions, shared=True).step(["sh", "-c", f"exit {code}"], how)
    done = subprocess.run(argv, timeout=60, check=False)
    assert done.returncode == code


def test_a_host_may_have_singularity_alone(tmp_path, ssh):
    (tmp_path / "singularity").write_text("#!/bin/sh\necho ran $*\n")
    (tmp_path / "singularity").chmod(0o755)
    (tmp_path / "sh").symlink_to("/bin/sh")
    login = f"export PATH={tmp_path}"
    session = Session("b", [sys.executable], ssh(SSHD.format(login=login)))
    env, argv = {"PATH": str(tmp_path)}, ["apptainer", "exec", "i.sif"]
    session.send(do="run", argv=argv, env=env, mark="m", launch=None)
    said = b""
    while "exit" not in (message := session.receive()):
        said += base64.b64decode(message["out"])
    session.close()
    assert said == b"ran exec i.sif\n"


@pytest.mark.equipment
@pytest.mark.skipif(
    not shutil.which("rsync"), reason="rsync is not installed: apt-get install rsync"
)
@pytest.mark.parametrize("code", [0, 3])
def test_files_of_a_launch_go_to_a_host_and_come_back(tmp_path, ssh, code):
    work, cache = tmp_path / "launch/work", tmp_path / "cache"
    (work / "progress").mkdir(parents=True)
    (cache / "launches").mkdir(parents=True)
    (work / "launch.json").write_text(f"in {work}")
    socket = ssh(SSHD.format(login=""))
    session = session_of("b", cache, sys.executable, socket)
    hosts = SshHosts([session], shared=False)
    # It runs in the launch's folder of the host, whose paths it sees.
    script = (
        "cat work/launch.json; echo; echo {} > work/rank0.json; echo log > rank0.log;"
        f"echo host > launcher.log; exit {code}"
    )
    (tmp_path / "launch/launcher.log").write_text("ours\n")
    done = subprocess.run(
        hosts.step(["sh", "-c", script], Step(logs=work)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert done.stdout.startswith(f"in {cache}/launches/")
    assert (work / "launch.json").read_text() == f"in {work}"
    assert (work / "rank0.json").read_text() == "{}\n"
    assert (work / "../rank0.log").read_text() == "log\n"
    assert (work / "../launcher.log").read_text() == "ours\n"
    assert list((cache / "launches").iterdir()) == []


def test_launchers_reach_others_by_the_users_ssh(tmp_path, monkeypatch):
    """Options that would switch off the check of host keys are dropped."""
    became: list[list[str]] = []

    def become(program: str, argv: list[str]) -> None:
        became.append([program, *argv])
        raise SystemExit

    environment = {"A": "b c", "HOME": "/users/a", "SSH_AUTH_SOCK": "/s"}
    (tmp_path / ENVIRONMENT).write_text(json.dumps(environment))
    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setattr("shutil.which", lambda name, path: f"/usr/bin/{name}")
    with pytest.raises(SystemExit):
        real_ssh(tmp_path, "b", "cd /x; run 'y z'")
    assert became == [
        [
            "/usr/bin/ssh",
            "/usr/bin/ssh",
            *("-T", "-o", "BatchMode=yes", "--", "b"),
            """exec env 'A=b c' sh -c 'cd /x; run '"'"'y z'"'"''""",
        ]
    ]


def test_each_scheduler_has_a_class_of_hosts():
    assert scheduler_of({}).name == "none"
    for name in SCHEDULERS:
        assert issubclass(hosts_of({"scheduler": name}), Hosts)
