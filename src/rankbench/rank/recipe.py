"""How the model of a cell is trained: its loss, its optimizer, its arithmetic."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankbench.cell import Cell
from rankbench.rank.strategies.base import Batch, ComputeLoss, MakeOptimizer


def set_precision(precision: str) -> None:
    """Let float32 be float32, unless tf32 is asked for."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def make_loss(precision: str, device: torch.device) -> ComputeLoss:
    """Cross entropy of a model on a batch, in the precision of the cell."""
    criterion = nn.CrossEntropyLoss()

    def compute_loss(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        casting = (
            torch.autocast(device.type, dtype=torch.bfloat16)
            if precision == "bf16"
            else nullcontext()
        )
        with casting:
            loss: Tensor = criterion(model(images), labels)
        return loss

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
