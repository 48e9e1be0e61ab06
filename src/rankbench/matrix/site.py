"""Facts about the machine: from `<profile>/site.yaml`, and from inspecting it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankbench.cell import AUTO, PACKAGES, PROGRAMS
from rankbench.schedulers import scheduler_of
from rankbench.schema import (
    check,
    did_you_mean,
    in_file,
    load_schema,
    load_yaml,
    with_defaults,
)

NATIVE, CONTAINER = "native", "container"

Host = dict[str, Any]

# No option of ssh, and no user: ranks find each other by these names.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

_LAUNCHER = "remove it: each rank gets its own value from its launcher"
_INTERFACE = "set the key interface instead"

# Variables that neither a site nor an experiment can set, and what to do instead.
OWN_VARIABLES = {
    "CUDA_DEVICE_ORDER": "remove it: GPUs have the numbers that NVML gives them",
    "CUDA_VISIBLE_DEVICES": "set it where you start rankbench",
    "DS_ACCELERATOR": "set the key device",
    "HOROVOD_FUSION_THRESHOLD": "set the option fusion_threshold_mb of horovod",
    **dict.fromkeys(
        ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "UCX_LOG_FILE"),
        "set the key backend_logs of an experiment",
    ),
    "OMP_NUM_THREADS": "set the key cores_per_device of a cell",
    "PYTHONNOUSERSITE": "remove it: packages of a home would change the measurement",
    "PYTHONPATH": "remove it: ranks run a frozen copy of the code",
    **dict.fromkeys(("PYTHONUNBUFFERED", "PYTHONSAFEPATH", "PYTHONUTF8"), "remove it"),
    "TMPDIR": "set the key scratch instead",
    **dict.fromkeys(
        ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), _INTERFACE
    ),
    **dict.fromkeys(
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        _LAUNCHER,
    ),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), _LAUNCHER),
}


# A machine, as the plan keeps it: the keys of its file, and what `make_site` adds.
Site = Mapping[str, Any]


def read_site(path: Path) -> dict[str, Any]:
    """Read a site file, and fill in its defaults.

    Raises:
        ValueError: the file does not match its schema.
    """
    schema = load_schema("site")
    given = load_yaml(path)
    with in_file(path):
        check(given, schema)
        facts = with_defaults(given, schema)
        check_gres(facts["gres"])
        check_images(facts["images"], "images")
        check_sbatch(facts["sbatch"])
        facts["env"] = read_env(facts["env"])
        if facts["exclusive"] is None:
            facts["exclusive"] = scheduler_of(facts).has_queue
        if not scheduler_of(facts).lists_hosts:
            if keys := [key for key in ("hosts", "shared") if key in given]:
                raise ValueError(
                    f"{keys[0]}: only scheduler: ssh has this key "
                    f"(here: {facts['scheduler']})"
                )
            return facts
        hosts = facts["hosts"]
        if isinstance(hosts, str):
            hosts = read_hostfile(path.parent / hosts)
        check_hosts(hosts, "hosts")
    most = max(host["devices"] for host in hosts)
    facts["hosts"] = [{"python": None, **host} for host in hosts]
    facts |= {"nodes": len(hosts), "devices_per_node": most}
    if facts["device"] == "cpu" and facts["cores"] == "auto":
        facts["cores"] = most
    return facts


def read_env(given: Mapping[str, str | float]) -> dict[str, str]:
    """The environment variables for ranks that a file gives, sorted by name.

    Args:
        given: name -> value.

    Raises:
        ValueError: rankbench sets one of them itself, or a value is not one line.
    """
    for name, value in given.items():
        if any(ord(char) < 32 for char in str(value)):
            raise ValueError(
                f"env.{name}: expected one line, without control characters, not "
                f"{value!r:.60}: launchers cannot pass others on"
            )
        if name in OWN_VARIABLES:
            raise ValueError(
                f"env.{name}: rankbench sets this variable itself; "
                f"{OWN_VARIABLES[name]}"
            )
    return {name: str(value) for name, value in sorted(given.items())}


_OF_CELLS = "remove it: it follows from the topology of each cell"
_OURS = "remove it: rankbench finds its jobs and their output by it"

# Options of sbatch that a site cannot pass on, and what to do instead.
OWN_SBATCH = {
    **dict.fromkeys(
        ("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu"), _OF_CELLS
    ),
    **dict.fromkeys(("array", "wrap", "parsable", "job-name", "comment"), _OURS),
    **dict.fromkeys(("output", "error", "export", "chdir", "clusters"), _OURS),
    **dict.fromkeys(("requeue", "no-requeue"), "remove it: no job is started again"),
    **{key: f"set the key {key}" for key in ("partition", "account", "qos", "gres")},
    **dict.fromkeys(("cpus-per-task", "cpus-per-gpu"), "set the key cores"),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), "set gpus_per_node"),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "set the key memory"),
    "exclusive": "set the key exclusive",
    "time": "set the key time_limit of an experiment",
}


def check_sbatch(given: Mapping[str, Any]) -> None:
    """Check the options of sbatch that a site passes on.

    Raises:
        ValueError: rankbench sets one of them itself, or one is false.
    """
    for name, value in given.items():
        # sbatch takes the beginning of a name for the whole.
        for own, remedy in OWN_SBATCH.items():
            if own.startswith(name):
                raise ValueError(
                    f"sbatch.{name}: rankbench sets --{own} itself; {remedy}"
                )
        if value is False:
            raise ValueError(f"sbatch.{name}: expected true or a value, got false")


def check_images(given: Mapping[str, Any], place: str) -> None:
    """Check the images that a file names.

    Args:
        given: name -> `AUTO`, or keys of the image.
        place: of the images, for errors.

    Raises:
        ValueError: a name is reserved, or an image has no file or source, or both.
    """
    for name, entry in given.items():
        if name == AUTO or name.endswith(("-cpu", "-cuda")):
            raise ValueError(
                f"{place}.{name}: images that are built have such names: choose another"
            )
        if entry != AUTO and ("file" in entry) == ("source" in entry):
            raise ValueError(f"{place}.{name}: give file or source, one of them")


def make_site(
    facts: Mapping[str, Any], probe: Mapping[str, Any], *, source: Path
) -> Site:
    """Join the site file with what was found on this machine.

    Args:
        facts: result of `read_site`.
        probe: `cores` that processes may use, `cuda_devices`, and of each of these
            `cuda_memory_gib` and `cuda_capability`; of a native site, its software.
        source: the site file, for errors.

    Returns:
        The keys of the file, where `auto` has become what is meant, and cuda_devices
        (GPUs of each host), native (software of the machine itself; None if ranks run
        in images) and images (name -> its software; empty if native).
        device_memory_gib is that of a GPU, or without GPUs of a host; it and
        compute_capability, the least one, are None if they are not known.

    Raises:
        ValueError: the file contradicts the machine, or omits facts about the hosts of
            a cluster.
    """
    native, elsewhere = facts["software"] == NATIVE, scheduler_of(facts).has_hosts
    device, gpus, cores = facts["device"], len(probe["cuda_devices"]), facts["cores"]
    no_cuda = "this machine shows no NVIDIA GPU"
    if native:
        no_cuda = why_no_cuda(probe, f"this torch ({probe['torch']})")
    with in_file(source):
        if elsewhere:
            # They may differ from this machine, so inspecting it would not help.
            wanted = ["device", "cores"]
            wanted += ["devices_per_node"] if device == "cuda" else []
            if missing := [key for key in wanted if facts[key] == "auto"]:
                raise ValueError(
                    f"scheduler: {facts['scheduler']}: the file must set "
                    f"{', '.join(missing)}, because the hosts may differ from this "
                    "machine (with Slurm, `sinfo --Node --long` lists them)"
                )
            gpus = facts["devices_per_node"] if device == "cuda" else 0
        if device == "cuda" and not gpus:
            raise ValueError(f"device: cuda, but {no_cuda}")
    cores = probe["cores"] if cores == "auto" else cores
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    if facts["devices_per_node"] != "auto" and not facts["hosts"]:
        if device == "cuda":
            gpus = facts["devices_per_node"]
        else:
            cores = facts["devices_per_node"]
    capability, memory = min(probe.get("cuda_capability") or (), default=None), None
    if probe["cuda_devices"]:
        memory = min(probe.get("cuda_memory_gib") or (), default=None)
    elif native:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if elsewhere:
        capability = memory = None
    return {
        **{key: facts[key] for key in facts if key != "devices_per_node"},
        "device": device,
        "cores": cores,
        "cuda_devices": gpus,
        "native": describe_software(probe, gpus) if native else None,
        "images": {},
        "device_memory_gib": facts["device_memory_gib"] or memory,
        "compute_capability": facts["compute_capability"] or capability,
    }


def read_hostfile(path: Path) -> list[Host]:
    """Read the hosts from a file in the form of mpirun and DeepSpeed: `a slots=2`.

    A name alone has one device.

    Raises:
        ValueError: it cannot be read, or a line is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    hosts = []
    for number, line in enumerate(lines, start=1):
        said = line.partition("#")[0].strip()
        match = re.fullmatch(
            r"([^\s=]+)(?:\s+slots=([1-9]\d*))?(?:\s+max[_-]slots=\d+)?", said
        )
        if match:
            hosts.append({"name": match[1], "devices": int(match[2] or 1)})
        elif said:
            raise ValueError(
                f"{path}, line {number}: {line.strip()!r}: expected a name and its "
                "devices, such as `a slots=2`"
            )
    return hosts


def check_gres(gres: str) -> None:
    """Check Slurm's name of a GPU: without the number and sockets that `sinfo` prints.

    Raises:
        ValueError: it has another form; the message has the right one.
    """
    # `gpu:a100:4(S:0-1),nvme:1` -> `gpu:a100`. A longer number is a type: `gpu:3090`.
    parts = re.sub(r"\([^)]*\)", "", gres).split(",")
    name = next((part for part in parts if "gpu" in part), parts[0])
    wanted = re.sub(r"(:\d{1,2})?$", "", name, count=1)
    if gres != wanted or not re.fullmatch(r"\w+(:[\w.-]+)?", gres):
        raise ValueError(
            f"gres: {gres}: expected the name of a GPU, with its type if the "
            f"cluster needs it, and without the number of GPUs: {wanted or 'gpu'}"
        )


def check_hosts(hosts: Sequence[Host], source: str) -> None:
    """Check the hosts of a site.

    Raises:
        ValueError: there are none, or a name is wrong or appears twice.
    """
    if not hosts:
        raise ValueError(
            f"{source}: scheduler: ssh needs the hosts, such as "
            "[{name: a, devices: 2}, {name: b, devices: 2}], or a hostfile"
        )
    seen = set()
    for host in hosts:
        name = host["name"]
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{source}: {name!r} is no name of a host: users, ports and "
                "other names belong into ~/.ssh/config"
            )
        if name in seen:
            raise ValueError(f"{source}: {name} appears twice")
        seen.add(name)


def use_hosts(site: Site, wanted: Sequence[str] | None) -> Site:
    """Return the site with only these hosts, in this order.

    Args:
        site: the site.
        wanted: names; None for all of them in the order of the site file.

    Raises:
        ValueError: the site does not list such a host.
    """
    if wanted is None:
        return site
    known = {host["name"]: host for host in site["hosts"]}
    if not known:
        raise ValueError(
            f"hosts: this site lists no hosts (scheduler: {site['scheduler']}): "
            "remove the key"
        )
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"hosts: {name}: no such host{did_you_mean(name, known)} "
                f"(site.yaml lists {', '.join(known)})"
            )
    hosts = [known[name] for name in wanted]
    return {**site, "hosts": hosts, "nodes": len(hosts)}


# --- the software that ranks find ---------------------------------------------------

BACKENDS = ("gloo", "mpi", "nccl", "ccl")

# Name -> None if it is available, else the reason why not and what to do.
Obstacles = dict[str, str | None]


# The software that ranks can use, on the machine itself or in an image: see
# `describe_software`.
Software = Mapping[str, Any]

_EXTRAS = "`make extras` builds it"

_INSTALL = {
    "horovod": _EXTRAS,
    "deepspeed": _EXTRAS,
    "torchao": "pip install torchao",
    "torchvision": "pip install --no-deps torchvision",
    "timm": "pip install timm",
    "transformers": "pip install transformers",
    "torchrun": "install torch where the Python of rankbench is",
    "mpirun": "install Open MPI (Debian: openmpi-bin)",
    "mpiexec.hydra": "install Intel MPI (pip: impi-rt)",
    "horovodrun": _EXTRAS,
    "c++": "torch.compile needs a C++ compiler (Debian: g++)",
}

_REMEDY = {
    "mpi": "build torch with MPI, or take Debian 13's python3-torch",
    "gloo": "install a torch that has it",
    "nccl": "install a CUDA build of torch",
}

_NO_CCL = "torch's oneCCL bindings are no longer made; no strategy here uses them"


def describe_software(
    facts: Mapping[str, Any], gpus: int, image: str | None = None
) -> Software:
    """The software of the machine itself, or of an image.

    Args:
        facts: torch, cuda, backends, rpc, horovod, packages and programs: as found
            there, or as promised in `images.yaml` if the image is not built yet.
        gpus: number of GPUs of each host.
        image: name of the image; None for the machine.

    Returns:
        torch: version of the torch that ranks import; backends: runtime -> obstacles
        for each backend; packages, programs: obstacles for each; no_cuda,
        horovod_no_cuda: the reason why its torch, or its Horovod, cannot use a GPU, or
        None.
    """
    where = f"the image {image}"
    torch, horovod = f"the torch of {where}", f"the Horovod of {where}"
    if image is None:
        torch, horovod = "this torch", "this Horovod"
    torch += f" ({facts['torch']})"

    def why_no_backend(name: str) -> str | None:
        if name == "ccl":
            return _NO_CCL
        if name == "nccl" and not gpus:
            return f"nccl needs a CUDA device; {why_no_cuda(facts, torch)}"
        if name in facts["backends"]:
            return None
        if image is None:
            return f"{torch} has no {name.upper()}: {_REMEDY[name]}"
        return f"{where} has no {name.upper()}: name one that has (image: ...)"

    def why_not_in_horovod(name: str) -> str | None:
        has = name in facts["horovod"]
        return None if has else f"{horovod} is built without {name.upper()}"

    def why_not_installed(kind: str, name: str) -> str | None:
        if facts[kind].get(name):
            return None
        if image is None:
            return f"{name} is not installed: {_INSTALL[name]}"
        return f"{where} has no {name}"

    no_rpc = f"{torch} is built without torch.distributed.rpc"
    return {
        "torch": facts["torch"],
        "backends": {
            "process_group": {"none": None, **{b: why_no_backend(b) for b in BACKENDS}},
            "horovod": {b: why_not_in_horovod(b) for b in BACKENDS},
            "rpc": {"tensorpipe": None if facts["rpc"] else no_rpc},
        },
        "packages": {name: why_not_installed("packages", name) for name in PACKAGES},
        "programs": {name: why_not_installed("programs", name) for name in PROGRAMS},
        "no_cuda": None if facts["cuda"] else f"{torch} is built without CUDA",
        # An image that is not built yet promises it by NCCL.
        "horovod_no_cuda": None
        if facts.get("horovod_cuda", "nccl" in facts["horovod"])
        else f"{horovod} is built without CUDA, and takes tensors on CPUs only",
    }


def why_no_cuda(facts: Mapping[str, Any], torch: str) -> str:
    """The reason why no CUDA device is available."""
    if not facts["cuda"]:
        return f"{torch} is built without CUDA"
    return "this machine has none that torch sees"
