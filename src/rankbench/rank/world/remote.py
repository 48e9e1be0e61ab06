"""A replacement for ssh between the hosts of one launch.

mpirun, hydra and horovodrun run on one host and reach the other hosts by ssh. Many
clusters do not allow ssh, and ssh does not lead into a container. This module already
runs on every host, in the container if there is one. On the first host it runs the
launcher, with its own program `ssh` first on PATH. On the other hosts it runs the
commands that this program sends.

    python -m rankbench.rank.world.remote --node N --hosts A,B --port P --secret F
        COMMAND ...
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import NoReturn

from rankbench.environ import check_name, keep_devices
from rankbench.rank.world.manual import end_all

# Variables that tell `ssh` the port, and the file with the secret.
PORT, SECRET = "RANKBENCH_REMOTE_PORT", "RANKBENCH_REMOTE_SECRET"

UP_AFTER = 60.0  # seconds within which the other hosts must accept connections
GRACE = 3.0  # seconds between SIGTERM and SIGKILL
LOOK_SECONDS = 0.05  # between looks whether a command has ended

# Options of ssh that take a value.
_WITH_VALUE = set("bcDEeFIiJLlmOopQRSWw")


def main() -> int:
    if sys.argv[1:2] == ["--as-ssh"]:
        return order(*read_ssh(sys.argv[2:]))
    me = parse_arguments()
    put_ssh_on_path(me)
    return lead(me.command, me.hosts[1:]) if me.node == 0 else obey(me.hosts[me.node])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rankbench.rank.world.remote")
    parser.add_argument("--node", type=int, required=True, help="number of this host")
    parser.add_argument("--hosts", type=lambda text: text.split(","), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret", type=Path, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def put_ssh_on_path(me: argparse.Namespace) -> None:
    """Let programs find our `ssh` first, and let it find the other hosts."""
    programs = me.secret.with_name("bin")
    os.environ |= {
        PORT: str(me.port),
        SECRET: str(me.secret),
        # On all hosts, because Open MPI lets one host start the next.
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    if me.node == 0:
        programs.mkdir(exist_ok=True)
        ssh = [sys.executable, "-m", "rankbench.rank.world.remote", "--as-ssh"]
        program = programs / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(ssh)} "$@"\n')
        program.chmod(0o755)


def lead(command: list[str], others: list[str]) -> int:
    """Run the command of the launcher; then end the other hosts."""
    code = subprocess.run(command, check=False).returncode
    for host in others:
        order(host, "")
    return code if code >= 0 else 128 - code


def read_ssh(arguments: list[str]) -> tuple[str, str]:
    """The host and the command in the arguments of ssh, without the options.

    Raises:
        ValueError: the arguments name no host.
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
        raise ValueError(f"the arguments of ssh name no host: {arguments}")
    return host, ""


def order(host: str, command: str) -> int:
    """Run a shell command on another host; an empty command ends `obey` there.

    Returns:
        The exit code of the command.

    Raises:
        OSError: this host cannot resolve or reach the other host.
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


def obey(name: str) -> NoReturn:
    """Run the commands that other hosts send, until the launcher has ended.

    Args:
        name: name of this host that the other hosts use.
    """
    # horovodrun's commands export the choice of GPUs of the first host.
    os.environ |= keep_devices()
    with listen(find_address(name), int(os.environ[PORT])) as listener:
        while True:
            try:
                connection = listener.accept()
            except (AuthenticationError, EOFError, OSError):
                continue  # the client does not know the secret
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def find_address(name: str) -> str:
    """The address that a name of this host resolves to; empty unless all hosts agree.

    A host may resolve its own name to a loopback address, which other hosts cannot
    reach. If a name has several addresses, each host may choose another one.
    """
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except socket.gaierror:
        return ""
    addresses = {str(entry[4][0]) for entry in found}
    only = addresses.pop() if len(addresses) == 1 else ""
    return "" if only.startswith("127.") else only


def listen(address: str, port: int) -> Listener:
    """Listen on this address; on all interfaces if this host does not have it."""
    try:
        return Listener((address, port), backlog=64, authkey=_secret())
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return Listener(("", port), backlog=64, authkey=_secret())


def _serve(connection: Connection) -> None:
    with connection:
        command = connection.recv_bytes().decode()
        if not command:
            connection.send_bytes(b"0")
            os._exit(0)
        code = _run(command, connection)
        try:
            connection.send_bytes(str(code).encode())
        except OSError:
            pass  # the client is gone


def _run(command: str, connection: Connection) -> int:
    """Run a command; end it if the client closes the connection, as sshd does."""
    child = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    while child.poll() is None and not wait([connection], LOOK_SECONDS):
        pass
    if child.poll() is None:
        end_all([child], GRACE, lambda child, number: os.killpg(child.pid, number))
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _secret() -> bytes:
    return Path(os.environ[SECRET]).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
