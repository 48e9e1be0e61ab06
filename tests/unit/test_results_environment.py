"""The environment table: all hosts, all versions, and where they differ."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rankbench.results.numbers.summary import summarise
from rankbench.results.read.rows import load
from rankbench.results.sections import environment
from unit import synthetic

pytestmark = pytest.mark.unit

NIC = {"name": "eth0", "driver": "mlx5_core", "model": "15b3:1017", "gbit_s": 25.0}
GPU = {"name": "Example GPU", "memory_gib": 79.6}


def host(name: str, **changes) -> dict:
    facts = {
        "host": name,
        "cpu": "Example CPU",
        "cores": 32,
        "memory_gib": 251.7,
        "kernel": "6.1",
        "os": "Example Linux 12",
        "nics": [NIC],
        "gpus": [GPU, GPU],
        "gpu_links": ["NV12"],
        "gpu_driver": "550.54.15",
    }
    return facts | changes


def lines_of(root: Path, hosts: list[dict], **changes) -> dict[str, str]:
    planned = synthetic.plan_cell(synthetic.make_cell("ddp", "2x1"))
    layout = synthetic.write_plan(root, [planned])
    synthetic.write_launches(layout, planned, hosts=hosts, **changes)
    lines = environment.find_environment(summarise(load(layout)))
    synthetic.write_tables(layout)
    written = pd.read_csv(layout.table("csv", "environment"), keep_default_na=False)
    assert list(written.itertuples(index=False, name=None)) == lines
    return {item: value for _, item, value in lines}


def test_hosts_that_are_alike(tmp_path: Path) -> None:
    found = lines_of(tmp_path, [host("a"), host("b")])
    assert found["servers"] == "2"
    assert found["CPU"] == "Example CPU, 32 cores"
    assert found["network cards"] == "1 x eth0 (15b3:1017, driver mlx5_core, 25 Gbit/s)"
    assert found["GPUs"] == "2 x Example GPU, 80 GiB"
    assert found["links between GPUs"] == "NV12"
    assert found["GPU driver"] == "550.54.15"
    assert (found["PyTorch"], found["NCCL"]) == ("2.13.0", "none")
    assert found["images"] == "none: native"


def test_hosts_that_differ(tmp_path: Path) -> None:
    bare = host("c", gpus=[], gpu_links=[], gpu_driver=None)
    found = lines_of(tmp_path, [host("a"), host("b"), bare])
    assert found["GPUs"] == "2 x Example GPU, 80 GiB (2 hosts); none (1 host)"
    assert found["GPU driver"] == "550.54.15 (2 hosts); none (1 host)"


def test_older_records_tell_less(tmp_path: Path) -> None:
    old = {k: v for k, v in host("a").items() if k not in ("nics", "gpu_links", "os")}
    found = lines_of(tmp_path, [old])
    assert (found["network cards"], found["operating system"]) == ("none", "none")
