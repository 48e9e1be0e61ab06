"""Two ranks on one GPU over NCCL: strategies train what a single process trains.

NCCL refuses that, unless it is told to (2.30 and later) or takes the ranks for ones of
different hosts. It serves correctness only: the ranks take turns on the GPU.
"""

from __future__ import annotations

import pytest
import torch
from equipment import require_packages
from gate_ranks import run_gate

from rankbench.matrix.catalog import load_catalog

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STRATEGIES = load_catalog().strategies


def sharing_variables() -> dict[str, str]:
    """Variables with which NCCL lets ranks share a GPU."""
    version = torch.cuda.nccl.version()
    if version >= (2, 30):
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    return {"NCCL_HOSTID": "rank{rank}", "NCCL_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    "name", ["ddp", "fsdp", "zero1", "tp", "pipeline", "deepspeed", "horovod"]
)
def test_two_ranks_on_one_gpu_train_what_one_process_trains(name, tmp_path):
    require_packages(name)
    status, reason, numbers = run_gate(
        tmp_path / "gate",
        variables=sharing_variables(),
        strategy=name,
        model="transformer" if STRATEGIES[name].needs["divides"] else "lenet",
        topology="1x2",
        backend="nccl",
        device="cuda",
        oversubscribe=True,
    )
    assert (status, reason) == ("ok", None), numbers
