"""Runs a command on hosts that are reached by ssh, as srun does in a Slurm job.

python -m rankbench.launch.hosts.ssh_step FACTS -- COMMAND

FACTS are those of `SshHosts.step`. The command runs once on each host, or on the first
one only. Its output is this program's output. If the command fails on a host, or the
connection to a host is lost, it is ended on the others.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rankbench.environ import for_hosts
from rankbench.launch.hosts.ssh_session import LostHost, Message, Remote, Session

BEAT_SECONDS = 0.5
# Seconds that hosts have to end a command, and to send their files.
END_SECONDS = 40.0
LOST = "lost the host {host}: {why}"
REFUSED = "the host {host} refuses: {why}"

# Files that the supervisor writes, and no host.
_OURS = ("claim.json", "record.json", "launcher.log", "steps.npz")


class Ended(Exception):
    """This program is told to end."""


def main() -> int:
    at = sys.argv.index("--")
    facts, argv = json.loads(sys.argv[1]), sys.argv[at + 1 :]
    signal.signal(signal.SIGTERM, _stop)
    step = Step(facts, argv)
    try:
        return step.run()
    except Ended:
        step.end()
        return 128 + signal.SIGTERM


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Ended


class Step:
    """A command that runs on several hosts."""

    def __init__(self, facts: Mapping[str, Any], argv: Sequence[str]) -> None:
        self._facts, self._argv = facts, list(argv)
        self._work = Path(facts["work"])
        self._beat = self._work / "heartbeat"
        self._sessions: list[Session] = []
        self._codes: dict[str, int] = {}
        self._changed = threading.Condition()

    def run(self) -> int:
        """Run the command to its end; return the first exit code that is not 0."""
        mark = secrets.token_hex(8)
        for node, host in enumerate(self._facts["hosts"]):
            remote = Remote(host["name"], (host["python"],), host["control"])
            session = Session(remote)
            self._sessions.append(session)
            session.send(**self._order(node, host, mark))
            threading.Thread(target=self._follow, args=(session,), daemon=True).start()
        parent = os.getppid()
        while True:
            with self._changed:
                self._changed.wait_for(self._is_decided, BEAT_SECONDS)
                if self._is_decided():
                    break
            if os.getppid() != parent:
                raise Ended
            self._tell()
        self.end()
        return next((code for code in self._codes.values() if code), 0)

    def end(self) -> None:
        """End the command on all hosts, and wait until nothing of it is left there."""
        for session in self._sessions:
            session.send(do="end")
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._codes) == len(self._sessions), END_SECONDS
            )
        for session in self._sessions:
            session.close()

    def _is_decided(self) -> bool:
        """Whether the command has failed on a host, or ended on all that run it."""
        runs = self._facts["hosts"][: 1 if self._facts["first_only"] else None]
        return any(self._codes.values()) or all(h["name"] in self._codes for h in runs)

    def _tell(self) -> None:
        """Send the supervisor's heartbeat, as the hosts that share files see it."""
        try:
            beat = self._beat.read_text()
        except OSError:
            beat = ""
        for session in self._sessions:
            session.send(do="beat", beat=beat)

    def _order(self, node: int, host: Mapping[str, Any], mark: str) -> Message:
        """What the agent of a host is to do."""
        places = [*host["places"]]
        mirror = None
        folders: list[str] = []
        files: dict[str, str] = {}
        launch = self._work.parent
        if not self._facts["shared"]:
            mirror = f"{host['folder']}/launches/{mark}"
            places = [(here, f"{host['folder']}/{there}") for here, there in places]
            places.append((str(launch), mirror))
        places.append((sys.executable, host["python"]))
        if mirror:
            folders, files = _collect(launch, self._work, places)
        env = {key: translate(value, places) for key, value in for_hosts(node).items()}
        silent = node > 0 and self._facts["first_only"]
        return {
            "do": "run",
            "argv": [] if silent else [translate(word, places) for word in self._argv],
            "env": env,
            "mark": mark,
            "mirror": mirror,
            "folders": folders,
            "files": files,
        }

    def _follow(self, session: Session) -> None:
        """Pass on the output of a host and its files, until its command has ended."""
        host, code, lost = session.remote.name, 1, None
        try:
            while True:
                message = session.receive()
                if "out" in message:
                    _print(base64.b64decode(message["out"]))
                elif "file" in message:
                    self._keep(message)
                elif "refused" in message:
                    lost = REFUSED.format(host=host, why=message["refused"])
                elif "exit" in message:
                    code = message["exit"]
                    break
        except LostHost as error:
            lost = LOST.format(host=host, why=error)
        if lost:
            _print(f"{lost}\n".encode())
        with self._changed:
            self._codes[host] = code if code >= 0 else 128 - code
            self._changed.notify_all()

    def _keep(self, message: Message) -> None:
        """Write a file that a host sends into the folder of the launch."""
        launch = self._work.parent
        path = (launch / message["file"]).resolve()
        if not path.is_relative_to(launch.resolve()) or path.name in _OURS:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with open(part, "r+b" if message["at"] else "wb") as file:
            file.seek(message["at"])
            file.write(base64.b64decode(message["data"]))
        if not message["more"]:
            part.replace(path)


def _collect(
    launch: Path, work: Path, places: Sequence[Sequence[str]]
) -> tuple[list[str], dict[str, str]]:
    """Folders and files that launcher and ranks read at their start."""
    folders, files = ["work"], {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(launch))
        if path.is_dir():
            folders.append(name)
        elif path.name != "heartbeat":
            text = path.read_bytes().decode(errors="surrogateescape")
            text = translate(text, places)
            data = text.encode(errors="surrogateescape")
            files[name] = base64.b64encode(data).decode()
    return folders, files


def translate(text: str, places: Sequence[Sequence[str]]) -> str:
    """Replace paths of this machine by those of another host.

    Args:
        text: an argument, a value of a variable, or a small file.
        places: path here, path there; a path in a later one comes before it.
    """
    for here, there in sorted(places, key=lambda place: -len(place[0])):
        whole = rf"(?<![\w./-]){re.escape(here)}(?![\w.-])"
        # Doubled, because a backslash begins an escape in a replacement.
        text = re.sub(whole, there.replace("\\", "\\\\"), text)
    return text


_printing = threading.Lock()


def _print(data: bytes) -> None:
    with _printing:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
