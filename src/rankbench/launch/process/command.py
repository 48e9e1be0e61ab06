"""The command of a launch, and the environment of its ranks.

The command is a step of Slurm, in it an image, in it the launcher. Pure functions:
commands can be read and tested without Slurm, Apptainer or launcher.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankbench.environ import PYTHON
from rankbench.launch.hosts.base import Hosts, Step, container_program
from rankbench.launch.launchers import find_launcher
from rankbench.launch_spec import LaunchSpec

# Variables of Apptainer itself. Its switches, such as APPTAINER_CONTAINALL, would
# change what ranks see. Only paths of the site pass.
_FOR_APPTAINER = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_RUNTIME_DIR"),
    *(
        f"{program}_{name}"
        for program in ("APPTAINER", "SINGULARITY")
        for name in ("BIND", "BINDPATH", "MOUNT", "CACHEDIR", "CONFIGDIR", "TMPDIR")
    ),
}

HOME = "/opt/rankbench/home"  # of ranks in an image


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """What is run.

    Attributes:
        argv: the whole command.
        env: variables of the launcher and its ranks.
        outer: those of the process that is started: srun and Apptainer need more.
    """

    argv: list[str]
    env: dict[str, str]
    outer: dict[str, str]


def build_command(
    spec: LaunchSpec, hosts: Hosts, *, inherited: Mapping[str, str] = os.environ
) -> LaunchCommand:
    """What is run for a launch.

    Args:
        spec: the launch.
        hosts: where it runs.
        inherited: the environment to pass the known variables on from.
    """
    launcher = find_launcher(spec.cell.launcher)
    has_data = spec.data_dir.exists()
    work, spec = spec.work, hosts.place(spec)
    env = build_environment(spec, inherited)
    if hasattr(launcher, "build_variables"):
        env |= launcher.build_variables(spec)
    argv, outer = launcher.build_argv(spec), env
    if spec.image is not None:
        argv = exec_argv(spec, argv, has_data=has_data)
        outer = environment_for(env, inherited)
    per_rank = getattr(launcher, "NEEDS", {}).get("per") == "rank"
    how = Step(
        logs=work,
        tasks_per_host=spec.shape.ranks_per_node if per_rank else 1,
        mpi=per_rank and spec.cell.backend == "mpi",
        shares_cores=spec.shares_cores,
    )
    return LaunchCommand(
        hosts.step(argv, how), env, {**outer, **hosts.variables(inherited)}
    )


def exec_argv(
    spec: LaunchSpec, argv: Sequence[str], *, has_data: bool = True
) -> list[str]:
    """The command that runs `argv` inside the image of a launch.

    `/dev` is the host's, and with it `/dev/shm`: the memory that ranks share is as
    large as there. `/tmp` is the host's, too.
    """
    assert spec.image is not None, "it has an image"
    data = [spec.data_dir] if has_data else []
    # Scripts may download what they train on.
    downloads = [] if spec.cell.script is None else data
    readable = [
        spec.source,
        *([] if downloads else data),
        *spec.binds,
        *sorted(set(spec.own_folders.values())),
    ]
    scratch = [spec.scratch] if spec.scratch else []
    writable = [spec.directory, *downloads, *scratch]
    return [
        container_program() or "apptainer",
        "--quiet",  # Apptainer warns about missing programs that it does not need.
        "exec",
        # Packages and settings in a user's home must not affect the measurement.
        f"--home={spec.home}:{HOME}",
        "--no-mount=cwd",
        *(["--nv"] if spec.cell.device == "cuda" else []),
        *(f"--bind={path}:{path}:ro" for path in readable),
        *(f"--bind={path}:{path}" for path in writable),
        f"--pwd={HOME}",
        str(spec.image["file"]),
        *argv,
    ]


def check_binds(paths: Sequence[str]) -> None:
    """Check that this host has the paths that an image shall see.

    Raises:
        ValueError: it lacks one; the message names host, path and remedy.
    """
    for path in paths:
        if not os.path.exists(path):
            raise ValueError(
                f"the host {socket.gethostname()} has no {path}: correct binds in "
                "site.yaml"
            )


def environment_for(
    inside: Mapping[str, str], inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables for the command of `exec_argv`: all of them come in.

    No `--cleanenv`: this environment is made from nothing, and what a launcher outside
    sets for each rank must reach it.

    Args:
        inside: what the ranks shall have.
        inherited: the environment to take from what Apptainer itself needs.
    """
    own = {key: value for key, value in inherited.items() if key in _FOR_APPTAINER}
    return {**own, **inside}


# --- the environment of the ranks: a short list is passed on, and all is recorded -----

_PASSED = ("USER", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES")
# An image has its own values of these.
_PASSED_NATIVE = (
    "PATH",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CUDA_HOME",
    "I_MPI_ROOT",
)
_PASSED_PREFIXES = (
    *("NCCL_", "GLOO_", "TP_", "UCX_", "FI_", "RANKBENCH_TEST_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUDA_DEVICE_MAX_CONNECTIONS"),
)

# Torch's allocator on GPUs. Segments that can grow leave little memory unused between
# tensors. A site, a cell or the shell may choose otherwise. Newer versions of torch
# read both names.
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# These make libraries log their transport, without a line for each message, so the
# measurement is not affected. launch/process/transport.py reads the logs.
#
# NCCL is always asked, because it falls back to slower ways silently. It prints each
# connection once, when it is made; NET adds where GPUDirect RDMA is possible.
_NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}
_LOGS = {
    **_NCCL_LOG,
    # Prints the lanes to each kind of peer. The tables of protocols (since UCX 1.12)
    # also show the kind of memory; all versions understand `y`.
    "UCX_LOG_LEVEL": "info",
    "UCX_PROTO_INFO": "y",
}
# These variables would redirect the logs to other files.
_LOG_FILES = ("NCCL_DEBUG_FILE", "UCX_LOG_FILE")

# The interface over which sockets reach other hosts. Open MPI has its own parameters
# (launchers/mpirun.py). UCX chooses the fastest adapter by itself; naming an IP
# interface would prevent that.
_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")

# Whether network adapters access GPU memory directly, by backend. True requests it
# wherever an adapter and a GPU can reach each other at all, even over a long path,
# which may be slower. Where that is impossible, NCCL goes through the host, and UCX may
# fail.
_GPUDIRECT: dict[tuple[str, str | bool], dict[str, str]] = {
    ("nccl", True): {
        "NCCL_NET_GDR_LEVEL": "SYS",
        # NCCL does not send from GPU memory on some GPUs before Ampere unless asked.
        "NCCL_NET_GDR_READ": "1",
    },
    ("nccl", False): {
        "NCCL_NET_GDR_LEVEL": "LOC",
        "NCCL_NET_GDR_READ": "0",
        # On a host whose CPU and GPU are linked (C2C), this variable overrides the
        # level.
        "NCCL_NET_GDR_C2C": "0",
    },
    # Open MPI handles GPU tensors if it was built for that. There is no variable for it
    # here, because enabling it in any other build ends every rank.
    ("mpi", True): {"UCX_IB_GPU_DIRECT_RDMA": "y"},
    ("mpi", False): {"UCX_IB_GPU_DIRECT_RDMA": "n"},
}


def find_settings(
    spec: LaunchSpec, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables that tune libraries, as the user or the site file sets them.

    Launches are alike only if these are. Those of the cell are part of its identity.
    """
    passed = {
        key: value
        for key, value in inherited.items()
        if key.startswith(_PASSED_PREFIXES) and not key.startswith("RANKBENCH_")
    }
    settings = passed | dict(spec.env)
    return {k: settings[k] for k in sorted(settings.keys() - spec.cell.env.keys())}


def build_environment(
    spec: LaunchSpec, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables for the launcher and its ranks.

    Args:
        spec: the launch.
        inherited: the environment to pass the known variables on from.
    """
    backend = spec.cell.backend
    names = _PASSED if spec.image else (*_PASSED, *_PASSED_NATIVE)
    passed = {
        key: value
        for key, value in inherited.items()
        if key in names or key.startswith(_PASSED_PREFIXES)
    }
    passed |= {**spec.env, **spec.cell.env}
    # UCX cannot give such segments to other processes, as MPI asks it to.
    grows = spec.cell.device == "cuda" and backend != "mpi"
    if grows and not any(name in passed for name in _ALLOCATOR):
        passed[_ALLOCATOR[0]] = "expandable_segments:True"
    passed |= {
        **PYTHON,
        # Packages in the user's home must not affect the measurement.
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": str(spec.source),
        "PYTHONUNBUFFERED": "1",
    }
    if spec.scratch is not None:
        passed["TMPDIR"] = str(spec.scratch)
    # GPUs are numbered as by nvidia-smi and NVML, not by speed.
    passed["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    # torchrun would set it to 1 if it is not set; other launchers would not.
    passed["OMP_NUM_THREADS"] = str(spec.threads)
    # On one host, ranks need neither a name look-up nor a port on another interface.
    if between := spec.interface if spec.is_spread else "lo":
        for name in _INTERFACE:
            passed.setdefault(name, between)
    passed |= _GPUDIRECT.get((backend, spec.cell.gpudirect), {})
    asked = _NCCL_LOG if backend == "nccl" else {}
    if spec.options.backend_logs:
        asked = _LOGS
    if asked:
        for name in _LOG_FILES:
            passed.pop(name, None)
        passed |= asked
    # What libraries read before any code of a rank runs, in their own units.
    if (size := spec.cell.options.get("fusion_threshold_mb")) is not None:
        passed["HOROVOD_FUSION_THRESHOLD"] = str(int(size * 2**20))
    if spec.cell.device == "cpu":
        # DeepSpeed would use a GPU if one exists.
        passed["DS_ACCELERATOR"] = "cpu"
    return dict(sorted(passed.items()))
