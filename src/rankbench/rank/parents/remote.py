"""A stand-in for ssh between the hosts of one launch.

mpirun, hydra and horovodrun run on one host and reach the others by ssh. Many clusters
do not allow it, and no ssh leads into a container. But whatever started this module on
every host has solved both. On the first it runs the launcher, with a program `ssh` that
comes before all others on PATH; on the others it runs what that program asks for.

    python -m rankbench.rank.parents.remote --node N --hosts A,B --port P --secret F
        COMMAND ...
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import NoReturn

from rankbench.rank.joining.host_names import check_name

# Tells `ssh` of the port, and of the file with the secret.
PORT, SECRET = "RANKBENCH_REMOTE_PORT", "RANKBENCH_REMOTE_SECRET"

UP_AFTER = 60.0  # seconds that another host may take to come up
GRACE = 3.0  # seconds between SIGTERM and SIGKILL

# Options of ssh that have a value.
_WITH_VALUE = set("bcDEeFIiJLlmOopQRSWw")

_SSH = """\
#!/bin/sh
exec '{python}' -m rankbench.rank.parents.remote --as-ssh "$@"
"""


def main() -> int:
    if sys.argv[1:2] == ["--as-ssh"]:
        host, command = read_ssh(sys.argv[2:])
        return order(host, command)
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.parents.remote")
    parser.add_argument("--node", type=int, required=True, help="number of this host")
    parser.add_argument("--hosts", type=lambda text: text.split(","), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret", type=Path, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    programs = arguments.secret.with_name("bin")
    environment = {
        **os.environ,
        PORT: str(arguments.port),
        SECRET: str(arguments.secret),
        # Of all hosts: Open MPI lets one host reach the next.
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    os.environ |= environment
    if arguments.node > 0:
        obey(arguments.hosts[arguments.node], environment)
    write_ssh(programs)
    code = subprocess.run(arguments.command, env=environment, check=False).returncode
    for host in arguments.hosts[1:]:
        order(host, "")
    return code if code >= 0 else 128 - code


def write_ssh(folder: Path) -> None:
    """Make the program `ssh` of this launch."""
    folder.mkdir(exist_ok=True)
    program = folder / "ssh"
    program.write_text(_SSH.format(python=sys.executable))
    program.chmod(0o755)


def read_ssh(arguments: list[str]) -> tuple[str, str]:
    """The host and the command in arguments of ssh; options may stand around the host.

    Raises:
        ValueError: there is no host.
    """
    host = None
    words = iter(arguments)
    for word in words:
        if word.startswith("-"):
            if len(word) == 2 and word[1] in _WITH_VALUE:
                next(words, None)
        elif host is None:
            host = word.rpartition("@")[2]
        else:
            return host, " ".join([word, *words])
    if host is None:
        raise ValueError(f"no host in {arguments}")
    return host, ""


def order(host: str, command: str) -> int:
    """Have a command of the shell run on another host; nothing ends what runs there.

    Returns:
        Its exit code.

    Raises:
        OSError: the host is unknown here, or cannot be reached.
    """
    check_name(host)
    address = (host, int(os.environ[PORT]))
    deadline = time.monotonic() + UP_AFTER
    while True:
        try:
            connection = Client(address, authkey=_secret())
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    with connection:
        connection.send_bytes(command.encode())
        return int(connection.recv_bytes())


def obey(name: str, environment: dict[str, str]) -> NoReturn:
    """Run what other hosts order, until the launcher has ended.

    Args:
        name: of this host, as the others call it.
        environment: of what is run.
    """
    with _listen(find_address(name), int(environment[PORT])) as listener:
        while True:
            try:
                connection = listener.accept()
            except (AuthenticationError, EOFError, OSError):
                continue  # somebody who does not know the secret
            threading.Thread(
                target=_serve, args=(connection, environment), daemon=True
            ).start()


def find_address(name: str) -> str:
    """The only address that a name of this host stands for; empty where that is open.

    A host may know itself by a loopback address, which no other host can reach; and of
    several addresses each host may take another one.
    """
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except socket.gaierror:
        return ""
    addresses = {str(one[4][0]) for one in found}
    only = addresses.pop() if len(addresses) == 1 else ""
    return "" if only.startswith("127.") else only


def _listen(address: str, port: int) -> Listener:
    """Listen there alone; on all interfaces if the address is none of this host."""
    try:
        return Listener((address, port), backlog=64, authkey=_secret())
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return Listener(("", port), backlog=64, authkey=_secret())


def _serve(connection: Connection, environment: dict[str, str]) -> None:
    with connection:
        command = connection.recv_bytes().decode()
        if not command:
            connection.send_bytes(b"0")
            os._exit(0)
        code = _run(command, environment, connection)
        try:
            connection.send_bytes(str(code).encode())
        except OSError:
            pass  # whoever wanted it is gone


def _run(command: str, environment: dict[str, str], connection: Connection) -> int:
    """Run a command as long as the one who wants it is there, as ssh does."""
    child = subprocess.Popen(
        ["sh", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    ended = os.pidfd_open(child.pid)
    try:
        wait([connection, ended])
    finally:
        os.close(ended)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _secret() -> bytes:
    return Path(os.environ[SECRET]).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
