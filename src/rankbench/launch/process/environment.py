"""The environment of the ranks. A short list is passed on, and all is recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rankbench.launch_spec import LaunchSpec

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
_PASSED_PREFIXES = ("NCCL_", "GLOO_", "TP_", "TORCH_", "UCX_", "FI_", "RANKBENCH_TEST_")

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
    # 10 prints what is selected; above 20 there are lines for each message.
    "OMPI_MCA_pml_base_verbose": "10",
    "OMPI_MCA_mtl_base_verbose": "10",
    "OMPI_MCA_btl_base_verbose": "10",
    # Prints how the process group was made: stores, addresses, options.
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "GLOO_LOG_LEVEL": "INFO",
    "CCL_LOG_LEVEL": "info",
    # `debug` would print lines for each cycle.
    "HOROVOD_LOG_LEVEL": "info",
}
# These variables would redirect the logs to other files.
_LOG_FILES = ("NCCL_DEBUG_FILE", "UCX_LOG_FILE")

# The interface over which sockets reach other hosts. Open MPI has its own parameters
# (launchers/_open_mpi.py). UCX chooses the fastest adapter by itself; naming an IP
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

SOURCE = Path(__file__).resolve().parents[3]


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
    passed |= {
        # Packages in the user's home must not affect the measurement.
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": str(SOURCE),
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
