"""What runs on a host that is reached by ssh: it needs Python's standard library only.

Its source arrives through the connection, so the host needs no rankbench to run it.
Messages are lines of JSON, in both directions. The first one says what to do:

hold: say what this host is, hold its lock, and answer questions until the end.
run: run a command, pass on its output, and end it when nobody is heard any more.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import hashlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

SILENT_AFTER = 10.0  # seconds without a message; the other side sends some in each
GRACE = 3.0  # seconds between SIGTERM and SIGKILL
KILL_AFTER = 20.0  # seconds; a process that waits for a device cannot be killed
ROOM = 1 << 20  # bytes that ranks need at least
PR_SET_CHILD_SUBREAPER = 36
FOLDERS = ("code", "data", "images", "own", "environments", "launches")
COMPARED = ("torch", "torchvision", "numpy", "horovod", "deepspeed")

# A variable that all processes of a launch have, those of another connection too.
MARK = "RANKBENCH_LAUNCH"
# Programs need this host's own values of these variables.
OWN = ("HOME", "USER", "LOGNAME", "SHELL", "XDG_RUNTIME_DIR")

# Names of the program that runs images: the same under an older name.
CONTAINER_PROGRAMS = ("apptainer", "singularity")

# Begins each message, because a login script may print what it likes, even without an
# end of line. JSON has no such character.
MESSAGE = b"\x1e"

Message = dict[str, Any]

_writing = threading.Lock()


def send(**message: Any) -> None:
    """Send a message to the machine that has connected; it may be gone."""
    line = memoryview(encode(message))
    with _writing, contextlib.suppress(OSError):
        while line:
            line = line[os.write(1, line) :]


def encode(message: Message) -> bytes:
    """Return a message as it goes through a connection."""
    return MESSAGE + json.dumps(message).encode() + b"\n"


class Inbox:
    """Messages from the other side of the connection, which uses this class as well."""

    def __init__(self, stream: Iterable[bytes], noise: list[str]) -> None:
        """Read messages from now on.

        Args:
            stream: where they arrive.
            noise: gets other output, such as that of a login script.
        """
        self._stream, self._noise = stream, noise
        self._queue: queue.Queue[Message | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            noise, begins, text = line.partition(MESSAGE)
            if noise.strip():
                said = noise.decode(errors="replace").strip()
                self._noise.append("".join(filter(str.isprintable, said)))
            if begins:
                # The last one is cut short if the connection is lost.
                with contextlib.suppress(ValueError):
                    self._queue.put(json.loads(text))
        self._queue.put(None)

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None at the end, or if none comes within so many seconds.

        Raises:
            EOFError: the connection was closed.
        """
        try:
            message = self._queue.get(timeout=timeout)
        except queue.Empty:
            return None
        if message is None:
            self._queue.put(None)
            raise EOFError
        return message


def hold(order: Message, inbox: Inbox) -> None:
    """Hold this host until the connection is closed, or nobody is heard any more."""
    send(**describe(Path(order["folder"]).expanduser(), order))
    held = None
    with contextlib.suppress(EOFError):
        while message := inbox.get(timeout=SILENT_AFTER):
            if message["do"] == "lock":
                held = wait_for_lock(inbox)
                # Nothing of an earlier launch runs or is needed now.
                end_processes(lambda: marked(None))
                launches = Path(order["folder"]).expanduser() / "launches"
                shutil.rmtree(launches, ignore_errors=True)
                launches.mkdir()
                send(locked=True)
            elif message["do"] == "have":
                there = {p: os.path.exists(p) for p in message["paths"]}
                send(have=there)
            elif message["do"] == "hash":
                send(hashes={path: sha256(path) for path in message["paths"]})
            elif message["do"] == "move in":
                move_in(message)
                send(moved=True)
    del held


def describe(folder: Path, order: Message) -> Message:
    """The facts about this host that decide whether it can be used."""
    fault = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        fault = f"{folder}: {error.strerror}"
    return {
        "hostname": socket.gethostname(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "executable": sys.executable,
        "python": list(sys.version_info[:2]),
        "versions": {name: version_of(name) for name in COMPARED},
        "folder": str(folder),
        "fault": fault,
        "free": shutil.disk_usage(folder).free if fault is None else 0,
        "rsync": shutil.which("rsync") is not None,
        "apptainer": any(map(shutil.which, CONTAINER_PROGRAMS)),
        "sees": {path: os.path.exists(path) for path in order["look_for"]},
    }


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def take_lock(name: str | None = None) -> socket.socket | None:
    """A socket that holds the lock of a machine; None while another process holds it.

    The lock is the abstract name of a socket: the kernel releases it with the process,
    however the process ends. A lock file below TMPDIR or /tmp would differ with each
    TMPDIR and each private /tmp of a Slurm job.

    Args:
        name: of the lock; None is that of this user.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0{name or f'rankbench-{os.getuid()}'}")
    except OSError as error:
        held.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return held


def wait_for_lock(inbox: Inbox) -> socket.socket:
    """Wait until no other measurement of this user runs here; return the lock.

    Raises:
        EOFError: the connection was closed meanwhile, or nobody is heard any more.
    """
    told, heard = False, time.monotonic()
    while (held := take_lock()) is None:
        if not told:
            send(busy=True)
            told = True
        if inbox.get(timeout=0.5):
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENT_AFTER:
            raise EOFError
    return held


def sha256(path: str) -> str | None:
    """The hash of a file; None if it is not there."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def move_in(message: Message) -> None:
    """Give a copied virtual environment its name; its programs name its Python."""
    part, was, now = Path(message["part"]), message["was"], message["path"]
    for program in (part / "bin").iterdir():
        if program.is_symlink() or not program.is_file():
            continue
        head, newline, rest = program.read_bytes().partition(b"\n")
        if head.startswith(f"#!{was}/".encode()):
            moved = head.replace(was.encode(), now.encode(), 1)
            program.write_bytes(moved + newline + rest)
    part.replace(now)


def run(order: Message, inbox: Inbox) -> None:
    """Run a command; end it if the other side ends it or is not heard any more.

    If hosts share no files, the other side copies the launch's folder here before, and
    fetches it when the command has ended.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(order["launch"]) if order["launch"] else None
    sent: dict[str, bytes] = {}
    child, code = None, 1
    try:
        # Without a command, another host starts the processes of this one.
        if order["argv"]:
            env = environment_of(order)
            argv = order["argv"]
            if argv[0] in CONTAINER_PROGRAMS:
                # This host may know the program by its other name.
                found = (
                    shutil.which(name, path=env["PATH"]) for name in CONTAINER_PROGRAMS
                )
                argv = [next(filter(None, found), argv[0]), *argv[1:]]
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=folder or "/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            output = threading.Thread(target=_pass_on, args=(child,), daemon=True)
            output.start()
        code = _watch(child, inbox, folder, sent)
        if child:
            # A process that was left behind may keep the pipe open.
            output.join(1.0)
    except OSError as error:
        send(refused=f"{error.strerror}: {error.filename or order['argv'][0]}")
    finally:
        # Processes that ssh started for another host's launcher are not below this one.
        end_processes(lambda: descendants() | marked(order["mark"]))
        if folder:
            if code and shutil.disk_usage(folder.parent).free < ROOM:
                send(refused=f"{os.strerror(errno.ENOSPC)}: {folder.parent}")
            send_reports(folder, sent)
    send(exit=code)
    if folder:
        with contextlib.suppress(EOFError):
            while inbox.get(timeout=SILENT_AFTER):
                pass
        shutil.rmtree(folder, ignore_errors=True)


def environment_of(order: Message) -> dict[str, str]:
    """The environment of the command: what was sent, and what is this host's own."""
    own = {name: os.environ[name] for name in OWN if name in os.environ}
    env: dict[str, str] = {**order["env"], **own, MARK: order["mark"]}
    folders = [str(Path(sys.executable).parent)]
    for path in (env.get("PATH", ""), os.environ.get("PATH", "")):
        folders += [folder for folder in path.split(":") if folder]
    env["PATH"] = ":".join(dict.fromkeys(folders))
    return env


def _pass_on(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    while data := os.read(child.stdout.fileno(), 1 << 16):
        send(out=base64.b64encode(data).decode())


def _watch(
    child: subprocess.Popen[bytes] | None,
    inbox: Inbox,
    folder: Path | None,
    sent: dict[str, bytes],
) -> int:
    """Wait until the command ends, or must be ended; return the exit code."""
    heard = time.monotonic()
    while True:
        if child is not None and (code := child.poll()) is not None:
            return code
        try:
            message = inbox.get(timeout=0.1)
        except EOFError:
            return 128 + signal.SIGHUP
        now = time.monotonic()
        if message is None:
            if now - heard > SILENT_AFTER:
                return 128 + signal.SIGHUP
            continue
        heard = now
        if message["do"] == "end":
            return 128 + signal.SIGTERM
        if folder:
            # The supervisor's heartbeat, for the ranks of this host.
            (folder / "work/heartbeat").write_text(message["beat"])
            send_reports(folder, sent)


def send_reports(folder: Path, sent: dict[str, bytes]) -> None:
    """Send files that the supervisor reads while ranks run, if they have changed.

    Args:
        folder: of the launch.
        sent: path in this folder -> what was sent; is brought up to date.
    """
    for pattern in ("work/rank*.json", "work/progress/*"):
        for path in folder.glob(pattern):
            name, data = str(path.relative_to(folder)), path.read_bytes()
            if sent.get(name) != data:
                sent[name] = data
                send(file=name, data=base64.b64encode(data).decode())


def end_processes(find: Callable[[], set[int]]) -> None:
    """End processes: SIGTERM, then SIGKILL, until none is found."""
    number, deadline = signal.SIGTERM, time.monotonic() + GRACE
    gone = time.monotonic() + KILL_AFTER
    told: set[int] = set()
    while (found := find()) and time.monotonic() < gone:
        if time.monotonic() > deadline:
            number, told = signal.SIGKILL, set()
        for pid in found - told:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        told |= found
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def descendants() -> set[int]:
    """Living processes below this one, orphans included."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    grown = {os.getpid()}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def marked(mark: str | None) -> set[int]:
    """Processes of this user that belong to a launch; None: to any launch."""
    sought = f"{MARK}=".encode() + (b"" if mark is None else mark.encode() + b"\0")
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = b"\0" + (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"\0" + sought in variables and int(entry.name) != os.getpid():
            found.add(int(entry.name))
    return found


def main() -> None:
    # The connection ends by its end of file, which is noticed; output may fail.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    inbox = Inbox(sys.stdin.buffer, [])
    try:
        # Beats come while files are copied here.
        while (order := inbox.get()) and order["do"] == "beat":
            pass
    except EOFError:
        return
    assert order is not None
    if order["do"] == "end":
        send(exit=128 + signal.SIGTERM)
        return
    {"hold": hold, "run": run}[order["do"]](order, inbox)


if __name__ == "__main__":
    main()
