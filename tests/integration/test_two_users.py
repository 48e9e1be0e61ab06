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
from datetime import timedelta
from pathlib import Path

import faulty_strategies
import pytest
from pretend_host import wait_until

from conftest import USER, Project, copy_project

pytestmark = [pytest.mark.integration, pytest.mark.equipment]

# The other user; nobody has an account everywhere.
NOBODY = pwd.getpwnam("nobody").pw_uid

EXPERIMENT = """
name: shared
strategy: slow
topology: 1x2
launcher: torchrun
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
    owner = pwd.getpwnam(USER)
    for path in (root, *root.rglob("*")):
        os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
    yield project
    project.kill_everything()


def open_to_all(user: int) -> list[int]:
    """Ports of a user that listen on every address, as the store of a rendezvous does.

    Gloo's ranks listen on one address; who asks them for a store waits until they end.
    """
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    places = [words[1].split(":") for words in lines if listens(words, user)]
    return [int(port, 16) for address, port in places if not address.strip("0")]


def listens(words: list[str], user: int) -> bool:
    """Whether a line of /proc/net/tcp is a socket of a user that waits for others."""
    return (words[3], words[7]) == ("0A", str(user))


def plant(port: int, place: Path) -> None:
    """Replace each pickle in the store of a rendezvous."""
    from torch.distributed import TCPStore

    patience = timedelta(seconds=30)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
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
    for folder, pattern in ((project, "**/*"), (Path(home, ".cache/rankbench"), "*")):
        for path in folder.glob(pattern):
            is_lock = path.suffix == ".lock" or path.name == "lock"
            try:
                if stat.S_ISREG(path.lstat().st_mode) and is_lock:
                    with open(path) as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        done.append(f"locked {path}")
                elif path.suffix == ".log" and "records" in path.parts:
                    text = path.read_text()
                    if not path.with_name("record.json").exists():
                        done.append(f"read {path}: {text!r:.80}")
            except OSError:
                continue
    with socket.socket(socket.AF_UNIX) as name:
        name.bind(f"\0rankbench-{user}")
    reached = open_to_all(user)
    for port in reached:
        plant(port, place)
    out.put((done, reached))


@pytest.mark.alone
def test_another_user_can_neither_stop_read_nor_run_anything(victim, open_tmp):
    import torch.distributed  # noqa: F401 (before the fork, to be quick in it)

    home = pwd.getpwnam(USER).pw_dir
    records = victim.root / "results/shared/records"
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    given = (victim.root, open_tmp, home, found)
    with victim.popen([*victim.user, *victim.argv()]) as run:
        wait_until(
            lambda: run.poll() is not None or [*records.glob("*/1/1/work/progress/*")],
            "ranks begin",
        )
        somebody = context.Process(target=attack, args=given)
        somebody.start()
        done, reached = found.get(timeout=600)
        somebody.join()
        said, _ = run.communicate(timeout=600)
    assert (run.returncode, done) == (0, []), said
    assert reached
    assert not (open_tmp / "owned").exists()
    table = (victim.root / "results/shared/table.csv").read_text()
    assert table.count(",ok,") == 1, table
    # When they are done, everybody may read them.
    logs = [*records.rglob("*.log")]
    assert logs
    assert all(log.stat().st_mode & stat.S_IROTH for log in logs)
