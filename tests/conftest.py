"""What all tests share: their order, `--require`, copies of the project to run in."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pretend_host import wait_until

from rankbench.cli import main
from rankbench.launch.hosts.base import take_lock

ROOT = Path(__file__).resolve().parents[1]
USER = "rankbench"
# The name of the lock of a machine, in copies of the project; each worker has its own.
MACHINE_LOCK = (
    f"{{socket.gethostname()}}{os.environ.get('PYTEST_XDIST_WORKER', '')}.lock"
)
# The order of tests, from quick to slow.
KINDS = ("unit", "contract", "integration", "cluster")


# The model imports a local file. The data set has what LeNet needs.
OWN_FILES = {
    "net.py": """
from layers import classifier

NEEDS = {"sequential": True}

def build(channels, image_size, classes):
    return classifier(channels * image_size**2, classes)
""",
    "layers.py": """
from torch import nn

def classifier(pixels, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 64), nn.Linear(64, classes))
""",
    "corpus.py": """
import numpy as np
from rankbench.rank.data import Arrays

SHAPE = {"channels": 1, "image_size": 28, "classes": 10, "train": 1024, "test": 64}

def generate(seed):
    random = np.random.default_rng(seed)
    shapes = {"train": 1024, "test": 64}
    return Arrays(**{
        name: array
        for part, n in shapes.items()
        for name, array in {
            f"{part}_images": random.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8),
            f"{part}_labels": random.integers(0, 10, n),
        }.items()
    })
""",
}

# Modules and thousands of tests are no garbage: nobody looks for it in them.
gc.disable()

# In the background of a shell, SIGINT is ignored, and what a test starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        choices=["all"],
        help="all: a test that would be skipped fails instead",
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """What is quick comes first, so that what is simple fails soon.

    Of several workers, what is quick comes last, so that all end at the same time.
    """

    def place(item: pytest.Item) -> int:
        found = [item.get_closest_marker(kind) is not None for kind in KINDS]
        return [*found, True].index(True)

    items.sort(key=place, reverse=hasattr(config, "workerinput"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if (
        report.skipped
        and item.config.getoption("require")
        and not hasattr(report, "wasxfail")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, but everything is required: {report.longrepr[2]}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    if report.skipped and collector.config.getoption("require"):
        report.outcome = "failed"
    return report


@dataclass
class Project:
    """A copy of the project in which tests run Snakemake and rankbench."""

    root: Path
    # The command that runs another command as a different user.
    user: list[str] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        # The copy's own package comes before the installed one.
        return {**os.environ, "PYTHONPATH": str(self.root / "src")}

    def experiment(self, text: str, name: str = "experiment.yaml") -> None:
        (self.root / name).write_text(text)

    def add_own_files(self) -> None:
        """Write a model and a data set of the user's own beside the experiment."""
        for name, text in OWN_FILES.items():
            (self.root / name).write_text(text)

    def add_strategy(self, name: str, source: str) -> None:
        (self.root / f"src/rankbench/rank/strategies/{name}.py").write_text(source)

    def argv(self, *config: str, flags: tuple[str, ...] = ()) -> list[str]:
        command = [sys.executable, "-P", "-m", "snakemake"]
        given = config if config else ("experiment=experiment.yaml",)
        # Plots take as long as everything else around a launch, so only tests that look
        # at them draw them.
        if not any(word.startswith("plots=") for word in given):
            given = (*given, "plots=false")
        profile = ("--profile", "local_profile")
        return [*command, *profile, *flags, "--config", *given]

    def snakemake(
        self, *config: str, flags: tuple[str, ...] = (), timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; by default with `experiment.yaml`."""
        return self.run(self.argv(*config, flags=flags), timeout=timeout)

    def measure(self, text: str, *, plots: bool = False) -> None:
        """Run an experiment with this text to its end."""
        self.experiment(text)
        done = self.snakemake("experiment=experiment.yaml", f"plots={plots}")
        assert done.returncode == 0, done.stdout

    def start(self, *config: str) -> subprocess.Popen[str]:
        """Start Snakemake."""
        return self.popen(self.argv(*config))

    def popen(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a command, in a process group of its own as a shell would."""
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def rankbench(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-P", "-m", "rankbench.cli", *arguments])

    def run(
        self, command: list[str], *, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.user, *command],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def processes(self, word: str | None = None) -> list[psutil.Process]:
        """Living processes that run this copy, whoever their parent is now.

        word: one of their command; None: any.
        """
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.pid != os.getpid()
                    and process.status() != psutil.STATUS_ZOMBIE
                    and process.cwd() == str(self.root)
                    and word in (None, *process.cmdline())
                ):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def wait_until_gone(self) -> None:
        """No process of this copy is left."""
        wait_until(lambda: not self.processes(), lambda: f"gone: {self.processes()}")

    def kill_everything(self) -> None:
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run rankbench in this process, with this exit status; what it said."""

    def run(*words: object, status: int = 0) -> Any:
        capsys.readouterr()
        found = main([*map(str, words)])
        said = capsys.readouterr()
        assert found == status, said
        return said

    return run


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared digits, made once."""
    root = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "rankbench.rank.data.prepare", "digits"]
    subprocess.run([*command, "--root", str(root)], check=True, capture_output=True)
    return root / "digits.npz"


def edit(file: Path, pattern: str, replacement: str) -> None:
    """Replace what is there exactly once."""
    text, count = re.subn(pattern, replacement, file.read_text())
    assert count == 1, file
    file.write_text(text)


def copy_project(destination: Path) -> Project:
    for name in ("Snakefile", "config.yaml", "CITATION.cff"):
        shutil.copy(ROOT / name, destination / name)
    profiles = [path.name for path in ROOT.glob("*_profile")]
    for name in ("src", "workflow", "containers", "studies", *profiles):
        shutil.copytree(
            ROOT / name,
            destination / name,
            # The package's assets are links to the folders beside it.
            symlinks=True,
            # Compiled files are copied, because thousands of processes need not compile
            # again; not those that another process writes at the moment.
            ignore=shutil.ignore_patterns("*.egg-info", "*.pyc.*"),
        )
    # Tests disturb one another, so whether a launch were repeated would be chance.
    edit(
        destination / "workflow/schemas/experiment.schema.yaml",
        r"(?<=\n  repeat_disturbed:\n)((?:    .*\n)*?    default: )true",
        r"\1false",
    )
    # Launches of two workers need not take turns: no test here looks at durations.
    hosts = destination / "src/rankbench/launch/hosts/base.py"
    edit(hosts, r"\{socket\.gethostname\(\)\}\.lock", MACHINE_LOCK)
    return Project(destination.resolve())


@pytest.fixture
def project(tmp_path: Path, digits_file: Path) -> Iterator[Project]:
    yield from with_data(tmp_path, digits_file)


@pytest.fixture(scope="module")
def shared_project(
    tmp_path_factory: pytest.TempPathFactory, digits_file: Path
) -> Iterator[Project]:
    """One in which something is run once, for the tests of a module to look at."""
    yield from with_data(tmp_path_factory.mktemp("shared"), digits_file)


def with_data(root: Path, digits_file: Path) -> Iterator[Project]:
    """A project with digits, which ends what it has started."""
    copy = copy_project(root)
    (root / "data").mkdir()
    shutil.copy(digits_file, root / "data/digits.npz")
    try:
        yield copy
    finally:
        copy.kill_everything()


def find_images(*names: str) -> Path:
    """Folder of images that are built; skips the test where one of them is not.

    One that is being built meanwhile is waited for.
    """
    if not shutil.which("apptainer"):
        pytest.skip("no apptainer: bash tests/machine/install_apptainer.sh")
    folder = Path(os.environ.get("RANKBENCH_IMAGES", ROOT / "images")).resolve()
    for name in names:
        building = folder / f".locks/{name}.lock"
        if os.access(building, os.W_OK):
            lock = take_lock(building, wait=True)
            assert lock is not None
            lock.close()
        if not (folder / f"{name}.json").exists():
            pytest.skip(
                f"no {name} in {folder} (RANKBENCH_IMAGES names another): "
                f"python -m rankbench.launch.images {name}"
            )
    return folder


@pytest.fixture(scope="session")
def ordinary_user() -> list[str]:
    """What stands before a command that an ordinary user is to run.

    Root stands aside for the user of tests/machine/add_user.sh: users of clusters are
    not root, and Apptainer builds for them.
    """
    if os.getuid() != 0:
        return []
    prefix = ["runuser", "-u", USER, "--"]
    for command in (["true"], [sys.executable, "-c", "import rankbench"]):
        done = subprocess.run([*prefix, *command], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{done.stderr.strip()}: bash tests/machine/add_user.sh")
    return prefix


@pytest.fixture(scope="session")
def open_tmp() -> Iterator[Path]:
    """A folder that the ordinary user may write to: pytest's own are its owner's."""
    with tempfile.TemporaryDirectory(prefix="rankbench-test-") as name:
        Path(name).chmod(0o1777)
        yield Path(name)
