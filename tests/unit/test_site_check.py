"""site_check names each difference between hosts and site file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from factories import make_gpu_site
from rankbench.launch.site.check import describe, find_faults, main
from rankbench.launch.site.inventory import inspect
from rankbench.record import read_json, write_json

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
        "interfaces": {"eth0": ["10.0.0.1"], "ib0": ["10.1.0.1"], "ib1": []},
        "slurm": "slurm 23.11",
        "apptainer": "apptainer version 1.4.5",
        "missing": [],
        "fuse": True,
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


def test_a_site_that_is_as_it_says_has_no_fault() -> None:
    assert find_faults(SITE, found()) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gpus": ["H100"] * 3}, "shows 3 GPUs, site.yaml says 4 .*gres"),
        ({"cores": 8}, "lets a job use 8 physical cores, site.yaml says 16"),
        ({"interfaces": {"eth0": ["1.2.3.4"]}}, "no interface ib0 .*it has eth0: "),
        ({"interfaces": {"ib0": []}}, "no interface ib0 .*it has none: "),
        ({"apptainer": None}, "has no Apptainer on PATH: load its module"),
        ({"fuse": False}, "/dev/fuse must be readable"),
        ({"missing": ["/opt/efa"]}, "has no /opt/efa: correct binds"),
        ({"slurm": None}, "no Slurm commands on PATH"),
        ({"shm_mib": 64}, "has 64 MiB in /dev/shm"),
        ({"scratch_mib": None}, "cannot write to /scratch: correct scratch"),
        ({"scratch_mib": 5}, "has 5 MiB free in /scratch: empty it"),
        ({"seen": ["a"]}, "does not see files of b: the project must lie"),
        ({"time": 990.0}, "its clock is at least 10 s off"),
        ({"time": 1011.0}, "its clock is at least 10 s off"),
        ({"names": {"b": {"addresses": [], "seconds": 0}}}, "cannot resolve b: "),
        (
            {"names": {"b": {"addresses": ["1.2.3.4"], "seconds": 10.0}}},
            "takes 10 s to resolve b and its address",
        ),
    ],
)
def test_each_fault_has_its_host_and_a_remedy(
    change: dict[str, Any], fault: str
) -> None:
    facts = found()
    facts["hosts"][0] |= change
    said = find_faults(SITE, facts)
    assert len(said) == 1
    assert said[0].startswith("a: ")
    assert re.search(fault, said[0]), said[0]


def test_a_host_that_says_nothing_is_missed() -> None:
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
def test_each_fault_of_a_listed_host(change: dict[str, Any], fault: str) -> None:
    facts = found()
    facts["hosts"][1]["gpus"] = ["H100"] * 2
    assert find_faults(SSH, facts) == []
    facts["hosts"][0] |= change
    (said,) = find_faults(SSH, facts)
    assert re.search(f"^a: {fault}", said), said


def test_hosts_that_share_no_files_need_not_see_those_of_others() -> None:
    facts = found()
    facts["hosts"][0] |= {"seen": ["a"]}
    facts["hosts"][1] |= {"gpus": ["H100"] * 2, "seen": ["b"]}
    assert len(find_faults(SSH, facts)) == 2
    assert find_faults({**SSH, "shared": False}, facts) == []


def test_a_host_that_calls_itself_loopback_needs_an_interface() -> None:
    facts = found()
    facts["hosts"][1] |= {"gpus": ["H100"] * 2, "itself": ["127.0.1.1"]}
    assert find_faults(SSH, facts) == []
    (said,) = find_faults({**SSH, "interface": None}, facts)
    assert said.startswith("b: calls itself 127.0.1.1")


def test_hosts_that_do_not_reach_each_other() -> None:
    view = {"unreached": {"a": [20_100]}, "ssh": {"a": "Permission denied"}}
    facts = found() | {"reach": {"b": view}}
    facts["hosts"][1]["gpus"] = ["H100"] * 2
    (port,) = find_faults(SSH, facts)
    assert port == (
        "b: cannot connect to a at TCP port 20100: on a, let the firewall accept "
        "connections from b to the ports 20000-31999"
    )
    _, ssh = find_faults(SSH, facts, by_ssh=True)
    assert ssh.startswith("b: ssh to a fails (Permission denied): mpirun, hydra and")


def test_faults_of_connections_come_first() -> None:
    facts = found() | {"faults": ["b: cannot be reached"]}
    del facts["hosts"][1]
    facts["hosts"][0] |= {"seen": ["a"], "names": {}}
    assert find_faults(SSH, facts) == ["b: cannot be reached"]


def test_what_images_need_is_asked_only_where_there_are_images() -> None:
    facts = found()
    facts["hosts"][0] |= {"apptainer": None, "fuse": False}
    assert find_faults({**SITE, "software": "native"}, facts) == []


def test_what_hosts_have_is_told() -> None:
    lines = describe(SITE, found() | {"pmix": False})
    assert "  GPUs 4 x H100; network eth0 10.0.0.1, ib0 10.1.0.1" in lines
    assert lines[-1].startswith("srun has no PMIx")


def test_this_machine_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    # The exit status depends on this machine; the output must name this host.
    write_json(tmp_path / "hosts.json", facts)
    assert main([str(plan), str(tmp_path / "hosts.json")]) in (0, 1)
    assert this["host"] in capsys.readouterr().out
    assert not (tmp_path / "hosts.json").exists()
