"""Trains by a loop with accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
data = TensorDataset(torch.randn(4096, 20), torch.randint(10, (4096,)))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, loader, schedule
)
for epoch in range(10):
    for images, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
