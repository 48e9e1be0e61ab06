"""site_check names each difference between hosts and site file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from factories import make_gpu_site
from rankbench.assets import find_asset
from rankbench.launch.images.store import load_images
from rankbench.launch.site.hosts import describe, find_faults, inspect, main
from rankbench.launch.site.machine import FLAVOURS, IMAGES
from rankbench.record import read_json, write_json
from rankbench.schema import load_yaml

pytestmark = pytest.mark.unit

SITE = make_gpu_site(nodes=2, scheduler="slurm", software="container", interface="ib0")


def host(name: str, other: str) -> dict[str, Any]:
    return {
        "host": name,
        "time": 1000.5,
        "python": "3.11.7",
        "cores": 16,
        "memory_mib": 250_000,
        "load": 0.1,
        "measures": False,
        "itself": ["10.0.0.1"],
        "gpus": ["H100"] * 4,
        "capabilities": ["9.0"] * 4,
        "driver": "580.65.06",
        "adapters": ["mlx5_0"],
        "verbs": True,
        "memlock": -1,
        "interfaces": {"eth0": ["10.0.0.1"], "ib0": ["10.1.0.1"], "ib1": []},
        "slurm": "slurm 23.11",
        "apptainer": "apptainer version 1.4.5",
        "missing": [],
        "fuse": True,
        "container": "",
        "shm_mib": 125_000,
        "scratch": "/scratch",
        "scratch_mib": 800_000,
        "seen": ["a", "b"],
        "names": {other: {"addresses": ["10.0.0.2"], "seconds": 0.01}},
    }


def found() -> dict[str, Any]:
    hosts = [host("a", "b"), host("b", "a")]
    return {
        "hosts": hosts,
        "said": "",
        "began": 1000.0,
        "ended": 1001.0,
        "pmix": True,
        "faults": [],
        "reach": {},
    }


SSH = {
    **SITE,
    "scheduler": "ssh",
    "shared": True,
    "hosts": [{"name": "a", "devices": 4}, {"name": "b", "devices": 2}],
}
CASES = load_yaml(Path(__file__).parent / "cases/faults_of_hosts.yaml")


def cell(words: str) -> dict[str, Any]:
    image, backend, *nodes = words.split(" ")
    fields = {"backend": backend, "launcher": "torchrun"}
    return {
        "image": image or None,
        "cell": fields,
        "shape": {"nodes": int(*nodes or [2])},
    }


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind in CASES for case in CASES[kind]]
)
def test_each_fault_has_its_host_and_a_remedy(kind, case):
    facts = found()
    facts["hosts"][0] |= case.get("a", {})
    if kind == "ssh":
        facts["hosts"][1]["gpus"] = ["H100"] * 2
    software = {"torch": case.get("torch", "2.13.0+cu130")}
    images = {"images": dict.fromkeys(("nccl-cuda", "own"), software)}
    site = {**(SSH if kind == "ssh" else SITE), **images, "native": software}
    cells = [cell(words) for words in case.get("cells", ())]
    said = find_faults({**site, **case.get("site", {})}, facts, cells=cells)
    assert len(said) == ("fault" in case), said
    for fault in said:
        assert re.search(f"^a: .*{case['fault']}|^a: {case['fault']}", fault), fault


def test_a_host_that_says_nothing_is_missed():
    facts = found() | {"said": "srun: warning\nsrun: error: node b is gone"}
    del facts["hosts"][1]
    facts["hosts"][0] |= {"seen": ["a"], "names": {}}
    (fault,) = find_faults(SITE, facts)
    assert fault.startswith("1 of 2 hosts reported (a)")
    assert fault.endswith("it said: srun: error: node b is gone")


@pytest.mark.parametrize("image", IMAGES)
def test_the_cuda_of_an_image_is_that_of_its_requirements(image):
    containers = find_asset("containers")
    promise = load_images(containers, containers)[image].promise
    (file, *_) = promise["requirements"]["cuda"]
    text = (containers / "requirements" / file).read_text()
    major, minor = FLAVOURS[IMAGES[image]]
    found = re.search(
        r"^nvidia-cuda-runtime(?:-cu12)?==(\d+)\.(\d+)", text, re.MULTILINE
    )
    assert found is not None
    assert (int(found[1]), int(found[2])) == (major, minor)
    assert f"\ntorch==={promise['torch']} " in text


def test_hosts_that_do_not_reach_each_other():
    facts = found() | {"reach": {"b": {"unreached": {"a": [20_100]}}}}
    facts["hosts"][1]["gpus"] = ["H100"] * 2
    (port,) = find_faults(SSH, facts)
    assert port == (
        "b: cannot connect to a at TCP port 20100: on a, let the firewall accept "
        "connections from b to the ports 20000-31999"
    )


def test_faults_of_connections_come_first():
    facts = found() | {"faults": ["b: cannot be reached"]}
    del facts["hosts"][1]
    facts["hosts"][0] |= {"seen": ["a"], "names": {}}
    assert find_faults(SSH, facts) == ["b: cannot be reached"]


def test_what_hosts_have_is_told():
    lines = describe(SITE, found() | {"pmix": False})
    assert (
        "  GPUs 4 x H100, driver 580.65.06; network eth0 10.0.0.1, ib0 10.1.0.1"
        in lines
    )
    assert lines[-1].startswith("srun has no PMIx")


def test_this_machine_is_looked_at(tmp_path, capsys):
    site = {
        **make_gpu_site(gpus=0, device="cpu", cores=1),
        "scratch": str(tmp_path),
    }
    plan = tmp_path / "plan.json"
    write_json(plan, {"site": site, "code": {"rank": "0"}, "images": {}, "cells": []})
    facts = inspect(read_json(plan), tmp_path)
    (this,) = facts["hosts"]
    assert this["cores"] >= 1
    assert this["seen"] == [this["host"]]
    assert facts["began"] <= this["time"] <= facts["ended"]
    assert sorted(tmp_path.iterdir()) == [plan]
    assert main(plan) == 0
    said = capsys.readouterr().out
    assert this["host"] in said
    assert said.endswith(("all is as site.yaml says\n", " faults\n"))
