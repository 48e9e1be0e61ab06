"""Stages of a pipeline."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from rankbench.rank.strategies._pipeline import Stage, trace_shapes

pytestmark = pytest.mark.unit


def test_a_part_may_work_in_place_on_what_has_arrived():
    arrived = torch.tensor([-1.0, 2.0], requires_grad=True)
    stage = Stage([nn.ReLU(inplace=True), nn.Linear(2, 1)], nullcontext)
    stage(arrived).backward()
    assert arrived.tolist() == [-1, 2]
    assert arrived.grad is not None


def test_a_first_stage_without_parameters_can_go_backwards():
    sent = Stage([nn.Tanh()], nullcontext)(torch.ones(2))
    assert sent.requires_grad


def test_what_is_sent_is_contiguous():
    images = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    stage = Stage([nn.Conv2d(3, 3, 1)], nullcontext)
    stage.to(memory_format=torch.channels_last)
    assert stage(images).is_contiguous()


def test_shapes_are_those_of_the_arithmetic():
    parts = [nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softmax(-1), nn.ReLU(inplace=True)]
    low = torch.bfloat16
    arithmetic = partial(torch.autocast, "cpu", dtype=low)
    shapes = trace_shapes(parts, torch.rand(2, 4), low)
    assert [tuple(shape.shape) for shape in shapes] == [(2, 4), *[(2, 3)] * 4]
    # All that is sent is in the low precision, also what autocast keeps in float32.
    assert [shape.dtype for shape in shapes] == [torch.float32, *[low] * 4]
    assert all(shape.is_meta for shape in shapes)
    x = torch.rand(2, 4)
    for part, shape in zip(parts, shapes[1:], strict=True):
        x = Stage([part], arithmetic, low)(x)
        assert x.dtype == shape.dtype
    # Only the stages count batches; the tracing must not.
    assert parts[1].num_batches_tracked == 1
