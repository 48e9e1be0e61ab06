"""Another user of a host can do nothing to a launch but read it when it is done."""

from __future__ import annotations

import base64
import fcntl
import multiprocessing
import os
import pickle
import pwd
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import faulty_strategies
import pytest

from conftest import USER, Project, copy_project

pytestmark = [pytest.mark.integration, pytest.mark.equipment]

# The other user; nobody has an account everywhere.
NOBODY = pwd.getpwnam("nobody").pw_uid

EXPERIMENT = """
name: shared
strategy: [slow]
topology: 1x2
launcher: [torchrun, manual]
model: lenet
launches: 1
repeat_disturbed: false
steps: 60
warmup: 0
gate: false
"""


class Owned:
    """Leaves a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place / "owned",)


@pytest.fixture
def victim(
    open_tmp: Path, digits_file: Path, ordinary_user: list[str]
) -> Iterator[Project]:
    """A project of the ordinary user, with a scratch folder that all may write to."""
    if not ordinary_user:
        pytest.skip("acting as two users needs root")
    root = open_tmp / "victim"
    root.mkdir()
    project = copy_project(root)
    project.user = ordinary_user
    project.add_strategy("slow", faulty_strategies.SLOW)
    project.experiment(EXPERIMENT)
    (root / "data").mkdir()
    shutil.copy(digits_file, root / "data")
    with open(root / "local_profile/site.yaml", "a") as site:
        site.write(f"scratch: {open_tmp}\n")
    for path in (root, *root.rglob("*")):
        shutil.chown(path, USER, follow_symlinks=False)
    yield project
    project.kill_everything()


def listening(user: int) -> list[int]:
    """Ports on which processes of a user wait for connections."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [
        int(words[1].rpartition(":")[2], 16)
        for words in lines
        if (words[3], words[7]) == ("0A", str(user))
    ]


def plant(port: int, place: Path) -> None:
    """Replace each pickle in the store of a rendezvous."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    evil = base64.b64encode(pickle.dumps(Owned(place)))
    for key in store.list_keys():
        value = store.get(key)
        if value.startswith(base64.b64encode(b"\x80\x04")[:2]):
            store.set(key, evil)


def attack(project: Path, place: Path, home: str, out: multiprocessing.Queue) -> None:
    """As nobody: take locks, read logs, plant pickles; says what was possible."""
    user = project.stat().st_uid
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    done = []
    for folder in (project, Path(home, ".cache/rankbench")):
        for path in folder.rglob("*"):
            is_lock = path.suffix == ".lock" or path.name == "lock"
            try:
                if stat.S_ISREG(path.lstat().st_mode) and is_lock:
                    with open(path) as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        done.append(f"locked {path}")
                elif path.suffix == ".log" and "records" in path.parts:
                    done.append(f"read {path}: {path.read_text()!r:.80}")
            except OSError:
                continue
    with socket.socket(socket.AF_UNIX) as name:
        name.bind(f"\0rankbench-{user}")
    for port in listening(user):
        try:
            plant(port, place)
        except (OSError, RuntimeError):
            continue
    out.put(done)


@pytest.mark.alone
def test_another_user_can_neither_stop_read_nor_run_anything(victim, open_tmp):
    home = pwd.getpwnam(USER).pw_dir
    records = victim.root / "results/shared/records"
    context = multiprocessing.get_context("fork")
    with victim.start() as run:
        for launcher in ("slow.gloo.1x2.lenet.digits", "*manual"):
            progress = f"{launcher}/1/1/work/progress/*"
            victim.wait_for(lambda one=progress: len([*records.glob(one)]) == 2)
            found = context.Queue()
            who = context.Process(
                target=attack, args=(victim.root, open_tmp, home, found)
            )
            who.start()
            done = found.get(timeout=120)
            who.join()
            launch = next(records.glob(f"{launcher}/1/1"))
            assert not [what for what in done if str(launch) in what or "lock" in what]
        said, _ = run.communicate(timeout=240)
    assert run.returncode == 0, said
    assert not (open_tmp / "owned").exists()
    table = (victim.root / "results/shared/table.csv").read_text()
    assert table.count(",ok,") == 2, table
    # When they are done, everybody may read them.
    logs = [*records.rglob("*.log")]
    assert logs
    assert all(log.stat().st_mode & stat.S_IROTH for log in logs)
