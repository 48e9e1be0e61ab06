"""Which host is slow: by launches on one host each, and by late ranks."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from factories import make_gpu_site
from rankbench.launch.site import network
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.plan import make_plan
from rankbench.record import RECORD_VERSION, Layout, read_json, write_json
from rankbench.results.advice.answer import find_answer
from rankbench.results.bundle.contents import find_measured
from rankbench.results.numbers.hosts import AT_LEAST, compare_rates
from rankbench.results.numbers.result_set import read
from unit.synthetic import (
    edited,
    make_cell,
    plan_cell,
    read_rows,
    write_launch,
    write_plan,
    write_rows,
)

pytestmark = pytest.mark.unit


def put(folder: Path, *names: str) -> None:
    """Let the ranks of a launch have run on these hosts."""
    with edited(folder / "record.json") as record:
        (first, *_) = record["hosts"]
        record["hosts"] = [{**first, "host": name} for name in dict.fromkeys(names)]
        for rank, name in zip(record["ranks"], names, strict=True):
            rank["host"] = name


def slow_ones(rates: dict[str, list[float]]) -> list[str]:
    found = compare_rates(rates, len(rates))
    return [h for h, one in found.items() if one.high and one.high < AT_LEAST]


def simulate(seed: int, slow: float = 1.0) -> list[str]:
    """Four hosts with four launches each, which scatter by 5 %; node3 is slower."""
    draw = random.Random(seed)
    rates = {
        f"node{n}": [
            800 * (slow if n == 3 else 1) * draw.lognormvariate(0, 0.05)
            for _ in range(4)
        ]
        for n in (1, 2, 3, 4)
    }
    return slow_ones(rates)


def test_a_slow_host_is_found_and_equal_ones_are_not():
    assert [simulate(seed) for seed in range(1000)].count([]) >= 990
    found = [simulate(seed, slow=0.7) for seed in range(200)]
    assert found.count(["node3"]) >= 195
    assert all(set(one) <= {"node3"} for one in found)


def test_brackets_hold_together():
    """Each over the true ratio 1, for all hosts of a table at once."""
    held = 0
    for seed in range(400):
        draw = random.Random(seed)
        rates = {
            str(n): [draw.lognormvariate(0, 0.1) for _ in range(4)] for n in range(4)
        }
        held += all(
            one.may_be(1.0) for one in compare_rates(rates, len(rates)).values()
        )
    assert held >= 0.94 * 400


def write_each(folder: Path, slow: float) -> Layout:
    cells = [
        plan_cell(make_cell("single", hosts=f"node{n}"), suffix=f".hosts=node{n}")
        for n in (1, 2, 3, 4)
    ]
    layout = write_plan(folder, cells, launches=4)
    for n, cell in enumerate(cells, 1):
        for launch in (1, 2, 3, 4):
            rate = (800 / slow if n == 3 else 800) * (1 + 0.01 * ((launch + n) % 3))
            put(
                write_launch(layout, cell, launch, rate=rate, wanted=4, round=None),
                f"node{n}",
            )
    return layout


@pytest.mark.parametrize(("slow", "status"), [(2.0, 1), (1.0, 0)])
def test_each_host(tmp_path, cli, slow, status):
    layout = write_each(tmp_path / "each", slow)
    rows = write_rows(layout)
    marked = [name for name, row in rows.items() if "slow-host" in row["marks"]]
    assert [name[-5:] for name in marked] == ["node3"] * status
    said = cli("compare", str(layout.root), "--by", "host", status=status).out
    assert f"surely below 0.95 of the others: {'node3' if status else 'none'}" in said
    (facts,) = find_answer(read(layout)).workloads
    words = "node3 is 2 times slower than the 3 others (launches 1, 2, 3, 4)"
    assert facts.undecided == (
        words if status else "no host is surely slower than the others"
    )
    found = read_rows(layout, "hosts")
    assert len(found) == 4
    if status:
        assert found[-1]["host"] == "node3"
        assert float(found[-1]["ratio_hi"]) < 0.6


def test_launches_of_a_shared_job_that_differ_by_host(tmp_path, cli):
    """They scatter too much to say which row is best; the cause is not chance."""
    cells = [plan_cell(make_cell(name)) for name in ("single", "ddp")]
    layout = write_plan(tmp_path / "shared", cells, launches=4)
    for cell, rates in zip(
        cells, ((2262, 347, 1950, 369), (400, 2000, 380, 1900)), strict=True
    ):
        for launch, rate in enumerate(rates, 1):
            name = "node2" if rate < 1000 else "node1"
            more: dict[str, Any] = {"rate": rate, "wanted": 4}
            put(write_launch(layout, cell, launch, **more), name)
    rows = write_rows(layout)
    assert all("slow-host" in row["marks"] for row in rows.values())
    said = " ".join(cli("answer", str(layout.root), status=3).out.split())
    assert "node2 is 5 times slower than node1 (launches 1, 3) of ddp" in said


@pytest.mark.parametrize(("late", "named"), [(0.8, True), (0.99, False)])
def test_a_rank_that_is_always_late_names_its_host(tmp_path, late, named):
    cell = plan_cell(make_cell("ddp", "2x1"))
    layout = write_plan(tmp_path / "late", [cell], launches=4)
    for launch in (1, 2, 3, 4):
        folder = write_launch(layout, cell, launch, wanted=4)
        put(folder, "node1", "node2")
        # Rank 0 is the slowest of synthetic launches.
        import numpy as np

        with np.load(folder / "steps.npz") as file:
            steps = dict(file)
        steps["rank1/seconds"] = steps["rank0/seconds"] * late
        np.savez(folder / "steps.npz", **steps)
    (row,) = write_rows(layout).values()
    assert ("slow-host" in row["marks"]) is named


DOWN = "Slurm says down on node2: fan"


def test_a_cell_runs_on_each_host(tmp_path):
    path = tmp_path / "each.yaml"
    path.write_text("name: each\nstrategy: single\nhosts: each\n")

    def load(*names: str) -> Any:
        hosts = {name: DOWN if name == "node2" else None for name in names}
        return load_experiment(
            path, load_catalog(), cuda=False, list_hosts=lambda: hosts
        )

    cells = load("node1", "node2").cells
    site = make_gpu_site(scheduler="slurm", device="cpu")
    plan = make_plan(
        load("node1", "node2"), site, load_catalog(), code=lambda _: "", source=""
    )
    assert [one.infeasible for one in plan.cells.values()] == [None, DOWN]
    assert [cell.queue for cell in cells.values()] == [
        {"hosts": "node1"},
        {"hosts": "node2"},
    ]
    assert [name.rpartition(".")[2] for name in cells] == ["hosts=node1", "hosts=node2"]
    with pytest.raises(ValueError, match="this site lists no hosts"):
        load()
    path.write_text(f"{path.read_text()}topology: 2x1\n")
    with pytest.raises(ValueError, match="has several hosts: choose topology"):
        load("node1")


@pytest.mark.parametrize("count", range(2, 10))
def test_pairs_can_measure_at_the_same_time(count):
    """With all others before, both hosts of a pair come to each other."""
    left = [list(network.partners(node, count)) for node in range(count)]
    assert all({*own} == {*range(count)} - {node} for node, own in enumerate(left))
    for _ in range(count):
        for node, own in enumerate(left):
            if own and left[own[0]][:1] == [node]:
                left[own.pop(0)].pop(0)
    assert not any(left)


def test_eight_hosts_measure_all_pairs_within_a_minute(monkeypatch):
    """Each host is a thread with a loopback address of its own."""
    own = threading.local()
    hosts = [{"name": f"node{n}", "address": f"127.0.0.{10 + n}"} for n in range(8)]
    monkeypatch.setattr(
        network, "_listen", lambda port: socket.create_server((own.address, port))
    )
    monkeypatch.setattr(network, "LONG", 2**20)
    ports = random.sample(range(*network.PORTS[0]), network.TRIED)

    def measure(node: int) -> dict[str, Any]:
        own.address = hosts[node]["address"]
        return network.exchange(node, hosts, ports)

    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(measure, range(8))]
    assert time.monotonic() - begun < 60
    assert not any(one["unreached"] for one in found)
    pairs = [(*link["hosts"],) for one in found for link in one["pairs"]]
    names = [host["name"] for host in hosts]
    assert sorted(pairs) == [*itertools.combinations(names, 2)]
    assert all(link["gb_s"] > 0 for one in found for link in one["pairs"])


def test_the_network_between_hosts(tmp_path):
    """Its section has each pair, and a bundle keeps it."""
    cell = plan_cell(make_cell("ddp", "2x1"))
    layout = write_plan(tmp_path / "network", [cell], launches=3)
    for launch in (1, 2, 3):
        put(write_launch(layout, cell, launch, wanted=3), "node1", "node2")
    links = [
        {"hosts": [one, other], "us": 25.0, "gb_s": speed}
        for one, other, speed in (("node1", "node2", 0.117), ("node1", "node3", 1.1))
    ]
    about = {"purpose": "network", "status": "ok", "reason": None, "network": links}
    file = layout.network / "1/record.json"
    write_json(file, {"schema": RECORD_VERSION, **about})
    write_rows(layout)
    rows = read_rows(layout, "network")
    assert [row["other"] for row in rows] == ["node2", "node3"]
    assert float(rows[0]["gb_s"]) == 0.117
    assert file in find_measured(layout, read_json(layout.plan))
    write_json(file, {"schema": RECORD_VERSION, **about, "network": [{"us": 1}]})
    assert read(layout).links == {}
    with pytest.raises(ValueError, match="network"):
        read(layout, strict=True)
