"""Why not further: causes that were planted are named first, with their size."""

from __future__ import annotations

import faulty_strategies
import pytest
from allocations import Site

from rankbench.record import Layout
from rankbench.results.numbers.losses import Loss, find_losses
from rankbench.results.numbers.result_set import read

pytestmark = pytest.mark.cluster

# A step of one process sleeps for 30 ms; two ranks exchange 1.6 MiB.
TEXT = """
name: {name}
model: {{emulated: {{mib: 1.6, forward_us: 300, backward_us: 600}}}}
data: synthetic
batch_size: 32
launches: 1
steps: 15
warmup: 3
gate: false
allocation: experiment
time_limit: 120
blocks:
  - strategy: single
    topology: 1x1
  - strategy: {strategy}
    topology: 2x1
"""
# Planted, in milliseconds.
LATE, LOADER = 60.0, 60.0
MEGABIT = 50  # so slow that what runs beside hardly matters

NEXT = "            inputs, targets = next(batches)\n"
SLOW = NEXT + "            time.sleep(0.06 * (strategy.world.size > 1))\n"


def lose(site: Site, name: str, strategy: str = "ddp", slow: str = "") -> Loss:
    """Measure one process, and two ranks of two hosts; what these lose against it.

    Args:
        slow: rate of the link between the hosts; empty for one that is not slowed.
    """
    site.plan(TEXT.format(name=name, strategy=strategy), name)
    host = site.cluster.hosts["node2"]
    if slow:
        host.slow(slow)
    try:
        # In one job, since only launches of common rounds are compared.
        site.measure(name, ["experiment"])
    finally:
        if slow:
            host.mend()
    found = read(Layout(site.project.root / "results" / name))
    assert {summary.status for summary in found.rows} == {"ok"}
    (loss,) = find_losses(found.rows)
    total = sum(part.value for part in loss.parts.values())
    assert total == pytest.approx(loss.lost.value)
    assert abs(loss.parts["unexplained"].value) <= 0.1 * loss.lost.value
    return loss


def largest_of(loss: Loss) -> str:
    return max(loss.parts, key=lambda name: loss.parts[name].value)


@pytest.mark.long
def test_a_slow_rank(site):
    site.project.add_strategy("late", faulty_strategies.LATE)
    loss = lose(site, "late", "late")
    assert largest_of(loss) == "waiting"
    assert loss.parts["waiting"].value == pytest.approx(LATE, rel=0.2)
    assert loss.late == (1, "forward")


def test_a_slow_link(site):
    loss = lose(site, "link", slow=f"{MEGABIT}mbit")
    assert largest_of(loss) == "transfer"
    # In a ring of two ranks, each sends half of the bytes twice.
    record = site.records("link")[loss.cell][0]
    planted = 1e3 * record["model"]["parameter_bytes"] * 8 / (MEGABIT * 1e6)
    assert loss.parts["transfer"].value == pytest.approx(planted, rel=0.2)
    # The check of the network has measured it before.
    found = read(Layout(site.project.root / "results/link"))
    link = found.links["node1", "node2"]
    assert link["gb_s"] == pytest.approx(MEGABIT / 8e3, rel=0.1)


@pytest.mark.long
def test_a_slow_loader(site):
    loop = site.project.root / "src/rankbench/rank/training/loop.py"
    right = loop.read_text()
    assert right.count(NEXT) == 1
    loop.write_text(right.replace(NEXT, SLOW))
    try:
        loss = lose(site, "loader")
    finally:
        loop.write_text(right)
    assert largest_of(loss) == "input"
    assert loss.parts["input"].value == pytest.approx(LOADER, rel=0.2)
