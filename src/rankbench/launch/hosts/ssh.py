"""Hosts that are reached by ssh: checks, locks, copies, and the hosts of a launch.

Copies lie in a folder of rankbench on the host, under the digest of their content, so
nothing is copied twice and nothing is overwritten that another run uses.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from rankbench.environ import for_ssh
from rankbench.launch.hosts.base import Hosts, Needs, Step, Waiting, choose_port
from rankbench.launch.hosts.ssh_agent import version_of
from rankbench.launch.hosts.ssh_session import LostHost, Session

FOLDER = "~/.cache/rankbench"  # of rankbench on each host
LEAST_PYTHON = [3, 11]
MOST_PATH = 60  # bytes, so that the paths of sockets are short enough
LEAST_ROOM = 16 << 20  # bytes, for code and logs
ANOTHER = "name another interpreter (python in hosts of site.yaml)"

_Site = Mapping[str, Any]


class SshHosts(Hosts):
    """Hosts of a site file, the first of which a launch uses."""

    start_within = 0.0
    # Agents first ask ranks to end, then kill them, then their files are fetched.
    end_within = 30.0
    is_here = False
    has_ssh = True

    def __init__(self, sessions: Sequence[Session], *, shared: bool) -> None:
        """Keep the connections to the hosts.

        Args:
            sessions: with the hosts, that of rank 0 first.
            shared: whether they see this machine's files at the same paths.
        """
        self.sessions, self.share_files = sessions, shared
        self.names = tuple(session.name for session in sessions)
        self.helpers = [session.pid for session in sessions]

    @classmethod
    @contextmanager
    def open(
        cls, site: _Site, nodes: int, needs: Needs, waiting: Waiting
    ) -> Iterator[Self]:
        listed = site["hosts"][:nodes]
        with ExitStack() as stack:
            found, faults = _connect(stack, site, listed, needs, waiting.heed)
            faults += _differing_images(found, needs) if site["shared"] else []
            if faults:
                raise ValueError("hosts in site.yaml: " + "; ".join(faults))
            # In the same order everywhere, so that two runs never wait for each other.
            # The agents hold the locks, since this machine need not be a host.
            for session in sorted(found, key=lambda session: session.name):
                _lock(session, waiting)
            if not site["shared"]:
                for session in found:
                    bring(session, needs, waiting.say)
            yield cls(found, shared=site["shared"])

    @classmethod
    @contextmanager
    def inspect(
        cls, site: _Site, needs: Needs
    ) -> Iterator[tuple[Self | None, list[str]]]:
        with ExitStack() as stack:
            found, faults = _connect(stack, site, site["hosts"], needs, lambda: None)
            faults += _differing_images(found, needs, copied=not site["shared"])
            usable = []
            for session in found:
                try:
                    if not site["shared"]:
                        bring(session, replace(needs, images={}), print)
                    usable.append(session)
                except ValueError as error:
                    faults.append(str(error))
            yield cls(usable, shared=site["shared"]) if usable else None, faults

    def choose(self, count: int, turn: int) -> SshHosts:
        chosen = self.sessions[:count]
        for session in chosen:
            try:
                session.get(timeout=0)
            except LostHost as error:
                raise ValueError(f"lost the host {error}") from error
        return SshHosts(chosen, shared=self.share_files)

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        facts = {
            "hosts": [
                {
                    "name": session.name,
                    "python": session.python,
                    "control": session.control,
                    "folder": session.facts["folder"],
                    "places": sorted(session.copied.items()),
                }
                for session in self.sessions
            ],
            "shared": self.share_files,
            "first_only": how.first_host_only,
            "work": str(how.logs),
        }
        module = "rankbench.launch.hosts.ssh_step"
        return [sys.executable, "-m", module, json.dumps(facts), "--", *argv]

    def port(self, serial: int) -> int:
        mine = zlib.crc32(f"{os.getuid()} {Path.cwd()} {os.getpid()}".encode())
        return choose_port(mine, serial)

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        return for_ssh(inherited)


def _connect(
    stack: ExitStack,
    site: _Site,
    listed: Sequence[Mapping[str, Any]],
    needs: Needs,
    heed: Callable[[], None],
) -> tuple[list[Session], list[str]]:
    """Connect to all hosts at the same time; those without a fault, and the faults."""
    if shutil.which("ssh") is None:
        raise ValueError("this machine has no ssh: install OpenSSH's client")
    # Only this user may use the sockets. Their paths have at most 107 bytes.
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) < MOST_PATH else "/tmp"  # noqa: S108
    folder = tempfile.mkdtemp(prefix="rankbench-ssh.", dir=short)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    look_for: list[str] = []
    if site["shared"]:
        # Hosts must see what is needed, and a new folder of results.
        new = tempfile.mkdtemp(
            prefix=".shared.", dir=Path(site["results_dir"]).resolve()
        )
        stack.callback(shutil.rmtree, new, ignore_errors=True)
        files = (needs.source, *needs.data, *needs.own, *map(Path, needs.images))
        look_for = [*(str(path) for path in files if path.exists()), new]
    opened = []
    for number, host in enumerate(listed):
        pythons = _pythons(host, site, needs)
        session = Session(host["name"], pythons, f"{folder}/{number}", first=True)
        stack.callback(session.close)
        session.send(do="hold", folder=FOLDER, look_for=look_for)
        session.keep_alive()
        opened.append(session)
    usable, faults = [], []
    for session in opened:
        heed()
        try:
            facts = session.get_first(heed)
        except LostHost as error:
            faults.append(str(error))
            continue
        tried, found = session.tried, facts["executable"]
        # An interpreter that the site file names is the only one that was tried.
        may_copy = sys.executable in tried and environment_place() is not None
        session.facts = {**facts, "copy": may_copy and found != sys.executable}
        session.python = tried[0] if len(tried) == 1 else found
        said = [f"{session.name}: {fault}" for fault in _faults(session, site, needs)]
        faults += said
        usable += [] if said else [session]
    first: dict[tuple[str, str], str] = {}
    for session in usable:
        machine = session.facts["hostname"], session.facts["boot"]
        if machine in first:
            faults.append(
                f"{session.name}: is the same machine as {first[machine]}: list it "
                "once, with all its devices"
            )
        first.setdefault(machine, session.name)
    return usable, faults


def _pythons(host: Mapping[str, Any], site: _Site, needs: Needs) -> tuple[str, ...]:
    """Interpreters to try on a host, the best first."""
    if host.get("python"):
        return (host["python"],)
    if site["shared"] or environment_place() is None:
        return (sys.executable,)
    # Any Python can copy an environment for native ranks, or start those of images.
    base = str(Path(sys.executable).resolve())
    return (sys.executable, base, *(() if needs.native else ("python3",)))


def _faults(session: Session, site: _Site, needs: Needs) -> Iterator[str]:
    """What is wrong with a host, with a remedy."""
    facts = session.facts
    if facts["python"] < LEAST_PYTHON:
        python = ".".join(map(str, facts["python"]))
        yield f"its Python is {python}, and 3.11 is needed: {ANOTHER}"
    if facts["fault"]:
        yield f"cannot write to {facts['fault']}: make room, or correct its owner"
    elif not site["shared"] and facts["free"] < LEAST_ROOM:
        free = facts["free"] >> 20
        yield f"has {free} MiB free in {facts['folder']}: make room there"
    unseen = [path for path, seen in facts["sees"].items() if not seen]
    if unseen:
        yield (
            f"does not see {unseen[-1]}: shared: true needs a folder that all hosts "
            "see at the same path; say shared: false, and rankbench copies"
        )
    if not site["shared"] and not facts["rsync"]:
        yield "has no rsync: install it (shared: false copies by it)"
    there = facts["versions"]
    here = {name: version_of(name) for name in there}
    differ = [name for name in there if here[name] not in (None, there[name])]
    if needs.native and not facts["copy"] and differ:
        have = [f"{n} {there[n]}" if there[n] else f"no {n}" for n in differ]
        wanted = " ".join(f"{name}=={here[name]}" for name in differ)
        yield (
            f"has {', '.join(have)}: install what this machine has, {wanted}, or "
            f"{ANOTHER}"
        )
    if not needs.native and not facts["apptainer"]:
        yield "has no Apptainer on PATH: install it there"


def _differing_images(
    found: Sequence[Session], needs: Needs, *, copied: bool = False
) -> list[str]:
    """Hosts that have another image at the path of one of the needed ones."""
    faults = []
    for session in found if needs.images else ():
        folder = session.facts["folder"]
        paths = {
            f"{folder}/images/{digest}.sif" if copied else file: digest
            for file, digest in needs.images.items()
        }
        try:
            hashes = session.ask(do="hash", paths=list(paths))["hashes"]
        except LostHost as error:
            faults.append(str(error))
            continue
        faults += [
            f"{session.name}: {path} is another image (sha256 {hashes[path][:12]}, "
            f"expected {digest[:12]}): remove it there, or copy the right one"
            for path, digest in paths.items()
            if hashes[path] not in (None, digest)
        ]
    return faults


def _lock(session: Session, waiting: Waiting) -> None:
    """Wait for this user's other measurements on a host, then hold its lock."""
    session.send(do="lock")
    while True:
        message = session.get(timeout=0.5)
        if message is None:
            waiting.heed()
        elif message.get("busy"):
            waiting.say(
                f"  waiting: another measurement runs on the host {session.name}"
            )
        elif message.get("locked"):
            return


@cache
def environment_place() -> str | None:
    """Path of a copy of this process's virtual environment, in the folder of rankbench.

    Its name is a digest of the names and versions of its packages. None if this process
    runs in no virtual environment.
    """
    if sys.prefix == sys.base_prefix:
        return None
    packages = sorted(
        f"{package.name}=={package.version}"
        for package in metadata.distributions(path=[sysconfig.get_path("purelib")])
    )
    base = str(Path(sys.executable).resolve())
    text = "\n".join([sys.prefix, base, sys.version, *packages])
    return f"environments/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def places_of(needs: Needs) -> dict[str, str]:
    """Path here -> path in the folder of rankbench on a host."""
    return {
        str(needs.source): f"code/{needs.code[:16]}",
        str(needs.data_dir): "data",
        **{str(folder): f"own/{folder.name}" for folder in needs.own},
        **{file: f"images/{digest}.sif" for file, digest in needs.images.items()},
    }


def bring(session: Session, needs: Needs, say: Callable[[str], None]) -> None:
    """Copy to a host what it lacks.

    Raises:
        ValueError: there is no room, or a copy fails.
    """
    folder = session.facts["folder"]
    there, places = f"{session.name}:{folder}", places_of(needs)
    session.copied = dict(places)
    code = f"{there}/{places[str(needs.source)]}/"
    rsync = session.rsync
    rsync(f"{needs.source}/rankbench", to=code)
    if needs.data:
        rsync(*map(str, needs.data), to=f"{there}/data/")
    if needs.own:
        rsync(*map(str, needs.own), to=f"{there}/own/")
    images = {f"{folder}/{places[file]}": file for file in needs.images}
    for path in _lacks(session, images):
        image = Path(images[path])
        size = image.stat().st_size
        _check_room(session, image, size)
        name = session.name
        say(f"  copying {image.name} ({size >> 20} MiB) to the host {name}")
        options = ("--archive", "--partial-dir=.part")
        rsync(str(image), to=f"{name}:{path}", options=options)
    environment = environment_place()
    if needs.native and environment and session.facts["copy"]:
        session.copied[sys.prefix] = environment
        path = f"{folder}/{environment}"
        session.python = f"{path}/bin/python"
        if not _lacks(session, [path]):
            return
        prefix = Path(sys.prefix)
        size = sum(file.lstat().st_size for file in prefix.rglob("*"))
        _check_room(session, prefix, size)
        say(f"  copying Python's packages ({size >> 20} MiB) to {session.name}")
        part = f"{path}.part"
        # Facts about this machine are cached in the folder `var`.
        options = ("--archive", "--exclude=/var")
        session.rsync(f"{prefix}/", to=f"{session.name}:{part}/", options=options)
        session.ask(do="move in", part=part, path=path, was=sys.prefix)


def _lacks(session: Session, paths: Iterable[str]) -> list[str]:
    asked = list(paths)
    there = session.ask(do="have", paths=asked)["have"] if asked else {}
    return [path for path in asked if not there[path]]


def _check_room(session: Session, file: Path, size: int) -> None:
    free = session.facts["free"]
    if size > free:
        raise ValueError(
            f"{session.name}: {file.name} has {size >> 20} MiB, and "
            f"{session.facts['folder']} has {free >> 20} MiB free: make room there"
        )
