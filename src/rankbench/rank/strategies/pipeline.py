"""Pipeline parallelism by torch.distributed.pipelining, with micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage, schedules

from rankbench.decoder import split_evenly, stages_of_rank
from rankbench.rank.strategies._axes import by_mesh, clip, whole
from rankbench.rank.strategies._pipeline import (
    Stage,
    Stopwatch,
    count_parts,
    measure_parts,
    trace_shapes,
)
from rankbench.rank.strategies.base import (
    Batch,
    MakeOptimizer,
    Mark,
    Operation,
    Strategy,
    stand_in,
)

# Extra steps for measuring how long each rank waits.
PROBES = 5

# Schedule -> torch's class, and how many thirds of a stage's work the ideal bubble has
# for each rank but one. The thirds are forward and the two halves of backward.
KINDS = {
    "gpipe": ("ScheduleGPipe", 3),
    "1f1b": ("Schedule1F1B", 3),
    "interleaved": ("ScheduleInterleaved1F1B", 3),
    "zero-bubble": ("ScheduleInterleavedZeroBubble", 1),
    "zbv": ("ScheduleZBVZeroBubble", 0),
    "dualpipev": ("ScheduleDualPipeV", 2),
}
# Their stages lie like a V: the first rank has the first and the last one.
V_SHAPED = ("zbv", "dualpipev")


class Pipeline(Strategy):
    """Ranks send activations to the next stage and gradients to the one before.

    The first stage reads the inputs. The last stage reads the targets, so only its rank
    knows the loss.
    """

    needs = {
        "replica_ranks": "all",
        "sequential": True,
        "shared_weights": False,
        "backends": ["gloo", "nccl"],
        "multiple_of": "microbatches",
        "splits_batch": True,
        "schedules": {
            # Older versions hang over gloo: they wait only for the last message of a
            # group, and gloo does not keep the messages in order.
            "1f1b": {"microbatches": "one_per_rank", "torch": {"gloo": "2.8"}},
            "interleaved": {
                "microbatches": "equal_rounds",
                "torch": {"gloo": "2.8"},
                "stages": "virtual_stages",
            },
            # Older versions lack dualpipev, and run the others by other code.
            "zero-bubble": {
                "microbatches": "equal_rounds",
                "torch": {"gloo": "2.9", "nccl": "2.9"},
                "stages": "virtual_stages",
            },
            "zbv": {"torch": {"gloo": "2.9", "nccl": "2.9"}, "stages": 2},
            "dualpipev": {
                "microbatches": "one_per_stage",
                "torch": {"gloo": "2.9", "nccl": "2.9"},
                "stages": 2,
            },
        },
    }
    options = {
        # gpipe: all forwards, then all backwards; 1f1b: each backward as early as
        # possible, to keep fewer activations; interleaved: 1f1b with several stages on
        # each rank, to shorten the waits; zero-bubble, zbv, dualpipev: gradients of
        # weights are computed later than those of inputs, while the rank would wait.
        "schedule": {
            "enum": ["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev"],
            "default": "1f1b",
        },
        # Number of micro-batches in a batch.
        "microbatches": {"type": "integer", "minimum": 1, "default": 4},
        # Number of stages on each rank under interleaved and zero-bubble.
        "virtual_stages": {"type": "integer", "minimum": 1, "default": 2},
        # As in mp.
        "balance": {
            "type": "string",
            "pattern": "^(measured|parameters|[0-9]+(,[0-9]+)*)$",
            "default": "measured",
        },
    }
    conditions = [
        {
            "if": {"backend": {"const": "gloo"}},
            "then": {"device": {"const": "cpu"}},
            "else": "gloo cannot carry what pipeline sends from GPUs",
        },
        {
            "if": {"compile": {"const": True}},
            "then": {"schedule": {"enum": ["gpipe", "1f1b", "interleaved"]}},
            "else": "zero-bubble schedules halve the backward of blocks, which torch "
            "cannot do if they are compiled: take 1f1b or interleaved",
        },
    ]
    on_meta = True
    phases = ["pipeline", "update"]

    model: nn.Sequential

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.model = cast(nn.Sequential, model)
        self.make_optimizer = make_optimizer
        self.group = self.find_group()
        self.ranks = self.group.size() if self.group else 1
        self.place = self.group.rank() if self.group else 0
        self.stages: list[TimedStage] = []
        self.costs: list[float] = []
        self._sends: list[Tensor] = []
        self.count = int(self.chosen["microbatches"])
        self.per_rank = stages_of_rank(self.chosen, self.needs.get("schedules", {}))

    def step(self, batch: Batch, mark: Mark) -> Tensor | None:
        if not self.stages:
            self._split(batch)
        loss = self.run(batch)
        mark("pipeline")
        self.update()
        mark("update")
        return loss

    def operations(self) -> list[Operation]:
        """What this rank sends: activations to the next stage, gradients back."""
        size = self.count * sum(x.nbytes for x in self._sends)
        dtype = self.low_dtype or torch.float32
        return [Operation("send_recv", size, dtype, self.group)]

    def details(self) -> dict[str, Any]:
        """The stages of this rank, and the share of a step in which it waits.

        They are measured in extra steps, because a stopwatch would disturb the timed
        ones. The extra steps leave the model as it was.
        """
        kept = [(b, b.clone()) for stage in self.stages for b in stage.submod.buffers()]
        batch = stand_in(self._shapes, self.world.device)
        watch = Stopwatch(self.world.device)
        for stage in self.stages:
            stage.watch = watch
        for _ in range(PROBES):
            distributed.barrier()
            with watch("step"):
                self.run(batch)
        for stage in self.stages:
            stage.watch = idle
        self.optimizer.zero_grad()
        for buffer, before in kept:
            buffer.copy_(before)

        def per_step(kind: str) -> Tensor:
            return watch.seconds(kind).reshape(PROBES, -1).sum(dim=1)

        forward = per_step("forward") + per_step("loss")
        backward = per_step("backward")
        step = per_step("step").to(self.world.device)
        distributed.all_reduce(step, distributed.ReduceOp.MAX)
        bubble = 1 - (forward + backward) / step.cpu()
        names = [name for name, _ in self.model.named_children()]
        waits = KINDS[self.chosen["schedule"]][1] * (self.ranks - 1)
        return {
            # Seconds of each part of the model on a micro-batch; on rank 0 only.
            "part_costs": self.costs,
            "stages": [
                names[slice(*self._borders[stage.stage_index])] for stage in self.stages
            ],
            "microbatches": self.count,
            "forward_s": float(forward.median()) / self.count,
            "backward_s": float(backward.median()) / self.count,
            "bubble": float(bubble.median()),
            "ideal_bubble": waits / (3 * self.per_rank * self.count + waits),
        }

    def clip(self, max_norm: float) -> None:
        clip(self.optimizer, max_norm, self.group)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights of the whole model on rank 0, one by one; none on the others."""
        members = [self.world.rank]
        owner: dict[str, int] = {}
        if self.group is not None:
            members = distributed.get_process_group_ranks(self.group)
            children = [name for name, _ in self.model.named_children()]
            for stage, (a, b) in enumerate(self._borders):
                owner |= dict.fromkeys(children[a:b], self._owner(stage))
        weights, device = {}, self.world.device
        for name, value in self.model.state_dict().items():
            source = owner.get(name.partition(".")[0], 0)
            if source == self.place:
                value = whole(value.to(device))
                if source != 0 and members[0] == 0:
                    distributed.send(value.contiguous(), 0, self.group)
            elif self.world.rank == 0:
                value = torch.empty(value.shape, dtype=value.dtype, device=device)
                distributed.recv(value, members[source], self.group)
            if self.world.rank == 0:
                weights[name] = value.cpu()
        return weights

    def find_group(self) -> ProcessGroup | None:
        """The ranks that the stages are on, here all of them; None: there is one."""
        return distributed.group.WORLD

    def split_layers(self, shapes: list[Tensor]) -> list[Tensor]:
        """Split the layers of stages over ranks; here each has a rank of its own.

        Args:
            shapes: of the input of the first part of the model, and of the output of
                each part.

        Returns:
            The same, of what a rank then has of them.
        """
        return shapes

    def shard(self, stage: Stage) -> None:
        """Share out what a rank holds of a stage; here no other rank has the stage."""

    def _split(self, batch: Batch) -> None:
        """Split the model into stages, and keep the stages of this rank."""
        device = self.world.device
        self._shapes = tuple(tensor.to("meta") for tensor in batch)
        images = batch[0][: len(batch[0]) // self.count]
        parts, number = list(self.model), self.ranks * self.per_rank
        balance = str(self.chosen["balance"])
        if balance == "measured":
            counts = self._measure(parts, images, number)
        else:
            counts = count_parts(balance, parts, images, number, self.load)
        self._borders = list(pairwise(accumulate(counts, initial=0)))
        shapes = self.split_layers(trace_shapes(parts, images, self.low_dtype))
        for index, (first, last) in enumerate(self._borders):
            if self._owner(index) != self.place:
                for part in parts[first:last]:
                    part.to("meta")
                continue
            # Gradients go back to the stage before, activations to the next.
            for other, shape in ((index - 1, first), (index + 1, last)):
                if 0 <= other < number and self._owner(other) != self.place:
                    self._sends.append(shapes[shape])
            submodule = Stage(parts[first:last], self.arithmetic, self.low_dtype)
            self.shard(submodule)
            for part in parts[first:last]:
                self.load(part, device)
            # Shapes are given, or torch would find them by running the stage on
            # uninitialised memory.
            self.stages.append(
                TimedStage(
                    submodule,
                    index,
                    number,
                    device,
                    input_args=(shapes[first].requires_grad_(index > 0),),
                    output_args=(shapes[last].requires_grad_(),),
                    group=self.group,
                )
            )
        self.schedule = self._make_schedule()
        mine = [p for stage in self.stages for p in stage.submod.parameters()]
        # An optimizer requires at least one parameter, and a stage may have none.
        mine = mine or [nn.Parameter(torch.zeros(1, device=device))]
        self.optimizer = self.make_optimizer(by_mesh(mine))

    def _owner(self, stage: int) -> int:
        """The rank of a stage within the group."""
        turn, place = divmod(stage, self.ranks)
        back = turn == 1 and self.chosen["schedule"] in V_SHAPED
        return self.ranks - 1 - place if back else place

    def _measure(
        self, parts: Sequence[nn.Module], images: Tensor, number: int
    ) -> list[int]:
        """How many parts each stage gets; rank 0 measures them for all ranks."""
        counts = torch.zeros(number, dtype=torch.int64, device=self.world.device)
        if self.world.rank == 0:
            with self.arithmetic():
                self.costs = measure_parts(parts, images, self.load)
            counts.copy_(torch.tensor(split_evenly(self.costs, number)))
        distributed.broadcast(counts, 0)
        found: list[int] = counts.tolist()
        return found

    def _make_schedule(self) -> Any:
        kind: Any = getattr(schedules, KINDS[self.chosen["schedule"]][0])
        single = issubclass(kind, schedules.PipelineScheduleSingle)
        stages = self.stages[0] if single else self.stages
        schedule = kind(stages, self.count, loss_fn=self.share_of_loss)
        # The loss is already divided by the number of micro-batches; some versions of
        # torch would divide the gradients again.
        schedule.scale_grads = False
        return schedule

    def share_of_loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """What a micro-batch adds to the loss of the batch."""
        with self.stages[-1].watch("loss"):
            return self.compute_loss(nn.Identity(), (output, labels)) / self.count

    def run(self, batch: Batch) -> Tensor | None:
        """Run forward and backward of all micro-batches.

        Returns:
            The loss on the rank of the last stage; None on the others.
        """
        images, labels = batch
        fed = (images,) if self.stages[0].is_first else ()
        if not self.stages[-1].is_last:
            self.schedule.step(*fed)
            return None
        losses: list[Tensor] = []
        self.schedule.step(*fed, target=labels, losses=losses)
        return torch.stack(losses).sum().detach()


def idle(_kind: str) -> AbstractContextManager[None]:
    """Stand in for the stopwatch of a stage that is not timed."""
    return nullcontext()


class TimedStage(PipelineStage):
    """A stage whose stopwatch runs while the stage computes, not while it waits."""

    watch: Callable[[str], AbstractContextManager[None]] = staticmethod(idle)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch("forward"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch("backward"):
            return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients of weights, if their schedule separates them."""
        with self.watch("backward"):
            return super().backward_weight_one_chunk(*args, **kwargs)
