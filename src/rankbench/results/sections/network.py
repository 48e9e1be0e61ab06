"""How fast the network is between each two hosts, measured before the first cell."""

from __future__ import annotations

from rankbench.results.elements.section import Content, Section
from rankbench.results.numbers.result_set import ResultSet


def make(found: ResultSet) -> Content | None:
    """Between two hosts, over one TCP connection from the first to the second, with
    nothing else to do: latency of 8 bytes and bandwidth of up to 64 MiB.
    """
    rows = [
        {"host": one, "other": other, "us": link["us"], "gb_s": link["gb_s"]}
        for (one, other), link in found.links.items()
    ]
    return Content(rows=rows) if rows else None


SECTION = Section(
    title="Network",
    order=31,
    make=make,
    columns={
        "host": (str, "host"),
        "other": (str, "other"),
        "us": (float, "latency (us)"),
        "gb_s": (float, "bandwidth (GB/s)"),
    },
)
