"""DeepSpeed: optimizer state, gradients and weights split over ranks, by its stages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from rankbench.rank.strategies.base import Batch, MakeOptimizer, Mark, Strategy


class DeepSpeed(Strategy):
    """Stage 1 splits the optimizer's state, 2 the gradients too, 3 the weights too.

    Its backward contains the communication, which cannot be told from it.
    """

    needs = {
        "backends": ["gloo", "nccl"],
        "packages": ["deepspeed"],
        # It asks for nothing but a local rank, so others start it as well.
        "launchers": [
            "deepspeed",
            "torchrun",
            "torch_launch",
            "spawn",
            "manual",
            "mpirun",
        ],
        "precisions": ["fp32", "tf32"],
    }
    options = {
        "stage": {"enum": [0, 1, 2, 3], "default": 2},
        # Where the optimizer's state lies and is updated; with stage 3 weights too.
        "offload": {"enum": ["none", "cpu"], "default": "none"},
    }
    conditions = [
        {
            "if": {"offload": {"const": "cpu"}},
            "then": {"stage": {"minimum": 1}},
            "else": "deepspeed has nothing to offload at stage 0",
        }
    ]
    operations = {"reduce_scatter": 1, "all_gather": 1}
    phases = ["forward", "backward", "update"]
    # The stages keep a copy of the weights in float32, whatever the model has.
    exact_dtype = "float32"

    engine: Any

    def setup(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        import deepspeed

        # Compiled at its first use, for minutes, and only inference calls it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # Takes the process group that is there, and looks for no launcher of its own.
        deepspeed.init_distributed(
            dist_backend=self.world.backend, auto_mpi_discovery=False
        )
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=make_optimizer(model.parameters()),
            config=self._config(),
            dist_init_required=False,
        )
        self.optimizer = self.engine.optimizer

    def compile(self) -> None:
        self.engine.compile()

    def step(self, batch: Batch, mark: Mark) -> Tensor:
        loss = self.compute_loss(self.engine, batch)
        mark("forward")
        self.engine.backward(loss)
        mark("backward")
        self.engine.step()
        mark("update")
        return loss.detach()

    def optimizer_state(self) -> Iterable[Any]:
        # A stage wraps the optimizer of the cell, which then has this rank's part.
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

    def _config(self) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": self.chosen["stage"]}
        if self.chosen["offload"] == "cpu":
            zero["offload_optimizer"] = {"device": "cpu"}
            if self.chosen["stage"] == 3:
                zero["offload_param"] = {"device": "cpu"}
        return {
            # Else DeepSpeed derives one size from others, and a batch means less.
            "train_micro_batch_size_per_gpu": self.world.rank_batch,
            "gradient_accumulation_steps": 1,
            # By default it clips them.
            "gradient_clipping": 0.0,
            "zero_optimization": zero,
            # The optimizer is the cell's, not one of DeepSpeed's own.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }
