"""All pairs of hosts: whether they reach each other, how soon, and how fast.

Each host runs `exchange` at the same time, with the standard library only.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rankbench.launch.hosts.base import FIRST_PORT, LAST_PORT

# Ranks meet at a port of the first range. Communication libraries let the kernel
# choose, by default from the second one.
PORTS = ((FIRST_PORT, LAST_PORT), (32768, 60999))
TRIED = 3  # ports of each range

REACH_SECONDS = 10.0  # that hosts have to start and to connect
_CONNECT_SECONDS = 1.0

# A pair sends numbers for the latency, then a few messages that are as long as their
# time allows. All pairs together take no longer than ALL_SECONDS.
_NUMBER = struct.Struct("<q")
_TINY_ONES, _LONG_ONES = 50, 3
_BLOCK, LONG = 2**20, 2**26  # bytes
_BYTES = memoryview(bytes(_BLOCK))
ALL_SECONDS = 30.0
_MOST_SECONDS = 0.5  # of a long message
_SILENT_SECONDS = 10.0


def exchange(
    node: int, hosts: Sequence[dict[str, Any]], ports: Sequence[int]
) -> dict[str, Any]:
    """Connect to the other hosts, then measure with one after the other.

    Args:
        node: number of this host.
        hosts: name, and address for connections.
        ports: those to try.

    Returns:
        `unreached`: host -> ports that cannot be reached there; `pairs`: of this host
        and those with a higher number: their names, `us` (latency) and `gb_s`.
    """
    end = time.monotonic() + REACH_SECONDS
    accepted = threading.Semaphore(0)
    served: dict[int, threading.Event] = {n: threading.Event() for n in range(node)}
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(32) as pool:
        free = []
        for port in ports:
            # A port that is in use already is not tried.
            with contextlib.suppress(OSError):
                server = _listen(port)
                stack.callback(server.close)
                arguments = (server, accepted, served)
                threading.Thread(target=_accept, args=arguments, daemon=True).start()
                free.append(port)
        tried = {
            (host["name"], port): pool.submit(_connects, host["address"], port, end)
            for number, host in enumerate(hosts)
            for port in free
            if number != node
        }
        unreached: dict[str, list[int]] = {}
        for (name, port), connects in tried.items():
            if not connects.result():
                unreached.setdefault(name, []).append(port)
        # The others may not have connected yet.
        for _ in tried:
            if not accepted.acquire(timeout=max(0.0, end - time.monotonic())):
                break
        pairs = []
        rounds = list(partners(node, len(hosts)))
        for other in rounds:
            if other is not None and other < node:
                served[other].wait(_SILENT_SECONDS)
            elif other is not None:
                host = hosts[other]
                name, address = host["name"], host["address"]
                open_ones = {*free} - {*unreached.get(name, ())}
                with contextlib.suppress(OSError, ValueError):
                    where = (address, min(open_ones))
                    found = _measure(where, node, ALL_SECONDS / len(rounds))
                    pairs.append({"hosts": [hosts[node]["name"], name], **found})
    return {"unreached": unreached, "pairs": pairs}


def partners(node: int, count: int) -> Iterator[int | None]:
    """Whom a host measures with in each round; None for nobody.

    Pairs of a round have no host in common, so that they may measure at the same time.
    """
    last = count - 1 + count % 2  # with an odd number, it is nobody
    for turn in range(last):
        other = (turn - node) % last
        if node == last:
            other = turn * (last + 1) // 2 % last
        elif other == node:
            other = last
        yield other if other < count else None


def _measure(where: tuple[str, int], node: int, seconds: float) -> dict[str, float]:
    """Latency, and bandwidth in one direction, to a host that serves a connection."""
    with socket.create_connection(where, timeout=_SILENT_SECONDS) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(_NUMBER.pack(node))
        there_and_back = statistics.median(_send(link, 0) for _ in range(_TINY_ONES))
        _send(link, _BLOCK)  # lets the connection grow
        rate = _BLOCK / _send(link, _BLOCK)
        size = int(min(LONG, rate * min(_MOST_SECONDS, seconds / 2 / _LONG_ONES)))
        long = min(_send(link, size) for _ in range(_LONG_ONES)) - there_and_back
    return {"us": 1e6 * there_and_back / 2, "gb_s": size / long / 1e9}


def _send(link: socket.socket, size: int) -> float:
    """Seconds until the other side has said that it has so many bytes."""
    begun = time.perf_counter()
    link.sendall(_NUMBER.pack(size))
    for left in range(size, 0, -_BLOCK):
        link.sendall(_BYTES[:left])
    _receive(link, _NUMBER.size)
    return time.perf_counter() - begun


def _receive(link: socket.socket, size: int) -> bytearray:
    """The last block of so many bytes.

    Raises:
        OSError: the other side has closed the connection, or is silent.
    """
    block = bytearray(min(size, _BLOCK))
    got = 0
    while got < size:
        at = got % len(block)
        more = link.recv_into(memoryview(block)[at:], min(size - got, len(block) - at))
        if not more:
            raise ConnectionError("closed")
        got += more
    return block


def _serve(link: socket.socket, served: dict[int, threading.Event]) -> None:
    """Receive what a host with a lower number sends, until it closes the connection."""
    node = None
    with link, contextlib.suppress(OSError):
        link.settimeout(_SILENT_SECONDS)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        (node,) = _NUMBER.unpack(_receive(link, _NUMBER.size))
        while True:
            (size,) = _NUMBER.unpack(_receive(link, _NUMBER.size))
            _receive(link, size)
            link.sendall(_NUMBER.pack(size))
    if node in served:
        served[node].set()


def _listen(port: int) -> socket.socket:
    """Listen at all addresses of this host, those of IPv6 too if it has any."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(
        ("", port), family=family, backlog=64, dualstack_ipv6=dual
    )


def _accept(
    server: socket.socket,
    accepted: threading.Semaphore,
    served: dict[int, threading.Event],
) -> None:
    with contextlib.suppress(OSError):
        while True:
            arguments = (server.accept()[0], served)
            threading.Thread(target=_serve, args=arguments, daemon=True).start()
            accepted.release()


def _connects(address: str, port: int, end: float) -> bool:
    """Whether a connection succeeds before the end; the other host may start late."""
    while time.monotonic() < end:
        try:
            socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
        except OSError:
            time.sleep(0.2)
        else:
            return True
    return False
