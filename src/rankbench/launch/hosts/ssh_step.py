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
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankbench.environ import for_hosts
from rankbench.launch.hosts.base import run_to_end
from rankbench.launch.processes import wait_for_exit

LOOK_SECONDS = 0.1
BEAT_SECONDS = 0.5
# Seconds between two looks at the reports of hosts that share no files.
FETCH_SECONDS = 5.0
# Seconds that hosts have to end a command, and until their files are fetched.
END_SECONDS = 40.0
CONNECT_SECONDS = 10
COPY_SECONDS = 3600.0
LOST = 255  # the exit code of ssh
# That of rsync if files went meanwhile: temporary ones, as of compiled modules.
VANISHED = 24

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
    r"Host key verification failed": (
        "known_hosts has no key of it, or another one: compare, and connect once by "
        "hand; if the machine was installed again, first `ssh-keygen -R {host}`"
    ),
    r"not resolve hostname|Connection refused|timed out|No route|unreachable": (
        "correct hosts in site.yaml, or let `ssh {host} true` succeed"
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
        if done.returncode not in (0, VANISHED):
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


class RemoteStep:
    """A command that runs on several hosts."""

    def __init__(self, facts: Mapping[str, Any], argv: Sequence[str]) -> None:
        self._argv, self._parent = argv, os.getppid()
        self._hosts = [Connection(**host) for host in facts["hosts"]]
        self._launch, self._there = Path(facts["launch"]), facts["there"]
        self._apart = self._there != facts["launch"]
        # In the order of the hosts.
        self._processes: list[subprocess.Popen[bytes]] = []
        self._fetches: list[Future[None]] = []

    def run(self) -> int:
        """Run the command to its end; return the first exit code that is not 0."""
        with ThreadPoolExecutor(len(self._hosts)) as pool:
            if self._apart and not all([*pool.map(self._send, self._hosts)]):
                return 1
            try:
                code = self._follow(pool)
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self._end()
                wait(self._fetches)
                collected = [*pool.map(self._collect, self._hosts, self._processes)]
            return code or int(not all(collected))

    def _send(self, host: Connection) -> bool:
        """Copy to a host what launcher and ranks read at their start."""
        # Nothing of other hosts.
        skipped = ("heartbeat", "rank*", "progress/*")
        options = ("--archive", *(f"--exclude={name}" for name in skipped))
        to = f"{host.name}:{self._there}/"
        try:
            host.rsync(str(self._launch / "work"), to=to, options=options)
        except ValueError as error:
            _refuse(host, error)
            return False
        return True

    def _follow(self, pool: ThreadPoolExecutor) -> int:
        """Run the command until it has failed on a host, or ended on all."""
        for node, host in enumerate(self._hosts):
            self._processes.append(self._start(node, host))
        beat, beaten, fetched = "", 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            codes = [process.poll() for process in self._processes]
            if None not in codes or any(codes):
                # A signal, if somebody has ended ssh.
                return next((code if code > 0 else LOST for code in codes if code), 0)
            if os.getppid() != self._parent:
                sys.exit(128 + signal.SIGTERM)
            if now >= beaten + BEAT_SECONDS:
                beat, beaten = self._beat(), now
            # A question mark asks the ranks where they are.
            due = fetched + (1.0 if "?" in beat else FETCH_SECONDS)
            is_due = self._apart and now >= due
            if is_due and all(fetch.done() for fetch in self._fetches):
                # One that fails is repeated.
                chosen = [*(f"--include={name}" for name in _REPORTS), "--exclude=*"]
                self._fetches = [
                    pool.submit(self._fetch, h, chosen) for h in self._hosts
                ]
                fetched = now
            time.sleep(LOOK_SECONDS)

    def _start(self, node: int, host: Connection) -> subprocess.Popen[bytes]:
        argv = [host.words.get(word, word) for word in self._argv]
        sent = {**for_hosts(), "RANKBENCH_NODE": str(node)}
        variables = {k: host.words.get(value, value) for k, value in sent.items()}
        command = host.run_module(
            *("run", host.name, self._there, *(["--apart"] if self._apart else [])),
            *("--", *argv),
            variables=variables,
        )
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def _beat(self) -> str:
        """Give the hosts the heartbeat of the supervisor; return it."""
        beat = ""
        with contextlib.suppress(OSError):
            beat = (self._launch / "work/heartbeat").read_text()
        for process in self._processes:
            assert process.stdin is not None
            # A host that is gone.
            with contextlib.suppress(OSError):
                process.stdin.write(f"{beat}\n".encode())
                process.stdin.flush()
        return beat

    def _end(self) -> None:
        """End the command on all hosts, and wait until nothing of it is left there."""
        for process in self._processes:
            close(process)
        deadline = time.monotonic() + END_SECONDS
        for host, process in zip(self._hosts, self._processes, strict=False):
            if not wait_for_exit(process, max(0.0, deadline - time.monotonic())):
                process.kill()
            if process.wait() == LOST:
                print(f"lost the host {host.name}", flush=True)

    def _collect(self, host: Connection, process: subprocess.Popen[bytes]) -> bool:
        """Fetch the files of a launch, and remove them there; whether all are here."""
        well = True
        if self._apart and process.returncode != LOST:
            try:
                self._fetch(host, [f"--exclude={name}" for name in _OURS])
            except ValueError as error:
                # A command that failed has said why.
                if process.returncode == 0:
                    well = False
                    _refuse(host, error)
            run_to_end(host.command("rm", "-rf", self._there), timeout=END_SECONDS)
        return well

    def _fetch(self, host: Connection, filters: Sequence[str]) -> None:
        # rsync compares sizes and whole seconds: it would miss that a rank has moved on
        # within the second of the last fetch.
        options = ("--recursive", "--ignore-times", *filters)
        there = f"{host.name}:{self._there}/"
        host.rsync(there, to=f"{self._launch}/", options=options)


def _refuse(host: Connection, why: ValueError) -> None:
    said = str(why).removeprefix(f"{host.name}: ")
    print(f"the host {host.name} refuses: {said}", flush=True)


def close(process: subprocess.Popen[bytes]) -> None:
    """Let a host know that its program shall end."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def main() -> int:
    at = sys.argv.index("--")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return RemoteStep(json.loads(sys.argv[1]), sys.argv[at + 1 :]).run()


if __name__ == "__main__":
    sys.exit(main())
