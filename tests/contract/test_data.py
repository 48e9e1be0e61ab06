"""What holds for every data set: each file of `rank/data` is tested by being there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankbench.matrix.declarations import literals
from rankbench.own_files import imports_of
from rankbench.rank import data, variants
from rankbench.rank.data import Arrays, DataError, write_arrays

pytestmark = pytest.mark.contract


def path_of(name: str) -> Path:
    return Path(data.__file__).parent / f"{name}.py"


def literal(name: str, constant: str) -> Any:
    """A constant, read as the plan does: without importing the file."""
    return literals(path_of(name))[constant]


def of_tokens(name: str) -> bool:
    return "vocabulary" in literal(name, "SHAPE")


every = pytest.mark.parametrize("name", variants.names("data"))
every_of_images = pytest.mark.parametrize(
    "name", [name for name in variants.names("data") if not of_tokens(name)]
)
every_of_tokens = pytest.mark.parametrize(
    "name", [name for name in variants.names("data") if of_tokens(name)]
)
every_prepared = pytest.mark.parametrize(
    "name", [name for name in variants.names("data") if literal(name, "PREPARED")]
)


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    """A folder with a small prepared file, if the data set reads one."""
    if literal(name, "PREPARED"):
        shape = literal(name, "SHAPE")
        classes, side = shape["classes"], shape["image_size"]
        rng = np.random.default_rng(0)

        def images(count: int) -> np.ndarray:
            size = (count, shape["channels"], side, side)
            return rng.integers(0, 256, size, np.uint8)

        arrays = Arrays(
            train_images=images(3 * classes),
            train_labels=np.arange(3 * classes) % classes,
            test_images=images(classes),
            test_labels=np.arange(classes),
        )
        write_arrays(data.path(name, tmp_path), arrays)
    return tmp_path


@every
def test_declares_shape(name):
    shape = literal(name, "SHAPE")
    tokens, images = {"vocabulary", "context"}, {"channels", "image_size", "classes"}
    sizes = tokens if of_tokens(name) else images
    assert shape.keys() - {"longest_context"} == sizes | {"train", "test"}
    assert all(isinstance(value, int) and value > 0 for value in shape.values())
    assert isinstance(literal(name, "PREPARED"), bool)


@every
def test_imports_nothing_heavy(name):
    assert imports_of({f"{name}.py": path_of(name)}) <= {"torch", "numpy", "rankbench"}


@every_of_images
@pytest.mark.parametrize(("channels", "image_size"), [(None, None), (1, 32), (3, 32)])
@pytest.mark.parametrize("augment", ["none", "affine"])
def test_samples(name, root, channels, image_size, augment):
    shape = literal(name, "SHAPE")
    train, test, classes = data.load(
        name, root, channels=channels, image_size=image_size, augment=augment, seed=0
    )
    side = image_size or shape["image_size"]
    assert classes == shape["classes"]
    for samples in (train, test):
        assert samples.sample_shape == (channels or shape["channels"], side, side)
        for index in (0, len(samples) - 1):
            image, label = samples[index]
            assert image.shape == samples.sample_shape
            assert image.dtype == torch.float32
            assert image.is_contiguous()
            assert type(label) is int
        assert set(samples.labels) == set(range(classes))


@every_of_tokens
@pytest.mark.parametrize("context", [None, 5])
def test_sequences(name, root, context):
    shape = literal(name, "SHAPE")
    train, test, vocabulary = data.load(name, root, context=context, seed=3)
    assert vocabulary == shape["vocabulary"]
    again, other = (data.load(name, root, context=context, seed=s)[0] for s in (3, 4))
    for samples, count in ((train, shape["train"]), (test, shape["test"])):
        assert len(samples) == count
        for index in (0, count - 1):
            ids, following = samples[index]
            assert ids.shape == following.shape == (context or shape["context"],)
            assert ids.dtype == following.dtype == torch.int64
            assert torch.equal(ids[1:], following[:-1])
            assert 0 <= int(ids.min()) <= int(ids.max()) < vocabulary
    assert torch.equal(train[1][0], again[1][0])
    assert not torch.equal(train[1][0], other[1][0])


@every_of_images
def test_two_loads_are_equal(name, root):
    (train, test, _), (train_2, test_2, _) = (data.load(name, root) for _ in range(2))
    for first, second in ((train, train_2), (test, test_2)):
        assert len(first) == len(second)
        assert first.labels == second.labels
        assert torch.equal(first.images, second.images)
        assert torch.equal(first[1][0], second[1][0])


@every_prepared
def test_missing_file_says_what_to_do(name, tmp_path):
    with pytest.raises(DataError, match=rf"{name}\.npz is missing.*run --prepare"):
        data.load(name, tmp_path)
