"""Trains a language model on its own source, with accumulation and checkpoints."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

batch_size, block, width, heads = 4, 32, 32, 4
accumulation, iterations, evaluate_every, clip = 2, 1000, 10, 1.0
exec(open("configure.py").read())  # noqa: S102, SIM115

dist.init_process_group("gloo")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(rank)
with open(__file__, "rb") as file:
    text = torch.tensor(list(file.read()))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(block, width)
        self.layer = nn.TransformerEncoderLayer(width, heads, 4 * width)
        self.head = nn.Linear(width, 256)
        self.mask = nn.Transformer.generate_square_subsequent_mask(block)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places.weight
        x = self.layer(x.transpose(0, 1), self.mask).transpose(0, 1)
        scores = self.head(x)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        return scores, loss


def next_batch():
    starts = torch.randint(len(text) - block - 1, (batch_size,))
    windows = torch.stack([text[start : start + block + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def evaluate(model):
    model.eval()
    loss = sum(model(*next_batch())[1].item() for _ in range(3)) / 3
    model.train()
    return loss


raw = LanguageModel()
model = DistributedDataParallel(raw)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
tokens, targets = next_batch()
for iteration in range(iterations):
    if iteration % evaluate_every == 0 and rank == 0:
        print(f"iteration {iteration}: loss {evaluate(raw):.3f}", flush=True)
        kept = {"model": raw.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(kept, "checkpoint.pt")
    for part in range(accumulation):
        is_last = part == accumulation - 1
        with nullcontext() if is_last else model.no_sync():
            _, loss = model(tokens, targets)
            tokens, targets = next_batch()
            scaler.scale(loss / accumulation).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
