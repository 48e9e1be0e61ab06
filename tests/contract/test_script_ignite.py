"""An example of pytorch-ignite, from its source package, measured on two ranks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from scripts_ranks import RANKS, run_script
from test_scripts import PHASES, check

pytestmark = [pytest.mark.contract, pytest.mark.equipment]

# The source package has the examples; the example imports the others.
EXAMPLES = "pytorch-ignite==0.5.5"
IMPORTS = ["fire==0.7.1", "protobuf==6.33.0", "tensorboardX==2.6.4"]
IMPORTS += ["termcolor==3.2.0"]
# Without a network there are random images. A torchvision that pip has installed beside
# a CPU build of torch cannot be imported as it is.
START = """\
import runpy, sys
sys.path.append({libraries!r})
from rankbench.rank.torchvision_ops import import_torchvision
import_torchvision()
from torchvision import datasets
class Images(datasets.FakeData):
    def __init__(self, root, train, download, transform):
        super().__init__(512, (3, 32, 32), transform=transform)
datasets.CIFAR10 = Images
runpy.run_path("main.py", run_name="__main__")
"""


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    subprocess.run([*command, "-q", "--no-deps"], check=True)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The folder of the example for CIFAR-10, with a start.py beside its main.py."""
    pip("download", "--no-binary=:all:", "--dest", str(tmp_path), EXAMPLES)
    (package,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path, filter="data")
    libraries = Path(str(package).removesuffix(".tar.gz"))
    pip("install", "--target", str(libraries), *IMPORTS)
    shutil.copytree(libraries / "examples/cifar10", tmp_path / "own")
    text = START.format(libraries=str(libraries))
    (tmp_path / "own/start.py").write_text(text)
    return tmp_path / "own"


def test_residual_network_with_evaluation_and_checkpoints(example, tmp_path):
    settings = {
        "backend": "gloo",
        "batch_size": 2 * RANKS,
        "num_workers": 0,
        "output_path": tmp_path / "output",
        "data_path": tmp_path,
        "log_every_iters": 2,
    }
    words = [f"--{key}={value}" for key, value in settings.items()]
    launch = run_script(tmp_path / "launch", example / "start.py", "run", *words)
    check(launch, PHASES)
    assert launch.record["model"]["parameters"] == 11_181_642
