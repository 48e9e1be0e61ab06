"""Strategies that go wrong on purpose; tests put them into a copy of the project."""

from __future__ import annotations

_HEADER = '''"""A strategy for tests."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import Tensor

from rankbench.rank.strategies.base import Batch, Mark
from rankbench.rank.strategies.ddp import Ddp


class Faulty(Ddp):
    """Goes wrong in its third step."""

    needs = {"backends": ["gloo", "mpi", "nccl"]}
    phases = ["forward", "backward", "communication", "update"]

    def setup(self, model, make_optimizer) -> None:
        self.count = 0
        super().setup(model, make_optimizer)

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        self.count += 1
        if self.count == 3:
            self.go_wrong()
        return super().step(batch, mark)

    def go_wrong(self) -> None:
'''

SLOW = _HEADER.replace("if self.count == 3", "if True") + "        time.sleep(0.25)\n"
LATE = _HEADER.replace("if self.count == 3", "if True") + (
    "        if self.world.rank == 1:\n            time.sleep(0.06)\n"
)
HANG = _HEADER + "        if self.world.rank == 1:\n            time.sleep(10_000)\n"
KILLED = (
    _HEADER
    + "        if self.world.rank == 1:\n"
    + "            os.kill(os.getpid(), signal.SIGKILL)\n"
)
RAISES = (
    _HEADER
    + "        if self.world.rank == 1:\n"
    + '            raise RuntimeError("the disk of the moon is full")\n'
)
# An allocation above every address-space limit that a test sets.
HUNGRY = (
    _HEADER
    + "        if self.world.rank == 1:\n"
    + "            self.kept = torch.ones(2**40, dtype=torch.uint8)\n"
)
# An allocation above every limit, once all steps are measured.
HUNGRY_LATER = (
    _HEADER
    + "        def details():\n"
    + "            if self.world.rank == 1:\n"
    + "                return torch.ones(2**60, dtype=torch.uint8)\n"
    + "            return {}\n"
    + "        self.details = details\n"
)
# An allocation above the memory limit of a job, for which Slurm kills it sooner or
# later.
GREEDY = (
    _HEADER
    + "        if self.world.rank == 1:\n"
    + "            self.kept = torch.ones(3 * 2**30, dtype=torch.uint8)\n"
    + "            time.sleep(600)\n"
)
# A file that is larger than the scratch folder of a test.
SPILLS = (
    _HEADER
    + "        if self.world.rank == 1:\n"
    + "            with open(os.path.join(os.environ['TMPDIR'], 'spilt'), 'wb') as f:\n"
    + "                f.write(bytes(8 * 2**20))\n"
)
# A peer closes its connections first, when all ranks have reported.
PARTS_BADLY = (
    _HEADER
    + "        def part() -> None:\n"
    + "            raise RuntimeError('Connection closed by peer')\n"
    + "        torch.distributed.destroy_process_group = part\n"
)
# A rank crashes while it leaves the others.
DIES_PARTING = (
    _HEADER
    + "        def part() -> None:\n"
    + "            if self.world.rank == 1:\n"
    + "                os.kill(os.getpid(), signal.SIGSEGV)\n"
    + "        torch.distributed.destroy_process_group = part\n"
)
PORT_TAKEN_ONCE = (
    _HEADER
    + "        flag = os.path.join(os.environ['TMPDIR'], 'port-was-taken')\n"
    + "        if self.world.rank == 0 and not os.path.exists(flag):\n"
    + "            open(flag, 'w').close()\n"
    + "            import socket\n"
    + "            with socket.create_server(('127.0.0.1', 0)) as server:\n"
    + "                socket.create_server(server.getsockname())\n"
)
