"""Fine-tunes a tiny language model by transformers.Trainer."""

import sys

import torch
from torch.utils.data import Dataset

from rankbench.rank.torchvision_ops import import_torchvision

import_torchvision()  # Without its operators transformers cannot import its models.
from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)


class Tokens(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(64, (16,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, loss_type=None
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=int(sys.argv[1]),
    max_steps=200,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
    logging_steps=5,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens()).train()
