"""Overhead of images: step time and time to the first step, inside and outside.

python benchmarks/images.py wheels     gloo-cpu.sif against the same wheels in .venv
python benchmarks/images.py tree       mpi-cpu.sif against its files without Apptainer

`tree` needs bubblewrap (Debian: bubblewrap). Both need an ordinary user, an idle
machine, and the images that `snakemake images` makes in `images/`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from pairs import report

from rankbench.cell import Cell, Shape
from rankbench.launch.hosts.base import ThisMachine
from rankbench.launch.job.provenance import describe_code
from rankbench.launch.process import command
from rankbench.launch.process.supervise import run_launch
from rankbench.launch.processes import Stop
from rankbench.launch_spec import SOURCE, LaunchOptions, LaunchSpec
from rankbench.matrix.candidate import shape_of
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment

EXPERIMENT = """
name: images
strategy: ddp
backend: {backend}
topology: 1x2
model: resnet18
data: synthetic
batch_size: 8
steps: 40
warmup: 5
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("over", choices=["wheels", "tree"])
    parser.add_argument("--images", type=Path, default=Path("images"))
    parser.add_argument("--pairs", type=int, default=40, help="for steps (%(default)s)")
    parser.add_argument("--first", type=int, default=12, help="pairs for first steps")
    arguments = parser.parse_args()
    over = wheels if arguments.over == "wheels" else tree
    over(arguments.images, {"step": arguments.pairs, "first step": arguments.first})


# Without huge pages launches differ because of where their memory is: the step time of
# equal launches scattered by 8 %, with huge pages by 3 %.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def launch(spec: LaunchSpec) -> dict:
    return run_launch(spec, ThisMachine(), Stop())


def wheels(images: Path, pairs: Mapping[str, int]) -> None:
    """Compare the image gloo with the same wheels, installed natively."""
    image = (images / "gloo-cpu.sif").resolve()
    compare(
        make_spec("gloo"),
        pairs,
        {
            "SIF": lambda spec: launch(in_image(spec, image)),
            "native": launch,
        },
    )


def tree(images: Path, pairs: Mapping[str, int]) -> None:
    """Compare the image mpi, its unpacked files, and these files under bubblewrap."""
    if shutil.which("bwrap") is None:
        sys.exit("bubblewrap is not installed (Debian: bubblewrap)")
    image = (images / "mpi-cpu.sif").resolve()
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder, "tree")
        build = ["apptainer", "build", "--sandbox", str(unpacked), str(image)]
        subprocess.run(build, check=True, capture_output=True)

        def without_apptainer(spec: LaunchSpec) -> dict:
            with mock.patch.object(command, "exec_argv", enter_tree):
                return launch(in_image(spec, unpacked))

        compare(
            make_spec("mpi"),
            pairs,
            {
                "SIF": lambda spec: launch(in_image(spec, image)),
                "unpacked": lambda spec: launch(in_image(spec, unpacked)),
                "tree": without_apptainer,
            },
        )


def compare(spec: LaunchSpec, pairs: Mapping[str, int], places: dict) -> None:
    """Launch in each place in turn; report ratios to the last place."""
    for what, cell, unit in (
        ("step", spec.cell, "ms"),
        ("first step", replace(spec.cell, steps=1, warmup=0), "s"),
    ):
        if not pairs[what]:
            continue
        # The unpacked image is measured only for the time to the first step.
        compared = {p: places[p] for p in places if what != "step" or p != "unpacked"}
        found: dict[str, list[float]] = {place: [] for place in compared}
        for pair in range(pairs[what] + 1):
            for place, launch in compared.items():
                value = measure(replace(spec, cell=cell), launch, what)
                if pair:  # the first pair warms the caches
                    found[place].append(value)
        *ours, base = compared
        for place in ours:
            title = f"{what}, {place} over {base}"
            report(title, found[place], found[base], unit=unit)
            sys.stdout.flush()


def measure(spec: LaunchSpec, launch, what: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "1")
        (directory / "work").mkdir(parents=True)
        record = launch(replace(spec, directory=directory))
        if record["status"] != "ok":
            sys.exit(f"{record['reason']}\n{(directory / 'launcher.log').read_text()}")
        if what == "first step":
            # From the start of the launcher until all ranks have ended.
            return record["seconds"]["launch"]
        return 1e3 * median_step(directory / "steps.npz", len(record["ranks"]))


def median_step(path: Path, ranks: int) -> float:
    """Median step time of the slowest rank in seconds, as in the table."""
    with np.load(path, allow_pickle=False) as steps:
        of_ranks = [steps[f"rank{rank}/seconds"].sum(axis=1) for rank in range(ranks)]
    return float(np.median(np.max(of_ranks, axis=0)))


def in_image(spec: LaunchSpec, file: Path) -> LaunchSpec:
    image = {"name": file.stem, "file": str(file), "recipe": None, "sha256": None}
    return replace(spec, image=image, python="python3")


def enter_tree(spec: LaunchSpec, argv: Sequence[str]) -> list[str]:
    """Like `command.exec_argv`, but with bubblewrap.

    It sets the environment of the image explicitly.
    """
    assert spec.image is not None
    image, home = spec.image["file"], spec.home
    binds = ["--bind", image, "/", "--dev-bind", "/dev", "/dev"]
    binds += ["--proc", "/proc", "--ro-bind", "/sys", "/sys"]
    shared = tempfile.gettempdir()
    binds += ["--bind", shared, shared]
    binds += ["--ro-bind", str(SOURCE), str(SOURCE)]
    for path in (spec.directory, home):
        binds += ["--bind", str(path), str(path)]
    inside = {"PATH": "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin", "USE_LIBUV": "0"}
    settings = [f"{key}={value}" for key, value in inside.items()]
    return ["bwrap", *binds, "--chdir", str(home), "env", *settings, *argv]


def make_spec(backend: str) -> LaunchSpec:
    """A launch with two ranks, still without a directory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "images.yaml")
        path.write_text(EXPERIMENT.format(backend=backend))
        catalog = load_catalog()
        ((cell_id, cell),) = load_experiment(path, catalog, cuda=False).cells.items()
    facts = catalog.strategies[cell.strategy]
    shape: Shape = shape_of(cell, facts)
    assert isinstance(cell, Cell)
    return LaunchSpec(
        directory=Path(),
        cell=cell,
        shape=shape,
        data_dir=Path("/nonexistent"),
        threads=1,
        heartbeat_grace=60,
        options=LaunchOptions(time_limit=300),
        python=sys.executable,
        env=HUGE_PAGES,
        about={
            "experiment": "images",
            "cell_id": cell_id,
            "cell_hash": cell.hash(),
            "code": describe_code(),
        },
    )


if __name__ == "__main__":
    main()
