"""Trains without an optimizer of torch, and marks its steps."""

import sys

import torch
import torch.distributed as dist

from rankbench import hooks

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
weights = torch.zeros(8, requires_grad=True)
truth = torch.arange(8.0)
for step in range(int(sys.argv[1])):
    samples = 16 + step % 2
    inputs = torch.randn(samples, 8)
    loss = (inputs @ (weights - truth)).square().mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    dist.all_reduce(gradient)
    with torch.no_grad():
        weights -= 0.05 * gradient / dist.get_world_size()
    hooks.step(loss=loss, samples=samples)
dist.destroy_process_group()
