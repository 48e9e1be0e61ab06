"""The training recipe of a cell: batches, loss, optimizer, precision, model options."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from rankbench.cell import Cell
from rankbench.rank.models import Experts, Replaced, become, find_blocks
from rankbench.rank.strategies.base import (
    Arithmetic,
    Batch,
    ComputeLoss,
    MakeOptimizer,
)


def set_arithmetic(precision: str, *, cudnn_benchmark: bool) -> None:
    """Set what torch keeps for the whole process.

    Args:
        precision: float32 operations use TF32 only if it is tf32.
        cudnn_benchmark: whether cuDNN tries its algorithms and takes the fastest.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = cudnn_benchmark


# Precision -> dtype of autocast. Under fp8 it is that of all but some linear layers.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
AUTOCAST |= dict.fromkeys(("fp8", "fp8_rowwise"), torch.bfloat16)


aten = torch.ops.aten
# What selective checkpointing keeps: the results of attention, and of every second
# matrix product, as torchtitan does. A convolution's is often changed in place.
_ATTENTION = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}
# And what other ranks have sent: sums over layers that are split, and rows of experts.
_RECEIVED = {
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}
# FSDP notes what it does for experts within a block, in backward more often.
SAC_IGNORED_OPS |= {
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
}
_PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default}


def prepare_model(
    model: nn.Module, cell: Cell, *, compiler: str = "inductor"
) -> nn.Module:
    """Apply memory format, checkpointing and torch.compile; names do not change.

    Args:
        compiler: backend of torch.compile.
    """
    if cell.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cell.compile:
        # DDP would split the graph of a block at its buckets.
        torch._dynamo.config.optimize_ddp = False
        for experts in (m for m in model.modules() if isinstance(m, Experts)):
            # Shapes differ in every step.
            apart = torch.compiler.disable(experts.share_as_read)
            experts.share_as_read = apart  # type: ignore[method-assign]
    # torch 2.13 fails to compile what computes with DTensors again as a whole.
    within = cell.compile and cell.checkpointing == "full"
    checkpoint_blocks(model, cell.checkpointing, compiler if within else None)
    if cell.compile and not within:
        compile_blocks(model, compiler)
    return model


class _Low(Replaced):
    """A module that autocast would run in float32, in the low precision.

    Attributes:
        dtype: of what it reads and returns.
        where: kind of the devices of autocast.
    """

    dtype: torch.dtype
    where: str

    def seen(self, weight: Tensor) -> Tensor:
        return weight.to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.where, enabled=False):
            low = x.to(self.dtype) if x.is_floating_point() else x
            result: Tensor = super().forward(low)
        return result


def lower_norms(model: nn.Module, dtype: torch.dtype, where: str) -> None:
    """Let norms and embeddings compute as where a strategy casts all weights.

    So they add to each other in this dtype, too, under autocast.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.Embedding):
            become(module, _Low, dtype=dtype, where=where)


def use_float8(
    model: nn.Module, recipe: str = "tensorwise", *, emulate: bool = False
) -> None:
    """Let the linear layers of blocks multiply in float8.

    Weights and results keep their dtypes.

    Args:
        recipe: of torchao, which says what has a scale: tensorwise or rowwise.
        emulate: whether to round numbers as on a GPU that has float8, on any device.

    Raises:
        ValueError: the GPU has no float8, or no layer fits its kernels.
    """
    # It takes long to import.
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    if not emulate and (has := torch.cuda.get_device_capability()) < (8, 9):
        raise ValueError(f"fp8 needs compute capability 8.9; this GPU has {has}")

    def fits(layer: nn.Linear, _name: str) -> bool:
        outputs, inputs = layer.weight.shape
        # On an H100, casts take longer than small products save, says torchao.
        small = outputs <= 1024 and inputs <= 4096 and not emulate
        return not (outputs % 16 or inputs % 16 or small)

    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
    for block in find_blocks(model):
        convert_to_float8_training(block, config=config, module_filter_fn=fits)
    if not any(isinstance(layer, Float8Linear) for layer in model.modules()):
        raise ValueError(
            "fp8: no linear layer of a block is large, with sides of multiples of 16"
        )


def checkpoint_blocks(
    model: nn.Module, kind: str, compiler: str | Callable[..., Any] | None = None
) -> None:
    """Let backward compute the activations of blocks again: none, full, selective.

    Args:
        compiler: compiles what is computed again as a whole.
    """
    contexts = {"full": noop_context_fn, "selective": _selective_contexts}.get(kind)
    if contexts is None:
        return
    # Parts without weights are no blocks. They keep few activations, and some change
    # their input in place, so they could not be recomputed from it.
    for block in find_blocks(model):
        forward: Any = type(block).forward
        if compiler:
            forward = torch.compile(forward, backend=compiler)
        # Replace only `forward`, so that strategies still find the same blocks. It is a
        # method, so that a copy of a block computes with its own weights.
        block.forward = MethodType(partial(_repeat, contexts, forward), block)


def compile_blocks(model: nn.Module, compiler: str | Callable[..., Any]) -> None:
    """Compile each block; what a strategy does between blocks stays out of graphs."""
    for block in find_blocks(model):
        block.compile(backend=compiler)


def _repeat(contexts: Any, forward: Any, block: nn.Module, *inputs: Any) -> Any:
    return checkpoint(forward, block, *inputs, use_reentrant=False, context_fn=contexts)


def _selective_contexts() -> Any:
    products = {False: 0, True: 0}

    def choose(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        keep = operation in _ATTENTION or operation in _RECEIVED
        if operation in _PRODUCTS:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(choose)


def make_arithmetic(precision: str, device: torch.device) -> Arithmetic:
    """A function that returns the context for a forward pass in this precision."""
    if precision in AUTOCAST:
        return partial(torch.autocast, device.type, dtype=AUTOCAST[precision])
    return nullcontext


def make_loss(
    precision: str,
    device: torch.device,
    *,
    scale: float = 1.0,
    compiler: str | None = None,
) -> ComputeLoss:
    """A function for the mean cross entropy over samples, or over all tokens.

    Args:
        precision: precision of the cell.
        device: device of the model.
        scale: factor that the loss is multiplied by.
        compiler: backend of torch.compile; None: the loss is not compiled.
    """
    arithmetic = make_arithmetic(precision, device)

    def judge(logits: Tensor, targets: Tensor, cross_entropy: Any) -> Tensor:
        if logits.dtype in AUTOCAST.values():
            logits = logits.float()  # as autocast does
        loss: Tensor = cross_entropy(logits, targets)
        return loss

    # One kernel in place of several copies of the logits in float32.
    if compiler:
        judge = torch.compile(judge, backend=compiler)

    def compute_loss(
        model: nn.Module,
        batch: Batch,
        cross_entropy: Callable[..., Tensor] = functional.cross_entropy,
    ) -> Tensor:
        inputs, targets = batch
        with arithmetic():
            # Logits [N, classes], or [N, T, vocabulary] of tokens.
            logits = model(inputs).flatten(0, -2)
            loss = judge(logits, targets.flatten(), cross_entropy)
        return loss if scale == 1.0 else loss * scale

    return compute_loss


def optimizer_maker(cell: Cell) -> MakeOptimizer:
    """A function that builds the cell's optimizer for given parameters."""
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    chosen: dict[str, Any] = {
        "lr": cell.learning_rate,
        "weight_decay": cell.weight_decay,
    }
    if cell.optimizer == "sgd":
        chosen["momentum"] = cell.momentum
    if cell.fused_optimizer:
        chosen["fused"] = True
    return partial(kinds[cell.optimizer], **chosen)
