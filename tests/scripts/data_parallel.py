"""Trains a small network by DistributedDataParallel, as tutorials of torch do."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--backend", default="gloo")
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(640, 20), torch.randint(10, (640,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = nn.Sequential(
        nn.Linear(20, args.width), nn.ReLU(), nn.Linear(args.width, 10)
    )
    model = DistributedDataParallel(model)
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
        if os.environ["LOCAL_RANK"] == "0":
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
