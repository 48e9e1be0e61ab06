"""What an image costs: step time and time to the first step, in it and outside of it.

python benchmarks/images.py wheels     gloo-cpu.sif over the same wheels in .venv
python benchmarks/images.py tree       mpi-cpu.sif over its root tree, without Apptainer

`tree` needs bubblewrap (Debian: bubblewrap). Both want images in `images/`, of
`snakemake images`, and a quiet machine; start them as an ordinary user.
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
from typing import Any
from unittest import mock

import numpy as np
from pairs import report

from rankbench.cell import Cell, Shape
from rankbench.launch.cell.provenance import describe_code
from rankbench.launch.process import command, container
from rankbench.launch.process.environment import library_variables
from rankbench.launch.process.signs import Stop
from rankbench.launch.process.supervise import Task, run_launch
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.experiment import load_experiment
from rankbench.matrix.shape import shape_of

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
    parser.add_argument("--pairs", type=int, default=40, help="of steps (%(default)s)")
    parser.add_argument("--first", type=int, default=12, help="of first steps")
    arguments = parser.parse_args()
    over = wheels if arguments.over == "wheels" else tree
    with mock.patch.object(command, "library_variables", variables):
        over(arguments.images, {"step": arguments.pairs, "first step": arguments.first})


def variables(cell: Cell) -> dict[str, str]:
    """Large pages for both: else launches differ by where their memory happens to lie.

    With small ones the step time of equal launches scattered by 8 %, with these by 3 %.
    """
    return {**library_variables(cell), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def wheels(images: Path, pairs: Mapping[str, int]) -> None:
    """In the image of gloo, and natively with the wheels that it was built from."""
    image = (images / "gloo-cpu.sif").resolve()
    compare(
        make_task("gloo"),
        pairs,
        {
            "SIF": lambda task: run_launch(in_image(task, image), Stop()),
            "native": lambda task: run_launch(task, Stop()),
        },
    )


def tree(images: Path, pairs: Mapping[str, int]) -> None:
    """In the image of mpi, in the same unpacked, and in that tree by bubblewrap."""
    if shutil.which("bwrap") is None:
        sys.exit("bubblewrap is not installed (Debian: bubblewrap)")
    image = (images / "mpi-cpu.sif").resolve()
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder, "tree")
        build = ["apptainer", "build", "--sandbox", str(unpacked), str(image)]
        subprocess.run(build, check=True, capture_output=True)

        def without_apptainer(task: Task) -> dict:
            with mock.patch.object(container, "exec_argv", enter_tree):
                return run_launch(in_image(task, unpacked), Stop())

        compare(
            make_task("mpi"),
            pairs,
            {
                "SIF": lambda task: run_launch(in_image(task, image), Stop()),
                "unpacked": lambda task: run_launch(in_image(task, unpacked), Stop()),
                "tree": without_apptainer,
            },
        )


def compare(task: Task, pairs: Mapping[str, int], places: dict) -> None:
    """Interleaved launches in each place; ratios over the last one."""
    for what, cell, unit in (
        ("step", task.cell, "ms"),
        ("first step", replace(task.cell, steps=1, warmup=0), "s"),
    ):
        if not pairs[what]:
            continue
        # How long the first takes is what unpacking is for.
        compared = {p: places[p] for p in places if what != "step" or p != "unpacked"}
        found: dict[str, list[float]] = {place: [] for place in compared}
        for pair in range(pairs[what] + 1):
            for place, launch in compared.items():
                value = measure(replace(task, cell=cell), launch, what)
                if pair:  # the first one warms the caches
                    found[place].append(value)
        *ours, base = compared
        for place in ours:
            title = f"{what}, {place} over {base}"
            report(title, found[place], found[base], unit=unit)
            sys.stdout.flush()


def measure(task: Task, launch, what: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "1")
        (directory / "work").mkdir(parents=True)
        record = launch(replace(task, directory=directory))
        if record["status"] != "ok":
            sys.exit(f"{record['reason']}\n{(directory / 'launcher.log').read_text()}")
        if what == "first step":
            # From the start of the launcher to the end of the ranks.
            return record["seconds"]["launch"]
        return 1e3 * median_step(directory / "steps.npz", len(record["ranks"]))


def median_step(path: Path, ranks: int) -> float:
    """Seconds of a step, of its slowest rank: as the table has it."""
    with np.load(path, allow_pickle=False) as steps:
        of_ranks = [steps[f"rank{rank}/seconds"].sum(axis=1) for rank in range(ranks)]
    return float(np.median(np.max(of_ranks, axis=0)))


def in_image(task: Task, file: Path) -> Task:
    image = {"name": file.stem, "file": str(file), "recipe": None, "sha256": None}
    return replace(task, image=image)


def enter_tree(image: Path, argv: Sequence[str], **places: Any) -> list[str]:
    """As `container.exec_argv`, by bubblewrap; the image's own settings by hand."""
    home = places["home"]
    binds = ["--bind", str(image), "/", "--dev-bind", "/dev", "/dev"]
    binds += ["--proc", "/proc", "--ro-bind", "/sys", "/sys"]
    shared = tempfile.gettempdir()
    binds += ["--bind", shared, shared]
    for path in places["readable"]:
        binds += ["--ro-bind", str(path), str(path)]
    for path in (*places["writable"], home):
        binds += ["--bind", str(path), str(path)]
    inside = {"PATH": "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin", "USE_LIBUV": "0"}
    settings = [f"{key}={value}" for key, value in inside.items()]
    return ["bwrap", *binds, "--chdir", str(home), "env", *settings, *argv]


def make_task(backend: str) -> Task:
    """A launch of two ranks; where it is to be measured is filled in later."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "images.yaml")
        path.write_text(EXPERIMENT.format(backend=backend))
        catalog = load_catalog()
        ((cell_id, cell),) = load_experiment(path, catalog, cuda=False).cells.items()
    facts = catalog.strategies[cell.strategy]
    shape: Shape = shape_of(cell, facts)
    assert isinstance(cell, Cell)
    return Task(
        experiment="images",
        cell_id=cell_id,
        cell_hash=cell.hash(),
        cell=cell,
        shape=shape,
        phases=facts.phases,
        marks=[],
        attempt=1,
        number=1,
        wanted=1,
        directory=Path(),
        data_dir=Path("/nonexistent"),
        time_limit=300,
        threads=1,
        backend_logs=False,
        save_model="none",
        collectives=False,
        code=describe_code(),
    )


if __name__ == "__main__":
    main()
