"""Facts about the machine: what `<profile>/site.yaml` says and what a look found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.matrix.schema import check, load_schema, load_yaml, with_defaults
from rankbench.matrix.software import Software

NATIVE, CONTAINER = "native", "container"
NONE, SLURM = "none", "slurm"

# What a site file must say of the hosts of a cluster: the machine that plans is none of
# them, so that looking at it finds out nothing.
_SAID_OF_HOSTS = ("device", "cores")


@dataclass(frozen=True)
class Site:
    """A machine as the plan sees it.

    Attributes:
        nodes: hosts that a cell may use.
        device: what a device is where a cell says ``auto``: ``cpu`` or ``cuda``.
        cuda_devices: GPUs of each host.
        cores: physical cores of each host that processes may use.
        scheduler: what gives a cell its hosts: ``slurm``, or ``none``.
        interface: the network interface between hosts; None leaves it to libraries.
        software: ``native``, or ``container``: each cell in the image of its backend.
        native: what is installed on the machine itself; None where ranks run in images.
        images: what each image holds, by its name with its flavour; none if native.
        data_dir: folder of the prepared data sets.
        results_dir: folder of the results.
        image_dir: folder of the images.
        debian_mirror: where images are built from.
        torch_index: index that is asked for torch's CPU builds if others lack them.
        cpu_threads_per_gpu: CPU threads of a rank that drives a GPU; 0 is its share
            of the cores.
        scratch: folder of each host in which every launch has one of its own for what
            ranks write meanwhile; None is TMPDIR.
        heartbeat_grace: seconds without a sign of life of their supervisor after which
            ranks end themselves.
        partition: where jobs are submitted to; None is the cluster's default.
        account: who pays for them; None where there are no accounts.
        qos: their quality of service; None is that of the account.
        gres: Slurm's name of a GPU.
        memory: MiB of each host that a job asks for; None asks for none.
        exclusive: whether a job has its hosts for itself.
    """

    nodes: int
    device: str
    cuda_devices: int
    cores: int
    scheduler: str
    interface: str | None
    software: str
    native: Software | None
    images: dict[str, Software]
    data_dir: str
    results_dir: str
    image_dir: str
    debian_mirror: str
    torch_index: str
    cpu_threads_per_gpu: int
    scratch: str | None
    heartbeat_grace: float
    partition: str | None
    account: str | None
    qos: str | None
    gres: str
    memory: int | None
    exclusive: bool

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def software_in(self, image: str | None) -> Software:
        """What ranks find in an image, or on the machine itself."""
        if image is not None:
            return self.images[image]
        assert self.native is not None
        return self.native


def read_site(path: Path) -> dict[str, Any]:
    """A site file with its defaults.

    Raises:
        ValueError: the file is not as its schema wants it.
    """
    schema = load_schema("site")
    given = load_yaml(path)
    check(given, schema, source=str(path))
    return with_defaults(given, schema)


def make_site(
    facts: Mapping[str, Any],
    *,
    source: Path,
    cores: int,
    cuda_devices: int,
    no_cuda: str,
    native: Software | None = None,
    images: Mapping[str, Software] | None = None,
) -> Site:
    """Join the site file with what was found.

    Args:
        facts: what `read_site` returned.
        source: the file, for complaints.
        cores: physical cores of this machine that processes may use.
        cuda_devices: GPUs of this machine.
        no_cuda: why there is no GPU, where there is none.
        native: what is installed on the machine; None where ranks run in images.
        images: what each image holds.

    Raises:
        ValueError: the file contradicts the machine.
    """
    if facts["scheduler"] == SLURM:
        cores, cuda_devices = _read_hosts(facts, source)
    elif facts["cores"] != "auto":
        cores = facts["cores"]
    if facts["device"] == "cuda" and not cuda_devices:
        raise ValueError(f"{source}: device: cuda, but {no_cuda}")
    device = facts["device"]
    if device == "auto":
        device = "cuda" if cuda_devices else "cpu"
    if facts["devices_per_node"] != "auto":
        if device == "cuda":
            cuda_devices = facts["devices_per_node"]
        else:
            cores = facts["devices_per_node"]
    found = {
        "device": device,
        "cores": cores,
        "cuda_devices": cuda_devices,
        "native": native,
        "images": dict(images or {}),
    }
    names = {field.name for field in dataclasses.fields(Site)} - found.keys()
    return Site(**{name: facts[name] for name in names}, **found)


def cuda_devices_of(facts: Mapping[str, Any], *, found: int) -> int:
    """GPUs of each host: as found on this machine, or as said of a cluster's hosts."""
    if facts["scheduler"] != SLURM:
        return found
    said = facts["devices_per_node"]
    return said if facts["device"] == "cuda" and said != "auto" else 0


def _read_hosts(facts: Mapping[str, Any], source: Path) -> tuple[int, int]:
    """Cores and GPUs of each host of a cluster."""
    wanted = list(_SAID_OF_HOSTS)
    if facts["device"] == "cuda":
        wanted.append("devices_per_node")
    if missing := [key for key in wanted if facts[key] == "auto"]:
        raise ValueError(
            f"{source}: {', '.join(missing)}: with scheduler: slurm it must be said "
            "(the machine that plans need not be like the hosts; "
            "`sinfo --Node --long` tells theirs)"
        )
    return facts["cores"], cuda_devices_of(facts, found=0)
