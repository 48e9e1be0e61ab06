"""Run by srun: ranks add 32 MiB by gloo, and tell who they are and how long it took."""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

MIB = 32
TIMES = 3

rank = int(os.environ["SLURM_PROCID"])
port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 20000
dist.init_process_group(
    "gloo",
    init_method=f"tcp://{sys.argv[1]}:{port}",
    rank=rank,
    world_size=int(os.environ["SLURM_NTASKS"]),
)
numbers = torch.ones(MIB * 2**18)
seconds = []
for _ in range(TIMES):
    numbers.fill_(rank + 1)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(numbers)
    seconds.append(time.perf_counter() - start)
told = {
    "host": os.uname().nodename,
    "cores": sorted(os.sched_getaffinity(0)),
    "sum": numbers.unique().tolist(),
    "seconds": min(seconds),
}
print(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
