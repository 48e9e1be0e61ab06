"""site_check names each difference between hosts and site file."""

from __future__ import annotations

import re
from typing import Any

import pytest

from factories import make_gpu_site, read_pairs
from rankbench.assets import find_asset
from rankbench.launch.images.store import load_images
from rankbench.launch.site.hosts import describe, find_faults, inspect, main
from rankbench.launch.site.machine import FLAVOURS, IMAGES
from rankbench.record import read_json, write_json
from rankbench.schema import parse_yaml

pytestmark = pytest.mark.unit

SITE = make_gpu_site(
    nodes=2, scheduler="slurm", software="container", interface="ib0"
).to_dict()


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


def test_a_site_that_is_as_it_says_has_no_fault():
    assert find_faults(SITE, found()) == []


@pytest.mark.parametrize(("change", "fault"), read_pairs("faults_of_hosts.txt"))
def test_each_fault_has_its_host_and_a_remedy(change, fault):
    facts = found()
    facts["hosts"][0] |= parse_yaml(change, "test")
    said = find_faults(SITE, facts)
    assert len(said) == 1
    assert said[0].startswith("a: ")
    assert re.search(fault, said[0]), said[0]


def test_a_host_that_says_nothing_is_missed():
    facts = found() | {"said": "srun: warning\nsrun: error: node b is gone"}
    del facts["hosts"][1]
    facts["hosts"][0] |= {"seen": ["a"], "names": {}}
    (fault,) = find_faults(SITE, facts)
    assert fault.startswith("1 of 2 hosts reported (a)")
    assert fault.endswith("it said: srun: error: node b is gone")


SSH = {
    **SITE,
    "scheduler": "ssh",
    "shared": True,
    "hosts": [{"name": "a", "devices": 4}, {"name": "b", "devices": 2}],
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gpus": ["H100"] * 3}, r"shows 3 GPUs, site.yaml says 4 \(devices in hosts"),
        ({"measures": True}, "another run of rankbench measures there"),
        ({"load": 9.0}, r"is busy \(load 9.0 on 16 cores\): find out by top"),
    ],
)
def test_each_fault_of_a_listed_host(change, fault):
    facts = found()
    facts["hosts"][1]["gpus"] = ["H100"] * 2
    assert find_faults(SSH, facts) == []
    facts["hosts"][0] |= change
    (said,) = find_faults(SSH, facts)
    assert re.search(f"^a: {fault}", said), said


def test_hosts_that_share_no_files_need_not_see_those_of_others():
    facts = found()
    facts["hosts"][0] |= {"seen": ["a"]}
    facts["hosts"][1] |= {"gpus": ["H100"] * 2, "seen": ["b"]}
    assert len(find_faults(SSH, facts)) == 2
    assert find_faults({**SSH, "shared": False}, facts) == []


@pytest.mark.parametrize("site", [SSH, SITE], ids=["ssh", "slurm"])
def test_a_host_that_calls_itself_loopback_needs_an_interface(site):
    facts = found()
    facts["hosts"][1] |= {"itself": ["127.0.1.1"]}
    assert find_faults(site, facts) == []
    (said,) = find_faults({**site, "interface": None}, facts)
    assert said.startswith("b: calls itself 127.0.1.1")
    assert find_faults({**site, "interface": None, "nodes": 1}, facts) == []


def test_a_host_with_ipv6_only_has_no_fault():
    facts = found()
    facts["hosts"][1] |= {
        "itself": ["2001:db8::2", "127.0.1.1"],
        "interfaces": {"ib0": ["2001:db8::2"]},
        "names": {"a": {"addresses": ["2001:db8::1"], "seconds": 0.01}},
    }
    assert find_faults(SITE, facts) == []
    assert find_faults({**SITE, "interface": None}, facts) == []


def cell(
    image: str | None, backend: str = "nccl", nodes: int = 2, launcher: str = "torchrun"
) -> dict[str, Any]:
    fields = {"backend": backend, "launcher": launcher}
    return {"image": image, "cell": fields, "shape": {"nodes": nodes}}


def with_torch(image: str, torch: str) -> dict[str, Any]:
    return {**SITE, "images": {image: {"torch": torch}}, "native": {"torch": torch}}


@pytest.mark.parametrize(
    ("torch", "driver", "fault"),
    [
        ("2.13.0+cu130", "580.65.06", None),
        ("2.13.0+cu130", "570.86.15", "580 or newer"),
        # An image that is not built yet has only its promise.
        ("2.13.0", "535.129.03", "580 or newer"),
        ("2.7.1+cu126", "535.129.03", None),
        ("2.7.1+cu126", "470.82.01", "525 or newer"),
        ("2.13.0+cu130", None, None),
    ],
)
def test_an_image_that_the_driver_cannot_run(torch, driver, fault):
    facts = found()
    facts["hosts"][0]["driver"] = driver
    site = with_torch("nccl-cuda", torch)
    said = find_faults(site, facts, cells=[cell("nccl-cuda")])
    if fault is None:
        assert said == []
        return
    assert len(said) == 1
    assert re.search(rf"^a: .*{driver}.*image nccl-cuda has CUDA \d+.*{fault}", said[0])
    assert find_faults(site, facts) == [], "no cell uses the image"


def test_gpus_that_an_image_has_no_kernels_for():
    """V100, in images with CUDA 13."""
    facts = found()
    facts["hosts"][1]["capabilities"] = ["7.0"] * 4
    new, old = (
        find_faults(with_torch("nccl-cuda", torch), facts, cells=[cell("nccl-cuda")])
        for torch in ("2.13.0+cu130", "2.7.1+cu126")
    )
    assert len(new) == 1
    assert re.search(
        r"^b: .*7\.0.*nccl-cuda .*from 7.5 on: set cuda_flavour: cuda12", new[0]
    )
    assert old == []
    own = find_faults(with_torch("own", "2.13.0+cu130"), facts, cells=[cell("own")])
    assert own[0].endswith("name an image with another CUDA (images in site.yaml)")
    native = {**with_torch("x", "2.13.0+cu130"), "software": "native"}
    (said,) = find_faults(native, facts, cells=[cell(None)])
    assert "install a torch" in said
    on_cores = {**native, "native": {"torch": "2.13.0+cpu"}}
    assert find_faults(on_cores, facts, cells=[cell(None)]) == []


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


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"verbs": False}, "cannot open /dev/infiniband: nccl in the image nccl-cuda"),
        ({"memlock": 8 << 20}, "locked memory to 8192 KiB.*MEMLOCK in slurm.conf"),
    ],
)
def test_what_keeps_a_library_from_the_adapters(change, fault):
    facts = found()
    facts["hosts"][0] |= change
    site = with_torch("nccl-cuda", "2.13.0+cu130")
    (said,) = find_faults(site, facts, cells=[cell("nccl-cuda")])
    assert re.search(f"^a: .*mlx5_0.*{fault}|^a: .*{fault}", said)
    # On one host, over gloo, or without an adapter it does not matter.
    assert find_faults(site, facts, cells=[cell("nccl-cuda", nodes=1)]) == []
    assert find_faults(site, facts, cells=[cell("nccl-cuda", "gloo")]) == []
    facts["hosts"][0]["adapters"] = []
    assert find_faults(site, facts, cells=[cell("nccl-cuda")]) == []


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


def test_what_images_need_is_asked_only_where_there_are_images():
    facts = found()
    facts["hosts"][0] |= {"apptainer": None, "fuse": False, "container": None}
    assert find_faults({**SITE, "software": "native"}, facts) == []


def test_what_hosts_have_is_told():
    lines = describe(SITE, found() | {"pmix": False})
    assert (
        "  GPUs 4 x H100, driver 580.65.06; network eth0 10.0.0.1, ib0 10.1.0.1"
        in lines
    )
    assert lines[-1].startswith("srun has no PMIx")


def test_this_machine_is_looked_at(tmp_path, capsys):
    site = {
        **make_gpu_site(gpus=0, device="cpu", cores=1).to_dict(),
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
