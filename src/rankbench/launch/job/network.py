"""The network between the hosts of a job, measured once before its first cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rankbench.launch.hosts.base import Hosts
from rankbench.launch.job.claim import claim_next
from rankbench.launch.process.supervise import finish
from rankbench.record import (
    CAUSES,
    RECORD_VERSION,
    Layout,
    first_line,
    read_record,
)


def check_network(
    layout: Layout, site: Mapping[str, Any], hosts: Hosts, say: Callable[[str], None]
) -> None:
    """Let all pairs of these hosts measure, unless records have them already.

    A fault is the site's. Cells may work nevertheless, so it only is said.
    """
    known: list[Sequence[str]] = []
    for path in sorted(layout.network.glob("*/record.json")):
        try:
            known += [link["hosts"] for link in read_record(path)["network"]]
        except ValueError as error:
            say(f"  network: {error}: its hosts are measured again")
    left = list(itertools.combinations(hosts.names, 2))
    if all([*pair] in known for pair in left):
        return
    # `check --site` looks at hosts; few jobs do.
    from rankbench.launch.site.hosts import measure_pairs

    started = datetime.now(UTC).isoformat(timespec="seconds")
    _, folder = claim_next(layout.network)
    links, said = measure_pairs({**site}, hosts, folder.resolve())
    record: dict[str, Any] = {"schema": RECORD_VERSION, "status": "ok", "reason": None}
    record |= {"purpose": "network", "started": started, "network": links}
    finish(folder, record)
    slow = min(links, key=lambda link: float(link["gb_s"]), default=None)
    if slow:
        speed = f"{slow['gb_s']:.3g} GB/s, {slow['us']:.3g} us"
        say(f"  network: at least {speed}, between {' and '.join(slow['hosts'])}")
    known = [link["hosts"] for link in links]
    if silent := [" and ".join(pair) for pair in left if [*pair] not in known]:
        why = f"have exchanged nothing: {first_line(said)}"
        say(f"  network: {', '.join(silent[:3])} {why}; {CAUSES['site']}")
