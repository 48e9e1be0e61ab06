"""Data sets, the prepared file, and the preparation of a sample."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from rankbench.rank import data
from rankbench.rank.data import Arrays, DataError, read_arrays, write_arrays
from rankbench.rank.data.prepare import main, prepare
from rankbench.rank.torchvision_ops import import_torchvision

pytestmark = pytest.mark.unit


def noise(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), np.uint8)


def small(channels: int, image_size: int) -> Arrays:
    return Arrays(
        train_images=noise(20, channels, image_size, image_size),
        train_labels=np.arange(20) % 10,
        test_images=noise(10, channels, image_size, image_size),
        test_labels=np.arange(10),
    )


@pytest.fixture(scope="module")
def digits_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    assert main(["digits", "--root", str(root)]) == 0
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Small files of the right shape under the names of real data sets."""
    write_arrays(data.path("mnist", tmp_path), small(1, 28))
    write_arrays(data.path("cifar10", tmp_path), small(3, 32))
    return tmp_path


def check_same(name: str, root: Path, arrays: Arrays) -> None:
    """What is loaded is what these arrays hold."""
    train, test, classes = data.load(name, root)
    assert classes == 10
    assert np.array_equal(train.images, arrays.train_images)
    assert np.array_equal(test.images, arrays.test_images)
    assert train.labels == arrays.train_labels.tolist()
    assert test.labels == arrays.test_labels.tolist()


# Digits

# Of all images, as scikit-learn's copy of the digits gives them.
DIGITS = "a695d26c70045505b8dc99fe218e8837124409b42761c207b0c132418df833bf"


def test_digits_split(digits_root):
    train, test, classes = data.load("digits", digits_root)
    assert (len(train), len(test), classes) == (1437, 360, 10)
    digest = hashlib.sha256(np.concatenate([train.images, test.images]).tobytes())
    assert digest.hexdigest() == DIGITS
    assert train.images.min() == 0
    assert train.images.max() > 240
    images = [{image.numpy().tobytes() for image in s.images} for s in (train, test)]
    assert not images[0] & images[1]
    for label in range(10):
        share = test.labels.count(label) / train.labels.count(label)
        assert share == pytest.approx(0.25, abs=0.01)


# Synthetic


def test_synthetic_can_be_learnt(tmp_path):
    train, test, classes = data.load("synthetic", tmp_path)
    labels = torch.tensor(train.labels)
    images = train.images.float()
    centres = torch.stack([images[labels == k].mean(0) for k in range(classes)])
    distances = torch.cdist(test.images.float().flatten(1), centres.flatten(1))
    assert distances.argmin(1).tolist() == test.labels


# MNIST, in its real format


def write_mnist(folder: Path, arrays: Arrays, *, packed: bool) -> None:
    folder.mkdir(parents=True)
    parts = {
        "train-images-idx3-ubyte": arrays.train_images[:, 0],
        "train-labels-idx1-ubyte": arrays.train_labels.astype(np.uint8),
        "t10k-images-idx3-ubyte": arrays.test_images[:, 0],
        "t10k-labels-idx1-ubyte": arrays.test_labels.astype(np.uint8),
    }
    for name, array in parts.items():
        header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
        content = header + array.tobytes()
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(tmp_path, packed, capsys):
    arrays, folder = small(1, 28), tmp_path / "raw/mnist/MNIST/raw"
    write_mnist(folder, arrays, packed=packed)
    file = folder / f"t10k-images-idx3-ubyte{'.gz' if packed else ''}"
    good = file.read_bytes()
    file.write_bytes(good[:-100])
    assert main(["mnist", "--root", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert str(folder) in message
    assert file.name in message
    assert not data.path("mnist", tmp_path).exists()
    file.write_bytes(good)
    assert main(["mnist", "--root", str(tmp_path)]) == 0
    check_same("mnist", tmp_path, arrays)


def test_mnist_of_another_size(tmp_path):
    write_mnist(tmp_path / "raw/mnist/MNIST/raw", small(1, 20), packed=True)
    with pytest.raises(DataError, match=r"contain mnist: .*20, 20\].*1, 28, 28"):
        prepare("mnist", tmp_path)


# CIFAR-10, in its real format


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small batches whose checksums torchvision accepts; gives their folder."""
    arrays = small(3, 32)
    folder = tmp_path / "raw/cifar10/cifar-10-batches-py"
    folder.mkdir(parents=True)
    real = import_torchvision().datasets.CIFAR10

    def write(name: str, content: dict[str, object]) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        digest = hashlib.md5((folder / name).read_bytes(), usedforsecurity=False)
        return digest.hexdigest()

    def batch(images: np.ndarray, labels: np.ndarray) -> dict[str, object]:
        return {"data": images.reshape(len(images), -1), "labels": labels.tolist()}

    lists: dict[str, list[list[str]]] = {"train_list": [], "test_list": []}
    for index, (name, _) in enumerate(real.train_list):
        part = slice(4 * index, 4 * index + 4)
        content = batch(arrays.train_images[part], arrays.train_labels[part])
        lists["train_list"].append([name, write(name, content)])
    for name, _ in real.test_list:
        content = batch(arrays.test_images, arrays.test_labels)
        lists["test_list"].append([name, write(name, content)])
    names: dict[str, object] = {"label_names": [str(label) for label in range(10)]}
    meta = {**real.meta, "md5": write(real.meta["filename"], names)}
    monkeypatch.setattr(real, "train_list", lists["train_list"])
    monkeypatch.setattr(real, "test_list", lists["test_list"])
    monkeypatch.setattr(real, "meta", meta)
    return folder


def test_cifar10_is_unpickled_unless_it_is_damaged(tmp_path, cifar, capsys):
    assert main(["cifar10", "--root", str(tmp_path)]) == 0
    check_same("cifar10", tmp_path, small(3, 32))
    with (cifar / "data_batch_2").open("ab") as file:
        file.write(b"x")
    data.path("cifar10", tmp_path).unlink()
    assert main(["cifar10", "--root", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    for word in (str(cifar), "corrupted", "cifar-10-python.tar.gz"):
        assert word in message


# The machine has no network.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", "MNIST/raw/t10k-labels-idx1-ubyte.gz"),
        ("cifar10", "cifar-10-batches-py/data_batch_5"),
    ],
)
def test_missing_originals(tmp_path, name, expected, capsys, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert main([name, "--root", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    folder, file = expected.rsplit("/", 1)
    for word in (str(tmp_path / "raw" / name / folder), file, "run --prepare`"):
        assert word in message


# The command


def test_generated_data_need_no_file(tmp_path):
    assert main(["synthetic", "--root", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())


def test_only_a_damaged_file_is_written_again(digits_root, tmp_path):
    file, sound = data.path("digits", tmp_path), data.path("digits", digits_root)
    file.write_bytes(sound.read_bytes())
    before = file.stat().st_mtime_ns
    assert main(["digits", "--root", str(tmp_path)]) == 0
    assert file.stat().st_mtime_ns == before
    file.write_bytes(b"not a zip")
    assert main(["digits", "--root", str(tmp_path)]) == 0
    assert file.read_bytes() == sound.read_bytes()


# The file that `prepare` writes.


def test_damage_is_found_wherever_it_is(tmp_path):
    shape = {"channels": 1, "image_size": 2, "classes": 10}
    file = tmp_path / "small.npz"
    arrays = small(1, 2)
    write_arrays(file, arrays)
    sound = file.read_bytes()
    found = 0
    for place in range(0, len(sound), 3):
        damaged = bytearray(sound)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        try:
            read = read_arrays(file, shape)
        except DataError as error:
            assert "is damaged" in str(error)  # noqa: PT017 - not every byte matters
            found += 1
        else:
            for name in Arrays.__slots__:
                assert np.array_equal(getattr(read, name), getattr(arrays, name))
    assert found > len(sound) / 6


def test_unreadable_file(tmp_path):
    file = data.path("mnist", tmp_path)
    file.write_bytes(b"")
    with pytest.raises(DataError, match=r"mnist\.npz is damaged: .*run --prepare"):
        data.load("mnist", tmp_path)
    file.unlink()
    file.mkdir()
    file.with_name("no_folder").touch()
    for folder in (tmp_path, file.with_name("no_folder")):
        with pytest.raises(DataError, match=r"mnist\.npz cannot be opened"):
            data.load("mnist", folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"train_images": noise(20, 1, 28, 27)}, "train has images"),
        ({"test_images": noise(10, 3, 28, 28)}, "test has images"),
        ({"train_labels": np.arange(19) % 10}, "train has images"),
        ({"train_labels": np.zeros((20, 1), np.int64)}, "train has images"),
        ({"train_labels": np.arange(20)}, r"labels 0\.\.19, not 0\.\.9"),
        ({"test_labels": np.arange(-1, 9)}, r"labels -1\.\.8"),
        ({"test_labels": np.arange(10, dtype=np.int32)}, "labels of int32"),
        ({"train_images": np.ones((20, 1, 28, 28))}, "images of float64"),
        ({"train_labels": np.array([None] * 20)}, "pickle"),
        ({"test_images": noise(0, 1, 28, 28), "test_labels": np.arange(0)}, "test has"),
        ({"train_labels": None}, "train_labels"),
    ],
)
def test_wrong_content(tmp_path, change, problem):
    arrays = small(1, 28)
    members = {name: getattr(arrays, name) for name in Arrays.__slots__} | change
    kept = {name: array for name, array in members.items() if array is not None}
    np.savez(data.path("mnist", tmp_path), **kept)
    with pytest.raises(DataError, match=f"is damaged: .*{problem}"):
        data.load("mnist", tmp_path)


# Samples


def test_one_channel_becomes_three(root):
    one, three = (data.load("mnist", root, channels=c)[0] for c in (1, 3))
    assert torch.equal(three[4][0], one[4][0].expand(3, -1, -1))


def test_three_channels_become_one(root):
    train, test, _ = data.load("cifar10", root, channels=1)
    means = small(3, 32).train_images.mean(1, keepdims=True)
    assert np.array_equal(train.images, means.round())
    assert test[0][0].shape == (1, 32, 32)
    with pytest.raises(ValueError, match="convert 3 channels to 2"):
        data.load("cifar10", root, channels=2)


def test_test_images_use_the_moments_of_training(root):
    arrays = small(3, 32)
    _, test, _ = data.load("cifar10", root)
    mean = arrays.train_images.mean((0, 2, 3))[:, None, None]
    std = arrays.train_images.std((0, 2, 3))[:, None, None]
    expected = (arrays.test_images[3] - mean) / std
    assert np.allclose(test[3][0], expected, atol=1e-5)


def test_images_without_contrast_stay_finite(tmp_path):
    arrays = small(1, 28)
    arrays.train_images[:] = 9
    write_arrays(data.path("mnist", tmp_path), arrays)
    assert data.load("mnist", tmp_path)[0][0][0].abs().max() < 1e-5


@pytest.mark.parametrize("channels", [1, 3])
def test_resized_once_or_one_by_one(root, channels, monkeypatch):
    def load() -> data.Images:
        return data.load("cifar10", root, channels=channels, image_size=57)[0]

    once = load()
    monkeypatch.setattr(data, "RESIZED_MAX_BYTES", 0)
    one_by_one = load()
    assert once.images.shape[-1] == 57
    assert one_by_one.images.shape[-1] == 32
    for index in range(len(once)):
        assert torch.equal(once[index][0], one_by_one[index][0])


def test_affine_is_random_and_for_training_only(root):
    plain, _, _ = data.load("mnist", root)
    train, test, _ = data.load("mnist", root, augment="affine")
    torch.manual_seed(1)
    first, second = train[0][0], train[0][0]
    torch.manual_seed(1)
    assert torch.equal(first, train[0][0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, plain[0][0])
    assert torch.equal(test[0][0], test[0][0])


def test_affine_comes_before_normalisation(tmp_path):
    arrays = small(1, 28)
    arrays.train_images[:] = np.arange(20, 40)[:, None, None, None]
    write_arrays(data.path("mnist", tmp_path), arrays)
    plain, _, _ = data.load("mnist", tmp_path)
    train, _, _ = data.load("mnist", tmp_path, augment="affine")
    black = float(plain[0][0].min()) - 20 / float(np.std(np.arange(20, 40)))
    # Pixels that a shift moves in from outside are black, not grey.
    values = torch.cat([train[0][0].flatten() for _ in range(5)])
    assert values.min() == pytest.approx(black, abs=1e-4)


def test_workers_need_not_be_forked(root):
    train, _, _ = data.load("mnist", root, augment="affine")
    assert train[0]
    # On some machines a process that is spawned cannot import torchvision.
    assert b"torchvision.transforms" not in pickle.dumps(train)


def test_loader_with_workers(root):
    train, _, _ = data.load("mnist", root)
    alone, helped = (
        list(DataLoader(train, batch_size=8, num_workers=workers)) for workers in (0, 1)
    )
    for (images, labels), (images_2, labels_2) in zip(alone, helped, strict=True):
        assert torch.equal(images, images_2)
        assert torch.equal(labels, labels_2)
