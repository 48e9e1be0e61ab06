"""Facts about a host's hardware, from files in the format of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankbench.rank.facts import host as facts

pytestmark = pytest.mark.unit


# As nvidia-smi prints it on a host with four GPUs, of which two pairs are linked.
LINKS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-15\t0
GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-15\t0
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t16-31\t1
NIC0\tPXB\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
"""


def add_link(
    net: Path,
    name: str,
    *,
    state: str = "up",
    speed: str | None,
    card: bool = True,
) -> Path:
    link = net / name
    (link / "device" if card else link).mkdir(parents=True)
    (link / "operstate").write_text(f"{state}\n")
    if speed is not None:
        (link / "speed").write_text(f"{speed}\n")
    return link


def test_network_cards(tmp_path):
    net, infiniband = tmp_path / "net", tmp_path / "infiniband"
    card = add_link(net, "eth0", speed="25000")
    (card / "device/vendor").write_text("0x15b3\n")
    (card / "device/device").write_text("0x1017\n")
    driver = tmp_path / "drivers/mlx5_core"
    driver.mkdir(parents=True)
    (card / "device/driver").symlink_to(driver)
    add_link(net, "eth1", state="down", speed="1000")
    add_link(net, "old", speed="-1")
    add_link(net, "veth", speed="10000", card=False)
    add_link(net, "lo", speed=None)
    adapter = infiniband / "mlx5_0"
    (adapter / "ports/1").mkdir(parents=True)
    (adapter / "hca_type").write_text("MT4123\n")
    (adapter / "ports/1/rate").write_text("200 Gb/sec (4X HDR)\n")
    assert facts.describe_nics(net, infiniband) == [
        {"name": "eth0", "driver": "mlx5_core", "model": "15b3:1017", "gbit_s": 25.0},
        {"name": "old", "driver": None, "model": None, "gbit_s": None},
        {"name": "mlx5_0", "driver": None, "model": "MT4123", "gbit_s": 200.0},
    ]


def test_a_host_without_cards_has_its_interfaces(tmp_path):
    add_link(tmp_path, "eth0", speed="10000", card=False)
    gone = tmp_path / "gone"
    (found,) = facts.describe_nics(tmp_path, gone)
    assert (found["name"], found["gbit_s"]) == ("eth0", 10.0)
    assert facts.describe_nics(gone, gone) == []


def test_links_between_gpus():
    assert facts.parse_links(LINKS) == ["NV12", "SYS"]
    assert facts.parse_links("") == []


def test_mpi_that_is_not_loaded(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 42  /usr/lib/libmpi_cxx.so.40\n")
    assert facts.mpi_version(maps) is None


def test_this_machine():
    host = facts.describe_host()
    assert host["os"]
    for nic in host["nics"]:
        assert nic.keys() == {"name", "driver", "model", "gbit_s"}
