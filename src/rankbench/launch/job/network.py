"""The network between the hosts of a job, measured once before its first cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from rankbench.environ import job_id
from rankbench.launch.hosts.base import Hosts
from rankbench.launch.job.claim import claim_next
from rankbench.launch.process.supervise import finish
from rankbench.record import CAUSES, RECORD_VERSION, Layout, read_attempt


def check_network(
    layout: Layout, site: Mapping[str, Any], hosts: Hosts, say: Callable[[str], None]
) -> None:
    """Let all pairs of these hosts measure, unless a record has them already.

    A fault is the site's. Cells may work nevertheless, so it only is said.
    """
    records = [one for one in read_attempt(layout.network) if one["status"] == "ok"]
    known = [{name for pair in r["network"] for name in pair["hosts"]} for r in records]
    if len(hosts.names) < 2 or any(each >= {*hosts.names} for each in known):
        return
    # `check --site` looks at hosts; few jobs do.
    from rankbench.launch.site.hosts import measure_pairs

    started = datetime.now(UTC)
    _, folder = claim_next(layout.network)
    pairs, faults = measure_pairs({**site}, hosts, folder)
    finish(
        folder,
        {
            "schema": RECORD_VERSION,
            "purpose": "network",
            "status": "cancelled" if faults else "ok",
            "reason": "; ".join(faults) or None,
            "cause": "site" if faults else None,
            "started": started.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "job_id": job_id(),
            "network": pairs,
        },
    )
    for fault in faults:
        say(f"  network: {fault}; {CAUSES['site']}")
    if pairs:
        slowest = min(pairs, key=lambda pair: float(pair["gb_s"]))
        names = " and ".join(slowest["hosts"])
        speed = f"{slowest['gb_s']:.3g} GB/s, {slowest['us']:.3g} us between {names}"
        say(f"  network: {speed}" + ", the slowest pair" * (len(pairs) > 1))
