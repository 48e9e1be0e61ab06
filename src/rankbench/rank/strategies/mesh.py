"""A mesh of ranks: the dimensions along which decoders are trained, all in one.

Liang et al. 2024, TorchTitan, arXiv 2410.06511.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from rankbench.rank.strategies._axes import (
    Axis,
    CrossEntropy,
    by_mesh,
    sent_by_layers,
    split_decoder,
)
from rankbench.rank.strategies._pipeline import Stage
from rankbench.rank.strategies._weights import Shards, keep_statistics
from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Operation
from rankbench.rank.strategies.pipeline import Pipeline


class Mesh(Pipeline):
    """Ranks [pipe, copy, shard, context, tensor]; the last ones are neighbours.

    The ranks along `pipe` have different stages of the model. Those along `tensor`
    split its layers, and between layers the tokens; those along `context` split the
    sequences. Along `shard` and `context` FSDP2 shares out what each of them holds, and
    gathers a block when it is needed. Copies average their gradients. Experts are
    shared out to `expert` neighbours among the ranks of a copy, which exchange rows.

    The phases forward and backward include all of this, and waiting for other stages.
    """

    like = "pipeline"
    needs = {
        "precisions": ["fp32", "tf32", "bf16", "fp8"],
        "replica_ranks": ["pipe", "context", "tensor"],
        "axes": ["pipe", "copy", "shard", "context", "tensor"],
        # As of FSDP2, which uses streams before; a CPU does not have those.
        "torch": {"cpu": "2.8"},
        "splits_batch": "microbatches",
    }
    options = {
        # Numbers of ranks; shard 0: all that is left.
        "pipe": {"type": "integer", "minimum": 1, "default": 1},
        "copy": {"type": "integer", "minimum": 1, "default": 1},
        "shard": {"type": "integer", "minimum": 0, "default": 0},
        "context": {"type": "integer", "minimum": 1, "default": 1},
        "tensor": {"type": "integer", "minimum": 1, "default": 1},
        "expert": {"type": "integer", "minimum": 1, "default": 1},
        # Of a batch. Without stages, gradients are sent after the last one only.
        "microbatches": {"type": "integer", "minimum": 1, "default": 1},
        # As in fsdp; weights of several stages stay gathered.
        "reshard_after_forward": {"type": "boolean", "default": True},
        # Multiply the rows of one rank along tensor while those of others arrive.
        "async_tensor": {"type": "boolean", "default": False},
    }
    conditions = [
        {
            "if": {"async_tensor": {"const": True}},
            "then": {
                "device": {"const": "cuda"},
                "compile": {"const": True},
                "tensor": {"minimum": 2},
            },
            "else": "async_tensor is what torch.compile makes of tensor on GPUs: set "
            "compile: true, device: cuda and tensor: 2 or more",
        },
        {
            "if": {"fused_optimizer": {"const": True}},
            "then": {"optimizer": {"enum": ["adam", "adamw"]}},
            "else": "torch has no fused sgd for weights that are sharded",
        },
    ]
    casts = True
    # Whether weights, gradients and the optimizer's state are on the host.
    offload = False
    phases = ["forward", "backward", "update"]

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().setup(model, make_optimizer)
        if self.low_dtype:
            keep_statistics(model)
        if self.chosen.get("async_tensor"):
            from torch._inductor import config
            from torch.distributed import _symmetric_memory

            config._micro_pipeline_tp = True
            enable: Any = _symmetric_memory.enable_symm_mem_for_group
            enable(self.axes["tensor"].group[1])
        # Loss of logits of which a rank has some words.
        self._loss = (self._split_loss,) if self.axes["tensor"].size > 1 else ()
        if self.ranks == 1:
            split_decoder(self.model, self.axes)
            device = self.world.device
            self.shards.add(
                self.model,
                again=self.chosen["reshard_after_forward"],
                # On a CPU, as of fake ranks, there is nothing to offload to.
                offload=self.offload and device.type == "cuda",
                experts=self.expert_shards,
            )
            self.load(self.model, torch.device("cpu") if self.offload else device)
            # Only weights are offloaded.
            for module in self.model.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.to(device))
            self.optimizer = make_optimizer(by_mesh(self.model.parameters()))

    def find_group(self) -> ProcessGroup | None:
        names = ("pipe", "copy", "shard", "context", "tensor")
        pipe, copy, shard, context, tensor = (int(self.chosen[name]) for name in names)
        shard = shard or self.world.size // (pipe * copy * context * tensor)
        expert, weights = int(self.chosen["expert"]), shard * context
        mesh = self._make_mesh(pipe=pipe, copy=copy, shard=weights, tensor=tensor)
        inner = among = mesh
        if context > 1:
            outer = pipe * copy * shard
            inner = self._make_mesh(shard=outer, context=context, tensor=tensor)
        self.shards, self.expert_shards = Shards(mesh, self.low_dtype), None
        if expert * tensor > 1:
            few = weights * tensor // expert
            among = self._make_mesh(pipe=pipe, copy=copy, shard=few, expert=expert)
            self.expert_shards = Shards(among, self.low_dtype)
        self.axes = {
            "tensor": Axis.of(mesh, "tensor"),
            "context": Axis.of(inner, "context"),
            "expert": Axis.of(among, "expert"),
        }
        return mesh.get_group("pipe") if pipe > 1 else None

    def step(self, batch: Batch, mark: Mark) -> Tensor | None:
        self.mark = mark
        context = self.axes["context"]
        if context.size > 1:
            batch = (context.mine(batch[0], 1), context.mine(batch[1], 1))
        self._tokens = batch[1].numel()
        if self.ranks > 1:
            if not self.stages:
                self._split(batch)
            for stage in self.stages:
                stage.watch = self._watch
        loss = self.run(batch)
        self.update()
        mark("update")
        return loss

    def run(self, batch: Batch) -> Tensor | None:
        if self.ranks > 1:
            return super().run(batch)
        losses = []
        parts = zip(*(half.chunk(self.count) for half in batch), strict=True)
        for number, part in enumerate(parts, start=1):
            cast(FSDPModule, self.model).set_requires_gradient_sync(
                number == self.count
            )
            loss = self.compute_loss(self.model, part, *self._loss) / self.count
            self.mark("forward")
            self.backward(loss)
            self.mark("backward")
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def split_layers(self, shapes: list[Tensor]) -> list[Tensor]:
        split_decoder(self.model, self.axes)
        if (tensor := self.axes["tensor"]).size > 1:
            # All but tokens, and what the last norm returns.
            shapes[1:-2] = [tensor.mine(shape, 1) for shape in shapes[1:-2]]
            shapes[-1] = tensor.mine(shapes[-1], -1)
        return shapes

    def shard(self, stage: Stage) -> None:
        # Weights stay gathered for the micro-batches that follow.
        self.shards.add(stage, again=False, experts=self.expert_shards)

    def share_of_loss(self, output: Tensor, labels: Tensor) -> Tensor:
        with self.stages[-1].watch("loss"):
            both = (output, labels)
            return self.compute_loss(nn.Identity(), both, *self._loss) / self.count

    def operations(self) -> list[Operation]:
        passes = self.count if self.ranks == 1 else 1
        between = super().operations() if self.ranks > 1 else []
        return [
            *between,
            *sent_by_layers(
                self.model,
                self.axes,
                tokens=self._tokens,
                batches=self.count,
                dtype=self.low_dtype or torch.float32,
                checkpointing=self.checkpointing,
            ),
            *self.shards.operations(passes),
            *(self.expert_shards.operations(passes) if self.expert_shards else ()),
        ]

    def details(self) -> dict[str, Any]:
        return super().details() if self.ranks > 1 else {}

    def _split_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = CrossEntropy.apply(logits, targets, self.axes["tensor"])
        return loss

    @contextmanager
    def _watch(self, kind: str) -> Iterator[None]:
        """Mark when a stage has computed; before that it may have waited."""
        yield
        self.mark("backward" if kind == "backward" else "forward")

    def _make_mesh(self, **sizes: int) -> DeviceMesh:
        """A mesh of the world; each dimension is a group of ranks, so none of one."""
        sizes = {k: size for k, size in sizes.items() if size > 1 or k == "shard"}
        return device_mesh.init_device_mesh(
            self.world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )
