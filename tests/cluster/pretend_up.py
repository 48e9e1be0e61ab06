"""Bringing a pretend cluster up."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pretend_cluster import DESCRIPTION, Cluster, daemon_environment
from pretend_down import bridge_of, down
from pretend_host import (
    CORE_GROUPS,
    Host,
    PretendError,
    check,
    has_memory_groups,
    start_holder,
    wait_until,
)
from pretend_kernel import set_autogroups_aside
from pretend_sshd import furnish_home, start_sshd, start_sshds
from slurm_conf import CGROUP_CONF, slurm_conf

# Each program, and the Debian package that contains it.
PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "pkill": "procps",
}
FOR_SLURM = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
    "munged": "munge",
}
FOR_SSH = {"sshd": "openssh-server", "ssh": "openssh-client", "rsync": "rsync"}
# A network for benchmarks (RFC 2544), which nobody else uses.
NETWORK = "198.18"
# The port of a controller is this number plus the third byte of its network.
FIRST_PORT = 7000
MOST_HOSTS = 200


def up(
    state: Path | None = None,
    *,
    hosts: int = 4,
    cpus: int = 2,
    user: str = "rankbench",
    shared: Sequence[Path] = (),
    slurm: bool = True,
    bind_cores: bool = False,
    gpus: str = "",
) -> Cluster:
    """Bring a cluster up; if that fails, take down what there is of it.

    state: a folder that is empty or not there, by default a temporary one. hosts: how
    many; the first two have no core in common where the machine has two. cpus: of each
    host, as Slurm counts. shared: folders below /tmp that hosts see too; the rest of
    /tmp is each host's own. slurm: without it, each host has an sshd and a home of its
    own for the user. bind_cores: Slurm binds jobs and tasks to cores (ConstrainCores,
    task/affinity); only one host can have that, with all cores of the machine. gpus:
    the type of GPU of which Slurm counts two on each host, although there are none.
    PretendError: why not.
    """
    check_machine(user, FOR_SLURM if slurm else FOR_SSH)
    if not 1 <= hosts <= MOST_HOSTS:
        raise PretendError(f"{hosts} hosts: from 1 to {MOST_HOSTS}")
    if bind_cores and (hosts != 1 or not os.access(CORE_GROUPS, os.R_OK)):
        raise PretendError(f"bind_cores: needs one host, and {CORE_GROUPS}")
    for folder in shared:
        if not folder.is_dir():
            raise PretendError(f"{folder}: to be shared, but is no folder")
    state = Path(state or tempfile.mkdtemp(prefix="pretend-")).resolve()
    state.mkdir(parents=True, exist_ok=True)
    if any(state.iterdir()):
        raise PretendError(f"{state}: not empty; take another, or `down` first")
    try:
        (state / DESCRIPTION).write_text("{}")
        cluster = make_hosts(state, user, hosts, cpus, shared, bind_cores, gpus)
        # Only now: as long as there are cables, nobody puts them back.
        set_autogroups_aside()
        if slurm:
            start_services(cluster)
        else:
            start_sshds(cluster)
        cluster.save()
    except BaseException as error:
        said = ends_of_logs(state)
        down(state)
        if isinstance(error, PretendError):
            raise PretendError(f"{error}{said}") from error
        raise
    return cluster


def check_machine(user: str, programs: Mapping[str, str] = FOR_SLURM) -> None:
    """PretendError: what the caller or the machine lacks, and the remedy.

    programs: those that are needed in addition, and their packages.
    """
    if os.geteuid() != 0:
        raise PretendError("needs root, for namespaces and a bridge: use sudo")
    needed = {**PROGRAMS, **programs}
    lacking = {package for name, package in needed.items() if not shutil.which(name)}
    if lacking:
        wanted = " ".join(sorted(lacking))
        raise PretendError(
            f"packages are missing: apt-get install --no-install-recommends {wanted}"
        )
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise PretendError(f"no user {user!r}: useradd --create-home {user}") from None


def make_hosts(
    state: Path,
    user: str,
    count: int,
    cpus: int,
    shared: Sequence[Path],
    bind_cores: bool,
    gpus: str,
) -> Cluster:
    """Hosts with their network and files, in which nothing runs yet."""
    state.chmod(0o755)
    bridge = bridge_of(state)
    network = add_bridge(bridge)
    addresses = {f"node{at}": f"{network}.{10 + at}" for at in range(1, count + 1)}
    write_configuration(state, network, addresses, cpus, bind_cores, gpus)
    hosts = {}
    for at, (name, address) in enumerate(addresses.items()):
        host = Host(
            name=name,
            address=address,
            link=f"{bridge}.{at + 1}",
            cores=every_core() if bind_cores else cores_of(at),
            holder=0,
            folder=state / name,
        )
        hosts[name] = boot(host, state, shared)
        if bind_cores:
            hosts[name].bind_cores()
    return Cluster(state, user, hosts)


def boot(host: Host, state: Path, shared: Sequence[Path]) -> Host:
    """The host with a new first process, also after the one before has been killed."""
    booted = replace(host, holder=start_holder(daemon_environment(state)))
    booted.connect(bridge_of(state))
    booted.furnish(state / "etc", [state, *(path.resolve() for path in shared)])
    return booted


def revive(cluster: Cluster, name: str, shared: Sequence[Path]) -> None:
    """Let a host that has crashed start again, with its sshd."""
    host = boot(cluster.hosts[name], cluster.state, shared)
    cluster.hosts[name] = host
    furnish_home(cluster, host)
    start_sshd(cluster, host)


def cores_of(at: int) -> str:
    """The cores of a host, counted from 0: hosts have the halves of them in turn."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if half:
        cores = cores[half:] if at % 2 else cores[:half]
    return ",".join(map(str, cores))


def every_core() -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def add_bridge(name: str) -> str:
    """Make a bridge with a network of its own: the first three bytes of that."""
    with open(__file__) as lock:
        # Without the lock, two clusters might choose the same network.
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = check(["ip", "-4", "-oneline", "address"])
        networks = (f"{NETWORK}.{third}" for third in range(256))
        network = next(one for one in networks if f" {one}." not in known)
        check(["ip", "link", "add", name, "type", "bridge"])
        check(["ip", "address", "add", f"{network}.1/24", "dev", name])
        check(["ip", "link", "set", name, "up"])
    return network


def write_configuration(
    state: Path,
    network: str,
    addresses: Mapping[str, str],
    cpus: int,
    bind_cores: bool,
    gpus: str,
) -> None:
    for name in ("etc/slurm", "munge", "controller", "log"):
        (state / name).mkdir(parents=True)
    machine = socket.gethostname().split(".")[0]
    names = {"127.0.0.1": "localhost", f"{network}.1": machine}
    names |= {address: name for name, address in addresses.items()}
    lines = (f"{address} {name}\n" for address, name in names.items())
    (state / "etc/hosts").write_text("".join(lines))
    # Without a name server, looking up an unknown name fails at once.
    (state / "etc/resolv.conf").write_text("")
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    text = slurm_conf(
        state=state,
        machine=machine,
        address=f"{network}.1",
        port=FIRST_PORT + int(network.rpartition(".")[2]),
        hosts=addresses,
        cpus=cpus,
        memory_mib=memory_mib // len(addresses),
        groups=has_memory_groups(),
        bind_cores=bind_cores,
        gpus=gpus,
    )
    # The default place, because programs in a job may lose SLURM_CONF: Snakemake's do.
    (state / "etc/slurm/slurm.conf").write_text(text)
    # Slurm wants a device file of each, and looks no further.
    text = f"Name=gpu Type={gpus} File=/dev/null,/dev/zero\n" if gpus else ""
    (state / "etc/slurm/gres.conf").write_text(text)
    if has_memory_groups():
        text = CGROUP_CONF.format(cores="yes" if bind_cores else "no")
        (state / "etc/slurm/cgroup.conf").write_text(text)


def start_services(cluster: Cluster) -> None:
    """Start munge (it tells Slurm who asks), the controller, a slurmd per host."""
    folder = cluster.state / "munge"
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    files = ("socket", "key-file", "log-file", "pid-file", "seed-file")
    options = [f"--{file}={folder / file.removesuffix('-file')}" for file in files]
    environment = daemon_environment(cluster.state)
    check(["munged", *options], environment)
    check(["slurmctld"], environment)
    for name in cluster.hosts:
        cluster.start(name)
    wait_until(lambda: is_idle(cluster), "all hosts idle")


def is_idle(cluster: Cluster) -> bool:
    try:
        states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T")
    except PretendError:
        return False  # The controller does not answer yet.
    return states.split() == ["idle"] * len(cluster.hosts)


def ends_of_logs(state: Path) -> str:
    ends = []
    for log in sorted((state / "log").glob("*")):
        lines = log.read_text(errors="replace").splitlines()[-3:]
        ends += [f"\n{log.name}: {line}" for line in lines]
    return "".join(ends)
