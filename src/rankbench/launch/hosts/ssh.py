"""Hosts that are reached by ssh: checks, locks, copies, and the hosts of a launch.

Copies lie in a folder of rankbench on the host, under the digest of their content, so
nothing is copied twice and nothing is overwritten that another run uses.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from rankbench.environ import for_ssh, version_of
from rankbench.launch.hosts.base import (
    Hosts,
    Needs,
    Step,
    Waiting,
    container_program,
    run_to_end,
    take_lock,
)
from rankbench.launch.hosts.ssh_host import BUSY
from rankbench.launch.hosts.ssh_step import COPY_SECONDS, Connection, close
from rankbench.launch.processes import spared
from rankbench.launch_spec import LaunchSpec, choose_port

FOLDER = "~/.cache/rankbench"  # of rankbench on each host
SOCKETS = Path("/tmp")  # noqa: S108 (other folders may have too long a path)
LEAST_PYTHON = [3, 11]
LEAST_ROOM = 16 << 20  # bytes, for code and logs
ANSWER_SECONDS = 60.0  # for the first answer
BEAT_SECONDS = 2.0
ANOTHER = "name another interpreter (python in hosts of site.yaml)"

PROBE = Path(__file__).with_name("ssh_probe.py")
# Runs the probe in the first of several interpreters that is there.
_FIND = (
    'probe="$0" folder="$1" paths="$2"; shift 2; for python; do '
    'command -v "$python" >/dev/null && exec "$python" -I -c "$probe" "$folder" '
    '"$paths"; done; echo "no Python at $*" >&2; exit 127'
)
# The programs of a virtual environment name its Python in their first line.
_MOVE_IN = (
    '[ -e "$1" ] || { find "$0/bin" -type f -exec sed -i "1s|^#!$2/|#!$1/|" {} + && '
    'mv -T "$0" "$1"; }'
)

_Site = Mapping[str, Any]


@dataclass(slots=True)
class Session(Connection):
    """A host that is held for as long as this object is open.

    Attributes:
        facts: what the host has said of itself.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str]) -> None:
        """Run a program of the host, in place of the one before."""
        self.close()
        with open(self.log, "wb") as log:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the program that has opened the connection.
                start_new_session=True,
            )
        spared.add(process.pid)

        def beat() -> None:
            assert process.stdin is not None
            with contextlib.suppress(OSError, ValueError):
                while process.poll() is None:
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                    time.sleep(BEAT_SECONDS)

        threading.Thread(target=beat, daemon=True).start()

    def answer(
        self, heed: Callable[[], None], *, after: int = 0, seconds: float | None = None
    ) -> str:
        """Return what the program of the host answers.

        Args:
            heed: raises if waiting must end.
            after: how many answers were there before.
            seconds: that it has; None for `ANSWER_SECONDS`.

        Raises:
            ValueError: the program has ended, or has not answered in time.
        """
        assert self._process is not None
        seconds = seconds or ANSWER_SECONDS
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll() is not None
            said = self.log.read_text(errors="replace")
            found: list[str] = re.findall("\x1e(.*?)\x1e", said)
            if len(found) > after:
                return found[after]
            late = time.monotonic() > deadline
            if ended or late:
                why = f"no answer within {seconds:g} s" if late else ""
                raise ValueError(self.explain(said, why, answered=bool(self.facts)))
            heed()
            time.sleep(0.05)

    def hold(self, say: Callable[[str], None], heed: Callable[[], None]) -> None:
        """Hold the lock of the host; wait for other measurements there.

        Raises:
            ValueError: the host is lost, or does not answer.
        """
        self.start(self.run_module("hold", self.facts["folder"], first=True))
        if self.answer(heed) == BUSY:
            say(f"  waiting: another measurement runs on the host {self.name}")
            self.answer(heed, after=1, seconds=math.inf)

    @property
    def is_open(self) -> bool:
        """Whether the connection is not lost."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End the connection, and with it what it holds."""
        if self._process is not None:
            close(self._process)
            spared.discard(self._process.pid)
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def log(self) -> Path:
        """What the program has printed."""
        return Path(f"{self.control}.log")


class SshHosts(Hosts):
    """Hosts of a site file, the first of which a launch uses."""

    # Hosts first ask ranks to end, then kill them, then their files are fetched.
    end_within = 30.0

    def __init__(
        self,
        sessions: Sequence[Session],
        places: Mapping[str, str] | None,
        faults: Sequence[str] = (),
    ) -> None:
        """Keep the connections to the hosts.

        Args:
            sessions: with the hosts, that of rank 0 first.
            places: as of `places_of`; None if they see this machine's files at the same
                paths.
            faults: of other hosts.
        """
        self.sessions, self._places, self.faults = sessions, places, faults
        self.share_files = places is None
        self.names = tuple(session.name for session in sessions)

    @classmethod
    @contextmanager
    def open(
        cls, site: _Site, nodes: int, needs: Needs, waiting: Waiting | None
    ) -> Iterator[Self]:
        say, heed = waiting or Waiting(print, lambda: None)
        places = None if site["shared"] else places_of(needs)
        with ExitStack() as stack:
            listed = site["hosts"][:nodes]
            found, faults = _connect(stack, site, listed, needs, heed)
            if waiting is None or site["shared"]:
                images = {(places or {}).get(f, f): d for f, d in needs.images.items()}
                faults += _differing_images(found, images)
            if waiting and faults:
                raise ValueError("hosts in site.yaml: " + "; ".join(faults))
            # In the same order everywhere, so that two runs never wait for each other.
            # The hosts hold the locks, since this machine need not be one.
            for session in sorted(found, key=lambda s: s.name) if waiting else ():
                session.hold(say, heed)
            for session in found if waiting and not site["shared"] else ():
                bring(session, needs, say)
            yield cls(found, places, faults)

    def choose(self, count: int, turn: int) -> SshHosts:
        chosen = self.sessions[:count]
        for session in chosen:
            if not session.is_open:
                said = session.explain(session.log.read_text(errors="replace"))
                raise ValueError(f"lost the host {said}")
        return SshHosts(chosen, self._places)

    def place(self, spec: LaunchSpec) -> LaunchSpec:
        image = spec.image
        if image:
            image = {**image, "file": str(self._there(Path(image["file"])))}
        return replace(
            spec,
            directory=self._there(spec.directory),
            source=self._there(spec.source),
            data_dir=self._there(spec.data_dir),
            own={kind: self._there(file) for kind, file in spec.own.items()},
            image=image,
        )

    def step(self, argv: Sequence[str], how: Step) -> list[str]:
        launch = how.logs.parent
        facts = {
            "hosts": [
                {each.name: getattr(session, each.name) for each in fields(Connection)}
                for session in self.sessions
            ],
            "launch": str(launch),
            "there": str(self._there(launch)),
        }
        module = "rankbench.launch.hosts.ssh_step"
        return [sys.executable, "-m", module, json.dumps(facts), "--", *argv]

    def port(self, serial: int) -> int:
        mine = zlib.crc32(f"{os.getuid()} {Path.cwd()} {os.getpid()}".encode())
        return choose_port(mine, serial)

    def variables(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        return for_ssh(inherited)

    def _there(self, path: Path) -> Path:
        """The path on the hosts of a file, or of the folder of a launch."""
        if self._places is None:
            return path
        folder = Path(self.sessions[0].facts["folder"])
        for here, there in self._places.items():
            if path.is_relative_to(here):
                return folder / there / path.relative_to(here)
        return folder / "launches" / f"{zlib.crc32(os.fsencode(path)):08x}"


def places_of(needs: Needs) -> dict[str, str]:
    """Path here -> path in the folder of rankbench on a host that shares no files."""
    return {
        str(needs.source): f"code/{needs.code[:16]}",
        str(needs.data_dir): "data",
        **{str(folder): f"own/{folder.name}" for folder in needs.own},
        **{file: f"images/{digest}.sif" for file, digest in needs.images.items()},
    }


def _connect(
    stack: ExitStack,
    site: _Site,
    listed: Sequence[Mapping[str, Any]],
    needs: Needs,
    heed: Callable[[], None],
) -> tuple[list[Session], list[str]]:
    """Ask all hosts at the same time; those without a fault, and the faults."""
    if shutil.which("ssh") is None:
        raise ValueError("this machine has no ssh: install OpenSSH's client")
    for left in SOCKETS.glob("rankbench-ssh.*/lock"):
        with contextlib.suppress(OSError):  # another user's
            if lock := take_lock(left):
                # Its run was killed.
                shutil.rmtree(left.parent)
                lock.close()
    # Only this user may use the sockets. Their paths have at most 107 bytes.
    # A run that starts must not find one without its lock.
    made = Path(tempfile.mkdtemp(prefix=".rankbench-ssh.", dir=SOCKETS))
    held = take_lock(made / "lock")
    assert held is not None
    folder = made.rename(made.with_name(made.name[1:]))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stack.callback(held.close)
    environment = environment_place()
    look_for = [*places_of(needs).values(), *([environment] if environment else [])]
    if site["shared"]:
        # Hosts must see what is needed, and a new folder of results.
        results = Path(site["results_dir"]).resolve()
        new = tempfile.mkdtemp(prefix=".shared.", dir=results)
        stack.callback(shutil.rmtree, new, ignore_errors=True)
        files = (needs.source, *needs.data, *needs.own, *map(Path, needs.images))
        look_for = [*(str(path) for path in files if path.exists()), new]
    probe = ("sh", "-c", _FIND, PROBE.read_text(), FOLDER, json.dumps(look_for))
    asked = []
    for number, host in enumerate(listed):
        session = Session(host["name"], f"{folder}/{number}")
        stack.callback(session.close)
        asked.append((session, _pythons(host, site, needs)))
        session.start(session.command(*probe, *asked[-1][1]))
    usable: list[Session] = []
    faults = []
    program = container_program() or "apptainer"
    for session, pythons in asked:
        try:
            session.facts = facts = json.loads(session.answer(heed))
            executable = facts["executable"]
            # An interpreter that the site file names is the only one that was tried.
            session.python = pythons[0] if len(pythons) == 1 else executable
            session.words = {
                sys.executable: session.python,
                program: facts["container"] or program,
            }
            copies = sys.executable in pythons and executable != sys.executable
            facts["copied"] = None
            if needs.native and copies:
                facts["copied"] = f"{facts['folder']}/{environment}"
            if said := list(_faults(session, site, needs, usable)):
                raise ValueError("; ".join(f"{session.name}: {each}" for each in said))
            session.source = str(needs.source)
            if not site["shared"]:
                code = places_of(needs)[session.source]
                session.source = f"{facts['folder']}/{code}"
                to = f"{session.name}:{session.source}/"
                session.rsync(f"{needs.source}/rankbench", to=to)
            usable.append(session)
        except ValueError as error:
            faults.append(str(error))
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


def _faults(
    session: Session, site: _Site, needs: Needs, others: Sequence[Session]
) -> Iterator[str]:
    """What is wrong with a host, with a remedy.

    Args:
        others: hosts that can be used.
    """
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
    if site["shared"] and unseen:
        yield (
            f"does not see {unseen[-1]}: shared: true needs a folder that all hosts "
            "see at the same path; say shared: false, and rankbench copies"
        )
    if not site["shared"] and not facts["rsync"]:
        yield "has no rsync: install it (shared: false copies by it)"
    there = facts["versions"]
    here = {name: version_of(name) for name in there}
    differ = [name for name in there if here[name] not in (None, there[name])]
    if needs.native and not facts["copied"] and differ:
        have = [f"{n} {there[n]}" if there[n] else f"no {n}" for n in differ]
        wanted = " ".join(f"{name}=={here[name]}" for name in differ)
        yield (
            f"has {', '.join(have)}: install what this machine has, {wanted}, or "
            f"{ANOTHER}"
        )
    if not needs.native and not facts["container"]:
        yield "has no Apptainer on PATH: install it there"
    for other in others:
        if all(facts[key] == other.facts[key] for key in ("hostname", "boot")):
            yield (
                f"is the same machine as {other.name}: list it once, with all its "
                "devices"
            )
        elif not site["shared"] and facts["folder"] != other.facts["folder"]:
            yield (
                f"has the folder of rankbench at {facts['folder']}, and {other.name} "
                f"at {other.facts['folder']}: ranks need the same path on all hosts "
                "(the same home), or a folder that all see (shared: true)"
            )


def _differing_images(found: Sequence[Session], images: Mapping[str, str]) -> list[str]:
    """Hosts that have another image at the path of one of the needed ones.

    Args:
        found: the hosts.
        images: path there, maybe below the folder of rankbench -> expected SHA-256.
    """
    faults = []
    for session in found if images else ():
        folder = session.facts["folder"]
        wanted = {os.path.join(folder, path): images[path] for path in images}
        command = session.command("sha256sum", "--", *wanted)
        # Images that are not there yet have no line.
        for line in run_to_end(command, timeout=COPY_SECONDS).stdout.splitlines():
            digest, path = line[:64], line[66:]
            if digest != wanted.get(path, digest):
                faults.append(
                    f"{session.name}: {path} is another image (sha256 {digest[:12]}, "
                    f"expected {wanted[path][:12]}): remove it there, or copy the "
                    "right one"
                )
    return faults


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


def bring(session: Session, needs: Needs, say: Callable[[str], None]) -> None:
    """Copy to a host what it lacks of data, own files, images and packages.

    Raises:
        ValueError: there is no room, or a copy fails.
    """
    folder, name = session.facts["folder"], session.name
    for place, files in (("data", needs.data), ("own", needs.own)):
        if files:
            session.rsync(*map(str, files), to=f"{name}:{folder}/{place}/")
    for file, digest in needs.images.items():
        place, image = f"images/{digest}.sif", Path(file)
        if not session.facts["sees"][place]:
            size = image.stat().st_size
            say(f"  copying {image.name} ({size >> 20} MiB) to the host {name}")
            options = ("--archive", "--partial-dir=.part")
            session.rsync(file, to=f"{name}:{folder}/{place}", options=options)
    if copied := session.facts["copied"]:
        _bring_packages(session, copied, say)
        session.python = f"{copied}/bin/python"
        session.words |= {sys.executable: session.python, sys.prefix: copied}


def _bring_packages(session: Session, path: str, say: Callable[[str], None]) -> None:
    """Copy this process's virtual environment to a host, for its ranks."""
    prefix = Path(sys.prefix)
    if not session.facts["sees"][environment_place()]:
        size = 0
        for file in prefix.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # Other processes compile.
                size += file.lstat().st_size
        say(f"  copying Python's packages ({size >> 20} MiB) to {session.name}")
        # Facts about this machine are cached in the folder `var`.
        options = ("--archive", "--exclude=/var")
        part = f"{path}.part"
        session.rsync(f"{prefix}/", to=f"{session.name}:{part}/", options=options)
        words = (_MOVE_IN, part, path, sys.prefix)
        done = run_to_end(session.command("sh", "-c", *words), timeout=COPY_SECONDS)
        if done.returncode:
            raise ValueError(session.explain(done.stderr))
