"""How the model of a cell is trained: its loss, its optimizer, its arithmetic."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rankbench.cell import Cell
from rankbench.rank.strategies.base import (
    Arithmetic,
    Batch,
    ComputeLoss,
    MakeOptimizer,
)


def set_precision(precision: str) -> None:
    """Let float32 be float32, unless tf32 is asked for."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Keeps small gradients of fp16 from vanishing; passes all others through."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def prepare_model(model: nn.Module, cell: Cell) -> nn.Module:
    """The model as the cell's options want it; its names stay what they were."""
    if cell.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cell.checkpointing:
        for part in model.children():
            # What has no weights keeps little, and may work in place, which computing
            # it again from its own input does not allow.
            if any(True for _ in part.parameters()):
                # In place, so that strategies find the parts that they know.
                keep_nothing = partial(checkpoint, part.forward, use_reentrant=False)
                part.forward = keep_nothing
    return model


def memory_format_of(cell: Cell) -> torch.memory_format:
    """How images lie in memory."""
    return torch.channels_last if cell.channels_last else torch.preserve_format


def make_arithmetic(precision: str, device: torch.device) -> Arithmetic:
    """The context that a forward runs in."""
    if precision in _AUTOCAST:
        return partial(torch.autocast, device.type, dtype=_AUTOCAST[precision])
    return nullcontext


def make_loss(
    precision: str, device: torch.device, *, scale: float = 1.0
) -> ComputeLoss:
    """Cross entropy of a model on a batch, in the precision of the cell.

    Args:
        scale: what the loss is multiplied with.
    """
    criterion = nn.CrossEntropyLoss()
    arithmetic = make_arithmetic(precision, device)

    def compute_loss(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        with arithmetic():
            loss: Tensor = criterion(model(images), labels)
        return loss if scale == 1.0 else loss * scale

    return compute_loss


def optimizer_maker(cell: Cell) -> MakeOptimizer:
    """The optimizer of the cell, still without parameters."""
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
    return partial(kinds[cell.optimizer], **chosen)
