"""Trains by the engine of DeepSpeed; the argument is the stage of ZeRO."""

import sys

import deepspeed
import torch
from torch import nn

# Only inference needs this operator, and compiling it takes minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
settings = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    # Parts of this size step one by one.
    "zero_optimization": {"stage": int(sys.argv[1]), "sub_group_size": 300},
}
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=settings
)
for _ in range(400):
    images, labels = torch.randn(16, 20), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(engine(images), labels)
    engine.backward(loss)
    engine.step()
    print(f"step {engine.global_steps}", flush=True)
