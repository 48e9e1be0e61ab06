"""DeepSpeed ZeRO: optimizer state, gradients and weights sharded over the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankbench.rank.strategies._weights import (
    gathered_parts,
    keep_statistics,
    make_contiguous,
)
from rankbench.rank.strategies.base import (
    Batch,
    MakeOptimizer,
    Mark,
    Operation,
    Strategy,
)

# ZeRO-3 frees gathered weights if there are more (stage3_max_live_parameters).
LIVE_WEIGHTS = 10**9


class DeepSpeed(Strategy):
    """Stage 1 shards the optimizer state, 2 also the gradients, 3 also the weights.

    With bf16 the whole model is bf16, with a float32 copy of the weights to update.

    The phase backward includes the communication, which cannot be measured apart.
    """

    needs = {
        "backends": ["gloo", "nccl"],
        "packages": ["deepspeed"],
        # DeepSpeed needs no more than a local rank, so other launchers work as well.
        "launchers": [
            "deepspeed",
            "torchrun",
            "torch_launch",
            "spawn",
            "manual",
            "mpirun",
        ],
        "precisions": ["fp32", "tf32", "bf16"],
        # Gradients are summed in bf16.
        "other_arithmetic": ["bf16"],
    }
    options = {
        "stage": {"enum": [0, 1, 2, 3], "default": 2},
        # cpu: optimizer state is kept and updated in host memory; with stage 3, the
        # weights are kept there as well.
        "offload": {"enum": ["none", "cpu"], "default": "none"},
    }
    conditions = [
        {
            "if": {"offload": {"const": "cpu"}},
            "then": {"stage": {"minimum": 1}},
            "else": "deepspeed has nothing to offload at stage 0",
        }
    ]
    on_meta = True
    casts = True
    phases = ["forward", "backward", "update"]
    # The stages keep a float32 copy of the weights, whatever the model's dtype is.
    exact_dtype = "float32"

    engine: Any

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        import deepspeed

        make_contiguous(model)
        if self.low_dtype:
            keep_statistics(model)
        # Only inference needs this operator, and compiling it takes minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # Reuse the existing process group; do not detect an MPI launcher.
        deepspeed.init_distributed(
            dist_backend=self.world.backend, auto_mpi_discovery=False
        )
        if self.chosen["stage"] == 3:
            self._partition(model)
        else:
            self.load(model, self.world.device)
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=self._choose(make_optimizer(model.parameters())),
            config=self._config(),
            dist_init_required=False,
        )
        self.optimizer = self.engine.optimizer

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        inputs, targets = batch
        if self.low_dtype and inputs.is_floating_point():
            inputs = inputs.to(self.low_dtype)
        loss = self.compute_loss(self.engine, (inputs, targets))
        mark("forward")
        self.engine.backward(loss)
        mark("backward")
        self.engine.step()
        mark("update")
        return loss.detach()

    def operations(self) -> list[Operation]:
        dtype = self.low_dtype or torch.float32
        size = self.weight_bytes * dtype.itemsize / 4
        if self.chosen["stage"] == 0:
            return [Operation("all_reduce", size, dtype)]
        if self.chosen["stage"] < 3:
            # Each rank needs only its part of the gradients, but gets all of them.
            return [
                Operation("all_reduce", size, dtype),
                Operation("all_gather", size, dtype),
            ]
        # Larger models are gathered again for backward, as far as they were freed.
        stay = self.weight_bytes / 4 <= LIVE_WEIGHTS
        return [
            Operation("all_gather", size if stay else None, dtype),
            Operation("reduce_scatter", size, dtype),
        ]

    def optimizer_state(self) -> Iterable[Any]:
        # ZeRO wraps the cell's optimizer, which then holds this rank's shard.
        own = getattr(self.optimizer, "optimizer", self.optimizer)
        return list(own.state.values())

    def state_dict(self) -> dict[str, Tensor]:
        import deepspeed

        model = self.engine.module
        gathered = (
            deepspeed.zero.GatheredParameters(list(model.parameters()))
            if self.chosen["stage"] == 3
            else nullcontext()
        )
        with gathered:
            return {name: value.clone() for name, value in model.state_dict().items()}

    def _choose(self, usual: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """DeepSpeed's own Adam in place of torch's, if the host updates the weights.

        Raises:
            RuntimeError: it could not be compiled, which happens once for a machine.
        """
        if self.chosen["offload"] == "none" or not isinstance(usual, torch.optim.Adam):
            return usual
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        given = {k: usual.defaults[k] for k in ("lr", "betas", "eps", "weight_decay")}
        weights, decays = usual.param_groups, isinstance(usual, torch.optim.AdamW)
        try:
            own = DeepSpeedCPUAdam(weights, adamw_mode=decays, **given)
        except RuntimeError as error:
            raise RuntimeError(
                f"deepspeed, offload: cpu: DeepSpeed could not compile its Adam for "
                f"CPUs: {error.__cause__}: install a C++ compiler, or take optimizer: "
                "sgd or offload: none"
            ) from error
        return cast(torch.optim.Optimizer, own)

    def _partition(self, model: nn.Module) -> None:
        """Load the parts of the model one after the other, and keep shards of each."""
        import deepspeed

        for part in (*gathered_parts(model), model):
            self.load(part, self.world.device)
            if self.low_dtype:
                part.to(self.low_dtype)
            deepspeed.zero.Init(module=part, config_dict_or_path=self._config())

    def _config(self) -> dict[str, Any]:
        # By default only stage 3 sends gradients while others are computed.
        overlap = self.world.device.type == "cuda"
        zero: dict[str, Any] = {"stage": self.chosen["stage"], "overlap_comm": overlap}
        if self.chosen["offload"] == "cpu":
            zero["offload_optimizer"] = {"device": "cpu"}
            if self.chosen["stage"] == 3:
                zero["offload_param"] = {"device": "cpu"}
        return {
            # Set both, or DeepSpeed derives the batch size from other settings.
            "train_micro_batch_size_per_gpu": self.world.rank_batch,
            "gradient_accumulation_steps": 1,
            # By default DeepSpeed clips gradients; 0 does not.
            "gradient_clipping": self.max_norm or 0.0,
            "bf16": {"enabled": self.low_dtype == torch.bfloat16},
            "zero_optimization": zero,
            # DeepSpeed has tested only its own optimizers; this one is the cell's.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }
