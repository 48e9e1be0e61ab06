"""What a measurement over two hosts must find: a slow link, a wrong sampler."""

from __future__ import annotations

import json

import numpy as np
import pytest
from allocations import Site

pytestmark = pytest.mark.cluster

# Images of 64 pixels make its gradients 1.6 MB, most of them of the first linear layer.
# After that backward has the convolutions to go through. A bucket of 25 MB holds all;
# of two, the first is on its way meanwhile.
SLOW = """
name: slow
strategy: {ddp: {bucket_mb: [25, 1]}}
topology: 2x1
model: lenet
data: synthetic
image_size: 64
batch_size: 32
launches: 1
steps: 3
warmup: 2
gate: false
network_check: false
time_limit: 120
"""

SAMPLER = "        rank=_replica_of(duty.place.rank, ranks, sharing, cell),\n"
WRONG = "        rank=duty.place.local_rank,\n"
GATE = """
name: sampler
strategy: ddp
topology: 2x1
model: lenet
launches: 1
steps: 3
time_limit: 120
"""


def test_a_slow_link_is_exposed_communication_less_what_backward_hides(site):
    megabit, name = 20, "slow"
    cells = site.plan(SLOW, name)
    host = site.cluster.hosts["node2"]
    host.slow(f"{megabit}mbit")
    try:
        site.measure(name, cells)
    finally:
        host.mend()
    records = site.records(name)
    for cell in cells:
        (record,) = records[cell]
        assert record["status"] == "ok", record["reason"]
        # In a ring of two ranks, each sends half of the bytes twice.
        seconds = record["model"]["parameter_bytes"] * 8 / (megabit * 1e6)
        hidden = 0.0
        if record["cell"]["options"]["bucket_mb"] == 1:
            timers = [rank["details"]["ddp_timers"] for rank in record["ranks"]]
            hidden = np.mean([timer["overlap_ms"] for timer in timers]) / 1e3
            assert hidden > 0
        assert exposed(site, name, cell) == pytest.approx(seconds - hidden, rel=0.2)


def exposed(site: Site, name: str, cell: str) -> float:
    """Return the seconds of exposed communication in the fastest step.

    Of both ranks, the shorter time counts, because the other rank also waits for this
    one to begin. Other work on the machine only adds time, so the fastest step counts.
    """
    launch = site.project.root / f"results/{name}/records/{cell}/1/1"
    column = site.records(name)[cell][0]["phases"].index("communication")
    with np.load(launch / "steps.npz") as steps:
        ranks = [steps[f"rank{rank}/seconds"][:, column] for rank in (0, 1)]
    return float(np.min(ranks))


def test_the_gate_finds_a_sampler_that_takes_the_local_rank(site):
    """The error of a published tutorial: both hosts train on the same samples."""
    setup = site.project.root / "src/rankbench/rank/purposes/setup.py"
    right = setup.read_text()
    assert right.count(SAMPLER) == 1
    setup.write_text(right.replace(SAMPLER, WRONG))
    try:
        (cell,) = site.plan(GATE, "sampler")
        site.measure("sampler", [cell])
    finally:
        setup.write_text(right)
    attempt = site.project.root / f"results/sampler/records/{cell}/1"
    record = json.loads((attempt / "gate/1/record.json").read_text())
    assert record["status"] == "mismatch"
    assert "does not train what a single process trains" in record["reason"]
    assert not site.records("sampler"), "what trains something else gets no speed"
