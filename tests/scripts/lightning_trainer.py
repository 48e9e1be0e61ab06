"""Trains by lightning.Trainer, which computes within the step of the optimizer."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankbench.rank.torchvision_ops import import_torchvision

import_torchvision()  # Without its operators torchmetrics cannot be imported.
import lightning  # noqa: E402


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, number):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.randn(2048, 20), torch.randint(10, (2048,)))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=10,
    limit_val_batches=2,
    enable_progress_bar=False,
    logger=False,
)
loader = DataLoader(data, batch_size=16)
trainer.fit(Classifier(), loader, loader)
