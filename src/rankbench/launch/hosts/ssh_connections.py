"""The connections of a job to the hosts of its site: checks, locks, copies."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rankbench.launch.hosts.machine_lock import Waiting
from rankbench.launch.hosts.ssh import Place, SshHosts
from rankbench.launch.hosts.ssh_copies import (
    FOLDER,
    Copies,
    Needs,
    places_of,
    this_environment,
)
from rankbench.launch.hosts.ssh_session import LostHost, Message, Remote, Session

LEAST_PYTHON = [3, 11]
MOST_PATH = 60  # bytes, so that the paths of sockets are short enough
LEAST_ROOM = 16 << 20  # bytes, for code and logs
ANOTHER = "name another interpreter (python in hosts of site.yaml)"


@dataclass
class Connection:
    """An open connection to a host.

    Attributes:
        session: with the agent that answers questions and holds the host's lock.
        facts: what the host has said of itself.
        remote: how launches reach it, with the interpreter that they use.
        copied: path here -> path in the folder of rankbench there, of what it got.
    """

    session: Session
    remote: Remote
    copied: dict[str, str] = field(default_factory=dict)
    facts: Message = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.remote.name


@dataclass(frozen=True)
class Connections:
    """Open connections to hosts.

    Attributes:
        by_name: name of a host -> its connection.
        shared: whether the hosts see this machine's files.
    """

    by_name: Mapping[str, Connection]
    shared: bool

    def hosts(self, names: Sequence[str]) -> SshHosts:
        """Return these hosts for a launch.

        Raises:
            ValueError: the connection to one of them has ended.
        """
        for name in names:
            try:
                self.by_name[name].session.get(timeout=0)
            except LostHost as error:
                raise ValueError(f"lost the host {name}: {error}") from error
        found = [self.by_name[name] for name in names]
        places = [Place(one.remote, one.facts["folder"], one.copied) for one in found]
        return SshHosts(places, self.shared)


@contextmanager
def connected(
    site: Mapping[str, Any], names: Sequence[str], needs: Needs, waiting: Waiting
) -> Iterator[Connections]:
    """Open hosts, lock them, and bring them what the job needs.

    Args:
        site: of the plan.
        names: the hosts, each once.
        needs: what must be there.
        waiting: how to wait for other measurements.

    Raises:
        ValueError: a host cannot be used; the message names host, cause and remedy.
    """
    with ExitStack() as stack:
        found, faults = _open(stack, site, names, needs, waiting)
        faults += _differing_images(found, needs) if site["shared"] else []
        if faults:
            raise ValueError("hosts in site.yaml: " + "; ".join(faults))
        # In the same order everywhere, so that two runs never wait for each other.
        for connection in sorted(found, key=lambda one: one.name):
            _lock(connection, waiting)
        if not site["shared"]:
            for connection in found:
                _bring(connection, site, needs, waiting)
        yield _connections(found, site)


@contextmanager
def inspected(
    site: Mapping[str, Any], needs: Needs, waiting: Waiting
) -> Iterator[tuple[Connections, list[str]]]:
    """Open all hosts that can be used, without their locks, and say what is wrong.

    Yields:
        The usable hosts, and the faults found so far, each with its remedy.
    """
    with ExitStack() as stack:
        names = [host["name"] for host in site["hosts"]]
        found, faults = _open(stack, site, names, needs, waiting)
        faults += _differing_images(found, needs, copied=not site["shared"])
        usable = []
        for connection in found:
            try:
                if not site["shared"]:
                    _bring(connection, site, replace(needs, images={}), waiting)
                usable.append(connection)
            except ValueError as error:
                faults.append(str(error))
        yield _connections(usable, site), faults


def _connections(found: Sequence[Connection], site: Mapping[str, Any]) -> Connections:
    return Connections({one.name: one for one in found}, site["shared"])


def _open(
    stack: ExitStack,
    site: Mapping[str, Any],
    names: Sequence[str],
    needs: Needs,
    waiting: Waiting,
) -> tuple[list[Connection], list[str]]:
    """Connect to all hosts at the same time; those without a fault, and the faults."""
    if shutil.which("ssh") is None:
        raise ValueError("this machine has no ssh: install OpenSSH's client")
    # Only this user may use the sockets. Their paths have at most 107 bytes.
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) < MOST_PATH else "/tmp"  # noqa: S108
    folder = tempfile.mkdtemp(prefix="rankbench-ssh.", dir=short)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    known = {host["name"]: host for host in site["hosts"]}
    look_for = _look_for(stack, site, needs) if site["shared"] else []
    opened = []
    for number, name in enumerate(names):
        remote = Remote(name, _pythons(known[name], site, needs), f"{folder}/{number}")
        session = Session(remote, first=True)
        stack.callback(session.close)
        waiting.spare(session.pid)
        session.send(do="hold", folder=FOLDER, look_for=look_for)
        session.keep_alive()
        opened.append(Connection(session, remote))
    usable, faults = [], []
    for connection in opened:
        waiting.told_to_stop()
        try:
            connection.facts = connection.session.receive()
        except LostHost as error:
            faults.append(f"{connection.name}: {error}")
            continue
        host = known[connection.name]
        chosen = host.get("python") or connection.facts["executable"]
        connection.remote = replace(connection.remote, pythons=(chosen,))
        found = list(_faults(connection, host, site, needs))
        faults += [f"{connection.name}: {fault}" for fault in found]
        usable += [] if found else [connection]
    return usable, faults + _twins(usable)


def _pythons(
    host: Mapping[str, Any], site: Mapping[str, Any], needs: Needs
) -> tuple[str, ...]:
    """Interpreters to try on a host, the best first."""
    if host.get("python"):
        return (host["python"],)
    environment = this_environment()
    if site["shared"] or environment is None:
        return (sys.executable,)
    # Any Python can copy an environment for native ranks, or start those of images.
    others = () if needs.native else ("python3",)
    return (sys.executable, environment.base, *others)


def _look_for(stack: ExitStack, site: Mapping[str, Any], needs: Needs) -> list[str]:
    """Files that hosts must see: those that are needed, and a new folder of results."""
    results = Path(site["results_dir"]).resolve()
    new = tempfile.mkdtemp(prefix=".shared.", dir=results)
    stack.callback(shutil.rmtree, new, ignore_errors=True)
    return [*(str(path) for path in needs.files() if path.exists()), new]


def _faults(
    connection: Connection,
    host: Mapping[str, Any],
    site: Mapping[str, Any],
    needs: Needs,
) -> Iterator[str]:
    """What is wrong with a host, with a remedy."""
    facts = connection.facts
    if facts["python"] < LEAST_PYTHON:
        there = ".".join(map(str, facts["python"]))
        yield f"its Python is {there}, and 3.11 is needed: {ANOTHER}"
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
    if needs.native and not _wants_environment(connection, host):
        yield from _differing_packages(facts["versions"])
    if not needs.native and not facts["apptainer"]:
        yield "has no Apptainer on PATH: install it there"


def _differing_packages(versions: Mapping[str, str | None]) -> Iterator[str]:
    here = {name: _version(name) for name in versions}
    differ = [name for name in versions if here[name] not in (None, versions[name])]
    if differ:
        have = [f"{n} {versions[n]}" if versions[n] else f"no {n}" for n in differ]
        wanted = " ".join(f"{name}=={here[name]}" for name in differ)
        yield (
            f"has {', '.join(have)}: install what this machine has, {wanted}, or "
            f"{ANOTHER}"
        )


def _wants_environment(connection: Connection, host: Mapping[str, Any]) -> bool:
    """Whether a host lacks the environment of this machine, and may get a copy."""
    environment = this_environment()
    return (
        environment is not None
        and not host.get("python")
        and connection.facts["executable"] != sys.executable
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _twins(found: Sequence[Connection]) -> list[str]:
    """Hosts that are the same machine under two names."""
    first: dict[tuple[str, str], str] = {}
    faults = []
    for one in found:
        machine = one.facts["hostname"], one.facts["boot"]
        if machine in first:
            faults.append(
                f"{one.name}: is the same machine as {first[machine]}: list it once, "
                "with all its devices"
            )
        first.setdefault(machine, one.name)
    return faults


def _differing_images(
    found: Sequence[Connection], needs: Needs, *, copied: bool = False
) -> list[str]:
    """Hosts that have another image at the path of one of the needed ones."""
    faults = []
    places = places_of(needs)
    for connection in found:
        folder = connection.facts["folder"]
        paths = {
            f"{folder}/{places[file]}" if copied else file: digest
            for file, digest in needs.images.items()
        }
        if not paths:
            continue
        try:
            hashes = connection.session.ask(do="hash", paths=list(paths))["hashes"]
        except LostHost as error:
            faults.append(f"{connection.name}: {error}")
            continue
        faults += [
            f"{connection.name}: {path} is another image (sha256 {hashes[path][:12]}, "
            f"expected {digest[:12]}): remove it there, or copy the right one"
            for path, digest in paths.items()
            if hashes[path] not in (None, digest)
        ]
    return faults


def _lock(connection: Connection, waiting: Waiting) -> None:
    """Wait for this user's other measurements on a host, then hold its lock."""
    connection.session.send(do="lock")
    while True:
        try:
            message = connection.session.get(timeout=0.5)
        except LostHost as error:
            raise ValueError(f"{connection.name}: {error}") from error
        if message is None:
            waiting.told_to_stop()
        elif message.get("busy"):
            waiting.say(
                f"  waiting: another measurement runs on the host {connection.name}"
            )
        elif message.get("locked"):
            return


def _bring(
    connection: Connection, site: Mapping[str, Any], needs: Needs, waiting: Waiting
) -> None:
    """Copy to a host what it lacks.

    Raises:
        ValueError: there is no room, or a copy fails.
    """
    copies = Copies(connection.session, connection.facts, waiting.say)
    connection.copied = copies.bring(needs)
    known = {host["name"]: host for host in site["hosts"]}
    if needs.native and _wants_environment(connection, known[connection.name]):
        environment = this_environment()
        assert environment is not None
        copies.bring_environment(environment)
        connection.copied[str(environment.prefix)] = environment.place
        python = f"{connection.facts['folder']}/{environment.place}/bin/python"
        connection.remote = replace(connection.remote, pythons=(python,))
