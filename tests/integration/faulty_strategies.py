"""Strategies that go wrong on purpose; tests put them into a copy of the project."""

from __future__ import annotations

from textwrap import indent

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

    like = "ddp"
    needs = {"backends": ["gloo", "mpi", "nccl"]}

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


def _strategy(go_wrong: str, *, each_step: bool = False) -> str:
    header = _HEADER.replace("if self.count == 3", "if True") if each_step else _HEADER
    return header + indent(go_wrong, 8 * " ")


def _of_rank_1(*lines: str, each_step: bool = False) -> str:
    body = "\n".join(("if self.world.rank == 1:", *(f"    {line}" for line in lines)))
    return _strategy(f"{body}\n", each_step=each_step)


SLOW = _strategy("time.sleep(0.25)\n", each_step=True)
LATE = _of_rank_1("time.sleep(0.06)", each_step=True)
HANG = _of_rank_1("time.sleep(10_000)")
# The file is in the rank's working folder.
MARKED_HANG = _of_rank_1("open('hangs', 'w').close()", "time.sleep(10_000)")
KILLED = _of_rank_1("os.kill(os.getpid(), signal.SIGKILL)")
RAISES = _of_rank_1('raise RuntimeError("the disk of the moon is full")')
# An allocation above every address-space limit that a test sets.
HUNGRY = _of_rank_1("self.kept = torch.ones(2**40, dtype=torch.uint8)")
# An allocation above the memory limit of a job, for which Slurm kills it sooner or
# later.
GREEDY = _of_rank_1(
    "self.kept = torch.ones(3 * 2**30, dtype=torch.uint8)", "time.sleep(600)"
)
# A file that is larger than the scratch folder of a test.
SPILLS = _of_rank_1(
    "with open(os.path.join(os.environ['TMPDIR'], 'spilt'), 'wb') as f:",
    "    f.write(bytes(8 * 2**20))",
)
# An allocation above every limit, once all steps are measured.
HUNGRY_LATER = _strategy("""\
def details():
    if self.world.rank == 1:
        return torch.ones(2**60, dtype=torch.uint8)
    return {}
self.details = details
""")
# A peer closes its connections first, when all ranks have reported.
PARTS_BADLY = _strategy("""\
def part() -> None:
    raise RuntimeError('Connection closed by peer')
torch.distributed.destroy_process_group = part
""")
# A rank crashes while it leaves the others.
DIES_PARTING = _strategy("""\
def part() -> None:
    if self.world.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
torch.distributed.destroy_process_group = part
""")
PORT_TAKEN_ONCE = _strategy("""\
flag = os.path.join(os.environ['TMPDIR'], 'port-was-taken')
if self.world.rank == 0 and not os.path.exists(flag):
    open(flag, 'w').close()
    import socket
    with socket.create_server(('127.0.0.1', 0)) as server:
        socket.create_server(server.getsockname())
""")
