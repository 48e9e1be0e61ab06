"""A connection to an agent on another host, by the user's own ssh."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankbench.launch.hosts.base import run_to_end
from rankbench.launch.hosts.ssh_agent import Inbox, Message, encode

AGENT = Path(__file__).with_name("ssh_agent.py")
CONNECT_SECONDS = 10
ANSWER_SECONDS = 60.0  # for the first answer
COPY_SECONDS = 3600.0
BEAT_SECONDS = 2.0
# The remote command runs the first of several interpreters that is there. Everything
# else goes through its standard input.
_FIND = (
    'for python; do command -v "$python" >/dev/null && exec "$python" -I -u -c "$0"; '
    'done; echo "no Python at $*" >&2; exit 127'
)
_BOOT = (
    "import sys; stdin = sys.stdin.buffer; size = stdin.readline().strip(); "
    "size.isdigit() or sys.exit('a login script has read the input of rankbench'); "
    "exec(compile(stdin.read(int(size)), 'ssh_agent.py', 'exec'))"
)
_LOGIN = (
    "see whether a login script there (.bashrc, .profile) prints, reads its input or "
    "exits: `ssh {host} true </dev/null` must print nothing"
)
_NO_ROOM = "No space left on device"
# ssh's messages, and what to do.
_REMEDIES = {
    r"Permission denied|Too many authentication": (
        "it wants a password: let `ssh-copy-id {host}` install your key, and load the "
        "key into ssh-agent if it has a passphrase"
    ),
    r"REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "its key is another one than known_hosts has: find out why; if the machine "
        "was installed again, `ssh-keygen -R {host}`, then `ssh {host}` once by hand"
    ),
    r"Host key verification failed": (
        "its key is not in known_hosts: connect once by hand, `ssh {host}`, and compare"
    ),
    r"Could not resolve hostname": (
        "correct hosts in site.yaml, or add the name to /etc/hosts or ~/.ssh/config"
    ),
    r"Connection refused": "start sshd there, or open its port",
    r"timed out|No route to host|unreachable": (
        "is it up, and does a firewall let ssh through?"
    ),
    r"no Python": (
        "install Python 3.11 or newer there, or name its interpreter: python in hosts "
        "of site.yaml"
    ),
    r"a login script has read|is your shell clean": _LOGIN,
}


class LostHost(ValueError):
    """A host cannot be reached any more. The message names host and cause."""


class Session:
    """A running agent on a host.

    Attributes:
        name: of the host, for ssh and for the other hosts.
        python: the interpreter that launches use.
        tried: interpreters of which the first that is there runs the agent.
        control: path of the socket that connections to this host share.
        facts: what the host has said of itself.
        copied: path here -> path in the folder of rankbench there, of what it got.
    """

    def __init__(
        self, name: str, pythons: Sequence[str], control: str, *, first: bool = False
    ) -> None:
        """Connect.

        Args:
            name: of the host.
            pythons: interpreters to try.
            control: path of the socket.
            first: whether further connections to the host go through this one.
        """
        self.name, self.control = name, control
        self._awaits_answer = first
        self.tried, self.python = pythons, pythons[0]
        self.facts: Message = {}
        self.copied: dict[str, str] = {}
        command = shlex.join(["exec", "sh", "-c", _FIND, _BOOT, *pythons])
        shared = "yes" if first else "no"
        self._process = subprocess.Popen(
            [
                *self.ssh("-o", f"ControlMaster={shared}"),
                *("--", name, command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is for the program that has opened the connection.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._said: list[str] = []
        self._inbox = Inbox(self._process.stdout, self._said)
        self._writing = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        source = AGENT.read_bytes()
        self._write(f"{len(source)}\n".encode() + source)

    @property
    def pid(self) -> int:
        """The process id of ssh."""
        return self._process.pid

    def ssh(self, *options: str) -> list[str]:
        """The command of ssh, without host and remote command."""
        own = (
            "BatchMode=yes",
            f"ConnectTimeout={CONNECT_SECONDS}",
            # A host that does not answer for 10 s is lost.
            "ServerAliveInterval=5",
            "ServerAliveCountMax=2",
            # The user's settings may be otherwise, for interactive use.
            "ControlPersist=no",
            "RemoteCommand=none",
        )
        settings = [word for setting in own for word in ("-o", setting)]
        return ["ssh", "-T", *settings, "-S", self.control, *options]

    def rsync(
        self, *words: str, to: str, options: Sequence[str] = ("--archive",)
    ) -> None:
        """Copy files to this host, or from it, through the connection to it.

        Args:
            words: the files.
            to: where they go; a path on the host, as one of the files, begins with the
                name of the host and a colon.
            options: of rsync.

        Raises:
            ValueError: the copy fails; says why.
        """
        shell = shlex.join(self.ssh("-o", "ControlMaster=no"))
        command = ["rsync", "--protect-args", *options, "-e", shell, "--", *words, to]
        try:
            done = run_to_end(command, timeout=COPY_SECONDS)
        except FileNotFoundError:
            raise ValueError(
                "this machine has no rsync: install it (shared: false copies by it)"
            ) from None
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"{self.name}: {error}") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["rsync failed"]
            # rsync of a full disk says so in the middle of its messages.
            said = next((line for line in lines if _NO_ROOM in line), lines[0])
            remedy = self._remedy([said])
            raise ValueError(remedy or f"{self.name}: copying {words[0]}: {said}")

    def keep_alive(self) -> None:
        """From now on, let the agent know that this process is there."""

        def beat() -> None:
            while self._process.poll() is None:
                self.send(do="beat")
                time.sleep(BEAT_SECONDS)

        threading.Thread(target=beat, daemon=True).start()

    def send(self, **message: Any) -> None:
        """Send a message; a lost host is noticed by `get`."""
        self._write(encode(message))

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none comes within so many seconds.

        Raises:
            LostHost: the connection has ended.
        """
        try:
            message = self._inbox.get(timeout)
        except EOFError:
            raise LostHost(self._explain()) from None
        self._awaits_answer &= message is None
        return message

    def get_first(self, heed: Callable[[], None]) -> Message:
        """Return the first message, for which the host has `ANSWER_SECONDS`.

        Args:
            heed: raises if waiting must end.

        Raises:
            LostHost: the connection has ended, or no message came in time.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while (message := self.get(timeout=0.5)) is None:
            heed()
            if time.monotonic() > deadline:
                self._said.append(f"no answer within {ANSWER_SECONDS:g} s")
                raise LostHost(self._explain())
        return message

    def ask(self, **message: Any) -> Message:
        """Send a message, and return the answer.

        Raises:
            LostHost: the connection has ended.
        """
        self.send(**message)
        return self.receive()

    def receive(self) -> Message:
        """Return the next message; wait as long as the connection lasts.

        Raises:
            LostHost: the connection has ended.
        """
        message = self.get()
        assert message is not None
        return message

    def close(self, patience: float = 5.0) -> None:
        """End the agent, and with it what it holds."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.decode(errors="replace").strip())

    def _explain(self) -> str:
        """Why the connection has ended, with a remedy."""
        self._listener.join(1.0)
        said = [line for line in self._said if line]
        if found := self._remedy(said):
            return found
        why = said[-1] if said else "the connection was closed"
        remedy = f": {_LOGIN.format(host=self.name)}" if self._awaits_answer else ""
        return f"{self.name}: {why}{remedy}"

    def _remedy(self, said: Sequence[str]) -> str | None:
        """Return the first known message with its remedy; None if there is none."""
        for pattern, remedy in _REMEDIES.items():
            for line in said:
                if re.search(pattern, line):
                    do = remedy.format(host=self.name)
                    return f"{self.name}: {line.strip('@ .')}: {do}"
        return None
