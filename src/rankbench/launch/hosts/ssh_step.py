"""Runs a command on hosts that are reached by ssh, as srun does in a Slurm job.

python -m rankbench.launch.hosts.ssh_step FACTS -- COMMAND

FACTS are those of `SshHosts.step`. The command runs once on each host. Its output is
this program's output. If the command fails on a host, or the connection to a host is
lost, it is ended on the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.environ import for_hosts
from rankbench.launch.hosts.base import run_to_end

BEAT_SECONDS = 0.5
# Seconds between two looks at the reports of a host that shares no files.
FETCH_SECONDS = 5.0
# Seconds that hosts have to end a command, and until their files are fetched.
END_SECONDS = 40.0
CONNECT_SECONDS = 10
COPY_SECONDS = 3600.0
LOST = 255  # the exit code of ssh

# Files that hosts write and the supervisor reads while ranks run.
_REPORTS = ("work/", "work/rank*.json", "work/progress/***")
# Files of a launch that the supervisor writes, and a folder that hosts need only during
# the launch.
_OURS = ("/claim.json", "/launcher.log", "work/heartbeat", "work/home")

# Gives a command the variables that were sent, and of this host's own ones those that
# programs need. Programs of this host come after those that were sent.
_CLEAN = (
    'exec env -i HOME="$HOME" USER="$USER" LOGNAME="$LOGNAME" SHELL="$SHELL" '
    '${XDG_RUNTIME_DIR:+"XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR"} PATH="$0:$PATH" "$@"'
)
_LOGIN = (
    "see whether a login script there (.bashrc, .profile) prints, reads its input or "
    "exits: `ssh {host} true </dev/null` must print nothing"
)
_CLOSED = r"[Cc]onnection (to \S+ )?(closed|reset)|closed by remote host"
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
    r"is your shell clean": _LOGIN,
}


@dataclass(slots=True)
class Connection:
    """How a host is reached, by the user's own ssh.

    Attributes:
        name: of the host, for ssh and for the other hosts.
        control: path of the socket that connections to this host share.
        python: its interpreter.
        source: the folder there that contains the package rankbench.
        words: words of a command here -> what they are there.
    """

    name: str
    control: str
    python: str = ""
    source: str = ""
    words: dict[str, str] = field(default_factory=dict)

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

    def command(self, *argv: str, first: bool = False) -> list[str]:
        """The command that runs another one on the host, in the user's shell.

        Args:
            first: whether further connections to the host go through this one.
        """
        options = ("-o", f"ControlMaster={'yes' if first else 'no'}")
        return [*self.ssh(*options), "--", self.name, shlex.join(["exec", *argv])]

    def run_module(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        first: bool = False,
    ) -> list[str]:
        """The command that runs `ssh_host` on the host.

        Args:
            arguments: of this program.
            variables: its only ones, besides those that are the host's own.
            first: see `command`.
        """
        given = dict(variables or {})
        folders = (os.path.dirname(self.python), given.pop("PATH", ""))
        # A folder `rankbench` in the home there is not the package.
        given |= {"PYTHONPATH": self.source, "PYTHONSAFEPATH": "1"}
        return self.command(
            *("sh", "-c", _CLEAN, ":".join(filter(None, folders))),
            *(f"{name}={value}" for name, value in given.items()),
            *(self.python, "-m", "rankbench.launch.hosts.ssh_host", *arguments),
            first=first,
        )

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
            remedy = self._find_remedy([said])
            raise ValueError(remedy or f"{self.name}: copying {words[0]}: {said}")

    def explain(self, said: str, why: str = "", *, answered: bool = True) -> str:
        """Why a connection has ended, with a remedy.

        Args:
            said: output of ssh, of login scripts and of the program there.
            why: a reason that is known; empty for the last words.
            answered: whether the host has answered before.
        """
        plain = re.sub("\x1e.*?\x1e", "", said)
        printable = (
            "".join(filter(str.isprintable, each)) for each in plain.split("\n")
        )
        lines = [line.strip() for line in printable if line.strip()]
        if found := self._find_remedy(lines):
            return found
        # Why it was closed is said before, if at all.
        words = [line for line in lines if not re.search(_CLOSED, line)]
        hint = "" if answered or (words and not why) else f": {_LOGIN}"
        why = why or (words or lines or ["the connection was closed"])[-1]
        return f"{self.name}: {why}{hint.format(host=self.name)}"

    def _find_remedy(self, said: Sequence[str]) -> str | None:
        """Return the first known message with its remedy; None if there is none."""
        for pattern, remedy in _REMEDIES.items():
            for line in said:
                if re.search(pattern, line):
                    do = remedy.format(host=self.name)
                    return f"{self.name}: {line.strip('@ .')}: {do}"
        return None


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
        self._facts, self._argv = facts, argv
        self._hosts = [Connection(**host) for host in facts["hosts"]]
        self._launch, self._there = Path(facts["launch"]), facts["there"]
        self._apart = self._there != facts["launch"]
        self._beat = ""
        self._is_ending = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._codes: dict[str, int] = {}
        self._changed = threading.Condition()

    def run(self) -> int:
        """Run the command to its end; return the first exit code that is not 0."""
        for place in enumerate(self._hosts):
            threading.Thread(target=self._follow, args=place, daemon=True).start()
        parent = os.getppid()
        while not self._wait(self._is_decided):
            if os.getppid() != parent:
                sys.exit(128 + signal.SIGTERM)
        code = next((code for code in self._codes.values() if code), 0)
        self.end()
        return code

    def end(self) -> None:
        """End the command on all hosts, and wait until nothing of it is left there."""
        with self._changed:
            self._is_ending = True
            for process in self._processes:
                close(process)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            if self._wait(lambda: len(self._codes) == len(self._hosts)):
                return
        for process in self._processes:
            process.kill()

    def _is_decided(self) -> bool:
        """Whether the command has failed on a host, or ended on all."""
        return any(self._codes.values()) or len(self._codes) == len(self._hosts)

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition until the next beat, which hosts then get."""
        with self._changed:
            if self._changed.wait_for(condition, BEAT_SECONDS):
                return True
            with contextlib.suppress(OSError):
                self._beat = (self._launch / "work/heartbeat").read_text()
            for process in self._processes:
                assert process.stdin is not None
                # A host that is gone, or that was told to end.
                with contextlib.suppress(OSError, ValueError):
                    process.stdin.write(f"{self._beat}\n".encode())
                    process.stdin.flush()
        return False

    def _follow(self, node: int, host: Connection) -> None:
        """Run the command on a host, with its files."""
        code = 1
        try:
            code = self._run_on(node, host)
            if code == LOST:
                print(f"lost the host {host.name}", flush=True)
        except (ValueError, OSError) as error:
            why = str(error).removeprefix(f"{host.name}: ")
            print(f"the host {host.name} refuses: {why}", flush=True)
        with self._changed:
            # A signal, if this program had to end ssh.
            self._codes[host.name] = code if code >= 0 else LOST
            self._changed.notify_all()

    def _run_on(self, node: int, host: Connection) -> int:
        """Run the command on a host; return its exit code.

        Raises:
            ValueError: files cannot be copied.
        """
        there = f"{host.name}:{self._there}/"
        if self._apart:
            # What launcher and ranks read at their start, and nothing of other hosts.
            skipped = ("heartbeat", "rank*", "progress/*")
            options = ("--archive", *(f"--exclude={name}" for name in skipped))
            host.rsync(str(self._launch / "work"), to=there, options=options)
        argv = [host.words.get(word, word) for word in self._argv]
        sent = {**for_hosts(), "RANKBENCH_NODE": str(node)}
        variables = {k: host.words.get(value, value) for k, value in sent.items()}
        command = host.run_module(
            *("run", host.name, self._there, *(["--apart"] if self._apart else [])),
            *("--", *argv),
            variables=variables,
        )
        with self._changed:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            self._processes.append(process)
            if self._is_ending:
                close(process)
        fetched = time.monotonic()
        while (code := process.poll()) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            # A question mark asks the ranks where they are.
            due = 0.0 if "?" in self._beat else FETCH_SECONDS
            if self._apart and time.monotonic() > fetched + due:
                with contextlib.suppress(ValueError):
                    chosen = [f"--include={name}" for name in _REPORTS]
                    self._fetch(host, there, [*chosen, "--exclude=*"])
                fetched = time.monotonic()
        if self._apart and code != LOST:
            try:
                self._fetch(host, there, [f"--exclude={name}" for name in _OURS])
            except ValueError:
                # A command that failed has said why.
                if code == 0:
                    raise
            run_to_end(host.command("rm", "-rf", self._there), timeout=END_SECONDS)
        return code

    def _fetch(self, host: Connection, there: str, filters: Sequence[str]) -> None:
        options = ("--recursive", "--times", *filters)
        host.rsync(there, to=f"{self._launch}/", options=options)


def close(process: subprocess.Popen[bytes]) -> None:
    """Let a host know that its program shall end."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
