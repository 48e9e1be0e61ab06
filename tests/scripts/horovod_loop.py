"""Trains by Horovod's DistributedOptimizer."""

import horovod.torch as hvd
import torch
from torch import nn

hvd.init()
torch.manual_seed(hvd.rank())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
for step in range(200):
    images, labels = torch.randn(16, 20), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    if step % 4 == 0 and hvd.rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}")
