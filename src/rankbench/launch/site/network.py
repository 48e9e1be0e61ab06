"""All pairs of hosts: whether they reach each other, how soon, and how fast.

Each host runs `exchange` at the same time, with the standard library only.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rankbench.launch_spec import FIRST_PORT, LAST_PORT

# Ranks meet at a port of the first range. Communication libraries let the kernel
# choose, by default from the second one.
PORTS = ((FIRST_PORT, LAST_PORT), (32768, 60999))
TRIED = 3  # ports of each range

REACH_SECONDS = 10.0  # that hosts have to start and to connect
_CONNECT_SECONDS = 1.0

# Connections of each host, by its number, over which it will measure.
Links = Sequence[queue.SimpleQueue[socket.socket]]

# A pair sends numbers for the latency, then a few messages that are as long as their
# time allows. All pairs together take no longer than ALL_SECONDS.
_NUMBER = struct.Struct("<q")
_TINY_ONES, _LONG_ONES = 50, 3
_BLOCK, LONG = 2**20, 2**26  # bytes
_BYTES = memoryview(bytes(_BLOCK))
ALL_SECONDS = 30.0
_MOST_SECONDS = 0.5  # of a long message
_SILENT_SECONDS = 30.0  # a host may be busy with another that a firewall hides


def exchange(
    node: int, hosts: Sequence[dict[str, Any]], ports: Sequence[int]
) -> dict[str, Any]:
    """Connect to the other hosts, and measure, with one after the other.

    Args:
        node: number of this host.
        hosts: name, and address for connections.
        ports: those to try.

    Returns:
        `unreached`: host -> ports that cannot be reached there; `pairs`: of this host
        and those with a higher number: their names, `us` (latency) and `gb_s`.
    """
    end = time.monotonic() + REACH_SECONDS
    links: Links = [queue.SimpleQueue() for _ in hosts]
    unreached, pairs = {}, []
    with contextlib.ExitStack() as stack:
        free = []
        for port in ports:
            # A port that is in use already is not tried.
            with contextlib.suppress(OSError):
                server = _listen(port)
                stack.callback(server.close)
                _start(_accept, server, links)
                free.append(port)
        for other in partners(node, len(hosts)):
            name, address = hosts[other]["name"], hosts[other]["address"]
            # Where that fails, the end has come, by which the other has tried as well.
            closed = [port for port in free if not _connects(address, port, end)]
            if closed:
                unreached[name] = closed
            if other < node:
                with contextlib.suppress(OSError, ValueError, queue.Empty):
                    _serve(links[other].get(timeout=_SILENT_SECONDS))
            elif len(closed) < len(free):
                port = next(port for port in free if port not in closed)
                with contextlib.suppress(OSError):
                    found = _measure((address, port), node, ALL_SECONDS / len(hosts))
                    pairs.append({"hosts": [hosts[node]["name"], name], **found})
    return {"unreached": unreached, "pairs": pairs}


def partners(node: int, count: int) -> Iterator[int]:
    """The other hosts, in an order in which pairs can measure at the same time.

    In each round, every host has another partner, or with an odd number one has none.
    """
    last = count - 1 + count % 2
    for turn in range(last):
        other = (turn - node) % last
        if node == last:
            other = turn * (last + 1) // 2 % last
        elif other == node:
            other = last
        if other < count:
            yield other


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


def _serve(link: socket.socket) -> None:
    """Receive what the other host sends, until it closes the connection."""
    with link:
        while True:
            (size,) = _NUMBER.unpack(_receive(link, _NUMBER.size))
            _receive(link, size)
            link.sendall(_NUMBER.pack(size))


def _listen(port: int) -> socket.socket:
    """Listen at all addresses of this host, those of IPv6 too if it has any."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(
        ("", port), family=family, backlog=64, dualstack_ipv6=dual
    )


def _accept(server: socket.socket, links: Links) -> None:
    with contextlib.suppress(OSError):
        while True:
            _start(_keep, server.accept()[0], links)


def _keep(link: socket.socket, links: Links) -> None:
    """Keep a connection until its host's turn.

    Whoever says nothing, or no such number, only learns that the port is open.
    """
    try:
        link.settimeout(_SILENT_SECONDS)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        (node,) = _NUMBER.unpack(_receive(link, _NUMBER.size))
        links[range(len(links))[node]].put(link)
    except (OSError, IndexError):
        link.close()


def _start(function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _connects(address: str, port: int, end: float) -> bool:
    """Whether a connection succeeds before the end; the other host may start late."""
    while True:
        try:
            socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        else:
            return True
