"""`check --site` on hosts by ssh names each planted fault, its host and a remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from desks import Desk
from pretend_host import INTERFACE, Host
from pretend_sshd import home_of, home_there

pytestmark = pytest.mark.cluster

EXPERIMENT = """
name: checked
model: lenet
strategy: ddp
topology: 2x1
launcher: mpirun
steps: 3
gate: false
"""
PORTS = "20000-31999"
# A Python whose clock is 1000 s fast; it runs what `python -c` and `python -m` would.
FAST = f"""\
#!{sys.executable}
import runpy, sys, time
right = time.time
time.time = lambda: right() + 1000
words = [word for word in sys.argv[1:] if word not in ("-I", "-u")]
if words[0] == "-c":
    sys.argv = ["-c", *words[2:]]
    exec(words[1], {{"__name__": "__main__"}})
else:
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
"""


def check(desk: Desk) -> list[str]:
    """The faults that it finds, but for the machine being busy with tests."""
    desk.project.experiment(EXPERIMENT, "checked.yaml")
    process = desk.start("check", *desk.experiment("checked"))
    said, _ = process.communicate(timeout=600)
    lines = [line for line in said.splitlines() if line.startswith("FAULT ")]
    assert process.returncode == bool(lines), said
    assert "WorkflowError" not in said
    return [line.removeprefix("FAULT ") for line in lines if "is busy (" not in line]


@contextmanager
def closed(host: Host, other: Host) -> Iterator[None]:
    """A firewall between a host and the ports of another one."""
    rule = ("to", other.address, "ipproto", "tcp", "dport", PORTS, "prohibit")
    host.do("ip", "rule", "add", *rule)
    try:
        yield
    finally:
        host.do("ip", "rule", "delete", *rule)


@contextmanager
def without(host: Host, program: str) -> Iterator[None]:
    """A host that lacks a program."""
    host.do("mount", "--bind", "/dev/null", program)
    try:
        yield
    finally:
        host.do("umount", program)


def host(name: str, **more: str) -> dict[str, object]:
    return {"name": name, "devices": 1, **more}


@pytest.fixture
def desk(apart_desk: Desk) -> Iterator[Desk]:
    yield apart_desk
    apart_desk.write_site()


@pytest.fixture
def fast_python(desk: Desk) -> str:
    """A Python on the second host whose clock is wrong."""
    home = home_of(desk.cluster, desk.cluster.hosts["node2"])
    (home / "python").write_text(FAST)
    (home / "python").chmod(0o755)
    return str(home_there(desk.cluster) / "python")


def test_a_port_a_clock_and_another_torch(desk, fast_python):
    hosts = desk.cluster.hosts
    desk.write_site(
        [
            host("node1"),
            host("node2", python=fast_python),
            host("node3", python="/usr/bin/python3"),
        ]
    )
    with closed(hosts["node1"], hosts["node2"]):
        faults = check(desk)
    assert len(faults) == 3, faults
    torch, clock, port = faults
    assert torch.startswith("node3: has no torch, ")
    assert "install what this machine has, torch==" in torch
    # As far as it is known: hosts are asked one after the other, and may be busy.
    assert re.match(r"node2: its clock is at least (9\d\d|1000) s off: have", clock)
    assert port.endswith(
        f"on node2, let the firewall accept connections from node1 to the ports {PORTS}"
    )


def test_an_interface_and_rsync(desk):
    desk.write_site(facts="")
    site = desk.project.root / "ssh_profile/site.yaml"
    site.write_text(site.read_text().replace(INTERFACE, "ib0"))
    with without(desk.cluster.hosts["node2"], "/usr/bin/rsync"):
        rsync, interface = check(desk)
    assert rsync == ("node2: has no rsync: install it (shared: false copies by it)")
    assert interface.startswith("node1: has no interface ib0 that is up")
    assert INTERFACE in interface


@pytest.fixture
def loopback(desk: Desk) -> Iterator[None]:
    """Hosts that call themselves 127.0.1.1, as Debian installs them, with `interface`
    left open.
    """
    known = (desk.cluster.state / "etc/hosts").read_text().splitlines()
    hosts = [desk.cluster.hosts[name] for name in ("node1", "node2")]
    for host in hosts:
        own = [line for line in known if not line.endswith(f" {host.name}")]
        file = desk.cluster.state / f"hosts-of-{host.name}"
        file.write_text("\n".join([*own, f"127.0.1.1 {host.name}", ""]))
        host.do("mount", "--bind", file, "/etc/hosts")
    desk.write_site()
    site = desk.project.root / "ssh_profile/site.yaml"
    site.write_text(site.read_text().replace(f"interface: {INTERFACE}\n", ""))
    yield
    for host in hosts:
        host.do("umount", "/etc/hosts")


@pytest.mark.usefixtures("loopback")
def test_hosts_that_call_themselves_loopback(desk):
    faults = check(desk)
    for name in ("node1", "node2"):
        (own,) = (fault for fault in faults if fault.startswith(f"{name}: calls"))
        assert "127.0.1.1" in own
        assert own.endswith("set interface in site.yaml")
    desk.measure(EXPERIMENT.replace("mpirun", "manual"), "checked", status=1)
    (row,) = desk.table("checked").values()
    assert row["status"] == "cancelled"
    assert "127.0.1.1" in row["reason"]
    assert "set interface in site.yaml" in row["reason"]


def test_login_scripts_that_print_or_end(desk, shared_desk):
    script = home_of(desk.cluster, desk.cluster.hosts["node2"]) / ".bashrc"
    try:
        script.write_text("printf '\\033]0;title\\007'; echo 42; echo '{\"a\": 1}'\n")
        assert check(shared_desk) == []
        # rsync, which copies where hosts share no files, takes no other output.
        (printed,) = check(desk)
        script.write_text("exit 0\n")
        (ended,) = check(shared_desk)
    finally:
        script.unlink()
    for fault in (printed, ended):
        assert fault.startswith("node2: ")
        assert "(.bashrc, .profile) prints, reads its input or exits" in fault


def test_hosts_need_no_ssh_between_them(desk):
    key = home_of(desk.cluster, desk.cluster.hosts["node1"]) / ".ssh/id_ed25519"
    aside = key.rename(key.with_name("aside"))
    try:
        assert check(desk) == []
    finally:
        aside.rename(key)
