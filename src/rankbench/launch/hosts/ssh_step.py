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
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankbench.environ import for_hosts
from rankbench.launch.hosts.ssh_session import LostHost, Session

BEAT_SECONDS = 0.5
# Seconds that hosts have to end a command, and until their files are fetched.
END_SECONDS = 40.0

# Files of a launch that the supervisor writes, and a folder that hosts need only during
# the launch.
_OURS = ("/claim.json", "/record.json", "/steps.npz", "work/heartbeat", "work/home")


def main() -> int:
    at = sys.argv.index("--")
    facts, argv = json.loads(sys.argv[1]), sys.argv[at + 1 :]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    step = RemoteStep(facts, argv)
    try:
        return step.run()
    except SystemExit:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        step.end()
        raise


class RemoteStep:
    """A command that runs on several hosts."""

    def __init__(self, facts: Mapping[str, Any], argv: Sequence[str]) -> None:
        self._facts, self._argv = facts, list(argv)
        self._work = Path(facts["work"])
        self._launch = self._work.parent
        self._inputs = Path(tempfile.mkdtemp(prefix="rankbench-step."))
        self._mark = secrets.token_hex(8)
        self._sessions: list[Session] = []
        self._codes: dict[str, int] = {}
        self._changed = threading.Condition()

    def run(self) -> int:
        """Run the command to its end; return the first exit code that is not 0.

        Hosts are ended afterwards; their answers then do not concern the command.
        """
        if not self._facts["shared"]:
            # What launcher and ranks read at their start, before hosts write there.
            ignored = shutil.ignore_patterns("heartbeat")
            shutil.copytree(self._work, self._inputs / "work", ignore=ignored)
        for node, host in enumerate(self._facts["hosts"]):
            session = Session(host["name"], [host["python"]], host["control"])
            self._sessions.append(session)
            arguments = (session, node, host)
            threading.Thread(target=self._follow, args=arguments, daemon=True).start()
        parent = os.getppid()
        while not self._wait(self._is_decided):
            if os.getppid() != parent:
                sys.exit(128 + signal.SIGTERM)
        code = next((code for code in self._codes.values() if code), 0)
        self.end()
        return code

    def end(self) -> None:
        """End the command on all hosts, and wait until nothing of it is left there."""
        for session in self._sessions:
            session.send(do="end")
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            if self._wait(lambda: len(self._codes) == len(self._sessions)):
                break
        for session in self._sessions:
            session.close()
        shutil.rmtree(self._inputs, ignore_errors=True)

    def _is_decided(self) -> bool:
        """Whether the command has failed on a host, or ended on all that run it."""
        runs = self._facts["hosts"][: 1 if self._facts["first_only"] else None]
        return any(self._codes.values()) or all(h["name"] in self._codes for h in runs)

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition until the next beat, which hosts then get."""
        with self._changed:
            if self._changed.wait_for(condition, BEAT_SECONDS):
                return True
        try:
            beat = (self._work / "heartbeat").read_text()
        except OSError:
            beat = ""
        for session in self._sessions:
            session.send(do="beat", beat=beat)
        return False

    def _follow(self, session: Session, node: int, host: Mapping[str, Any]) -> None:
        """Run the command on a host, with its files, and pass on its output."""
        name, code, why = host["name"], 1, None
        try:
            code, why = self._run_on(session, node, host)
        except LostHost as error:
            why = f"lost the host {error}"
        except (ValueError, OSError) as error:
            why = f"the host {name} refuses: {str(error).removeprefix(f'{name}: ')}"
        if why:
            _print(f"{why}\n".encode())
        with self._changed:
            self._codes[name] = code if code >= 0 else 128 - code
            self._changed.notify_all()

    def _run_on(
        self, session: Session, node: int, host: Mapping[str, Any]
    ) -> tuple[int, str | None]:
        """Run the command on a host; its exit code, and why the host refuses it.

        Raises:
            ValueError: files cannot be copied.
            LostHost: the connection has ended.
        """
        places = [*host["places"]]
        folder = None
        if not self._facts["shared"]:
            folder = f"{host['folder']}/launches/{self._mark}"
            places = [(here, f"{host['folder']}/{there}") for here, there in places]
            places.append((str(self._launch), folder))
        places.append((sys.executable, host["python"]))
        if folder:
            # What launcher and ranks read at their start, with the host's paths.
            with tempfile.TemporaryDirectory() as temporary:
                shutil.copytree(self._inputs, temporary, dirs_exist_ok=True)
                for path in Path(temporary).rglob("*"):
                    if path.is_file():
                        text = path.read_bytes().decode(errors="surrogateescape")
                        text = translate(text, places)
                        path.write_bytes(text.encode(errors="surrogateescape"))
                session.rsync(f"{temporary}/", to=f"{session.name}:{folder}/")
        silent = node > 0 and self._facts["first_only"]
        env = for_hosts(node).items()
        session.send(
            do="run",
            argv=[] if silent else [translate(word, places) for word in self._argv],
            env={key: translate(value, places) for key, value in env},
            mark=self._mark,
            launch=folder,
        )
        refused = None
        while "exit" not in (message := session.receive()):
            if "out" in message:
                _print(base64.b64decode(message["out"]))
            elif "file" in message:
                self._keep(message["file"], base64.b64decode(message["data"]))
            elif "refused" in message:
                refused = f"the host {host['name']} refuses: {message['refused']}"
        if folder:
            # Files that are here already stay.
            options = ["--recursive", "--times", "--ignore-existing"]
            options += [f"--exclude={name}" for name in _OURS]
            source = f"{host['name']}:{folder}/"
            try:
                session.rsync(source, to=f"{self._launch}/", options=options)
            except ValueError:
                # A command that failed has said why.
                if message["exit"] == 0:
                    raise
        return message["exit"], refused

    def _keep(self, name: str, data: bytes) -> None:
        """Write a file that a host sends into the folder of the launch."""
        path = (self._launch / name).resolve()
        if path.is_relative_to(self._work.resolve()):
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(data)
            part.replace(path)


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
