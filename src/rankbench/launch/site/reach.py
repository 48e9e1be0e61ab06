"""Whether the hosts of a launch reach each other: by its ports, and by ssh.

``python -m rankbench.launch.site.reach FOLDER FACTS`` runs on every host at the same
time. Each listens, and connects to all others.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rankbench.environ import read_node
from rankbench.launch.hosts.base import FIRST_PORT, LAST_PORT
from rankbench.record import write_json

MODULE = "rankbench.launch.site.reach"

# Ranks meet at a port of the first range. Communication libraries let the kernel
# choose, by default from the second one.
RANGES = {
    f"{first}-{last}": (first, last)
    for first, last in ((FIRST_PORT, LAST_PORT), (32768, 60999))
}
TRIED = 3  # ports of each range
SECONDS = 10.0  # that hosts have to start and to connect
SSH_SECONDS = 5
_ONCE = 1.0  # seconds for one connection

Facts = dict[str, Any]


def choose_ports() -> list[int]:
    """Some ports of each range."""
    return [
        port for one in RANGES.values() for port in random.sample(range(*one), TRIED)
    ]


def describe_ports(ports: Sequence[int]) -> str:
    """The ranges that ports are from."""
    names = [
        name
        for name, (first, last) in RANGES.items()
        if any(first <= port <= last for port in ports)
    ]
    return " and ".join(names)


def reach(node: int, hosts: Sequence[Facts], ports: Sequence[int]) -> Facts:
    """Connect to the other hosts while they connect to this one.

    Args:
        node: number of this host.
        hosts: name, and address for connections.
        ports: those to try.

    Returns:
        `unreached`: host -> ports that cannot be reached there; `ssh`: host -> what ssh
        says there, None if it works.
    """
    others = [host for number, host in enumerate(hosts) if number != node]
    end = time.monotonic() + SECONDS
    with _Listener(ports) as listener, ThreadPoolExecutor(32) as pool:
        tried = {
            (host["name"], port): pool.submit(_connects, host["address"], port, end)
            for host in others
            for port in ports
            if port not in listener.taken
        }
        said = {h["name"]: pool.submit(_why_no_ssh, h["name"]) for h in others}
        failed = [where for where, connects in tried.items() if not connects.result()]
        unreached: dict[str, list[int]] = {}
        for name, port in failed:
            unreached.setdefault(name, []).append(port)
        by_ssh = {name: answer.result() for name, answer in said.items()}
        # The others may not have connected yet.
        listener.wait(len(tried), end)
    return {"unreached": unreached, "ssh": by_ssh}


class _Listener:
    """Accepts connections at ports, and counts them.

    Attributes:
        taken: ports that are in use already.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.taken: set[int] = set()
        self._ports = ports
        self._servers: list[socket.socket] = []
        self._accepted = threading.Semaphore(0)

    def __enter__(self) -> _Listener:
        for port in self._ports:
            try:
                self._servers.append(socket.create_server(("", port), backlog=64))
            except OSError:
                self.taken.add(port)
        for server in self._servers:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()

    def wait(self, count: int, end: float) -> None:
        """Wait until so many connections were accepted, or until the end."""
        for _ in range(count):
            if not self._accepted.acquire(timeout=max(0.0, end - time.monotonic())):
                return

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return
            self._accepted.release()


def _connects(address: str, port: int, end: float) -> bool:
    """Whether a connection succeeds before the end; the other host may start late."""
    while time.monotonic() < end:
        try:
            socket.create_connection((address, port), timeout=_ONCE).close()
        except OSError:
            time.sleep(0.2)
        else:
            return True
    return False


def _why_no_ssh(host: str) -> str | None:
    command = ["ssh", "-T", "-o", "BatchMode=yes"]
    command += ["-o", f"ConnectTimeout={SSH_SECONDS}", "--", host, "true"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * SSH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


def main() -> int:
    folder, facts = Path(sys.argv[1]), json.loads(sys.argv[2])
    node = read_node()
    found = reach(node, facts["hosts"], facts["ports"])
    write_json(folder / f"{facts['hosts'][node]['name']}.reach.json", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
