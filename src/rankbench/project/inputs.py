"""Paths of the files that Snakemake's rules read or make."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.sharing import is_apart
from rankbench.matrix.site import NATIVE
from rankbench.plan import PlannedCell
from rankbench.project.jobs import shared_jobs
from rankbench.project.run import Run


def summary_files(run: Run) -> list[str]:
    """Return the summaries of the chosen cells; each appears when its cell is done."""
    return [str(run.layout.summary(cell.id)) for cell in run.feasible]


def missing_summaries(run: Run) -> list[str]:
    """Return summaries that Snakemake would not make, because a table exists already.

    A table exists early after a failure, or after a run of a part of the matrix.
    """
    if not run.layout.table("csv").exists():
        return []
    return [file for file in summary_files(run) if not os.path.exists(file)]


def request_file(run: Run, cell_id: str) -> list[str]:
    """Return the input of a cell's job: the request, which names the attempt."""
    return _if_written(run.layout.request(cell_id))


def job_inputs(run: Run, name: str) -> tuple[list[str], list[str]]:
    """Return the input of a job that measures several cells.

    Returns:
        The requests of its cells and what the job before it leaves; and a file for
        each data set and image, which tells that it was made or could not be.
    """
    job = shared_jobs(run)[name]
    cells = [run.plan.cells[cell] for cell in job.cells]
    needs = [f"data.{data}" for data in _prepared(cells)]
    images = {cell.image for cell in cells if cell.image is not None}
    needs += [f"image.{image}" for image in sorted(images)]
    requests = [file for cell in job.cells for file in request_file(run, cell)]
    before = [] if job.after is None else [str(run.layout.job(job.after))]
    return [*requests, *before], [str(run.layout.attempted(need)) for need in needs]


def needed_files(run: Run) -> dict[str, list[str]]:
    """Return the files of data and image that the job of each cell needs."""
    # Many cells share a pair of data and image, so each pair's list is made once.
    pairs = {(cell.cell.data, cell.image): cell for cell in run.plan.feasible}
    files = {pair: _needed_by(run, [cell]) for pair, cell in pairs.items()}
    return {cell.id: files[cell.cell.data, cell.image] for cell in run.plan.feasible}


def array_cells(run: Run) -> list[str]:
    """Return cells whose hosts are tasks of a job array and have no own job."""
    return [cell.id for cell in run.plan.feasible if is_apart(cell)]


def data_files(run: Run) -> list[str]:
    """Return the data files that the chosen cells read."""
    return _data_of(run, run.feasible)


def image_files(run: Run) -> list[str]:
    """Return the sidecars of the chosen cells' images; each appears with its image.

    Raises:
        ValueError: this site has no images.
    """
    if run.plan.site["software"] == NATIVE:
        raise ValueError(
            "no cell runs in an image here: the site file has software: native "
            "(with software: container, each cell runs in the image of its backend)"
        )
    return [run.plan.images[name]["sidecar"] for name in run.image_names]


def image_inputs(run: Run, name: str) -> list[str]:
    """Return the input of an image's job: the request, which names the recipe."""
    return _if_written(Path(run.plan.images[name]["request"]))


def signing_key(run: Run) -> list[str]:
    """Return the option that names the key which signs images; [] without a key."""
    # Plans of earlier versions do not have this key of the site.
    key = run.plan.site.get("image_key")
    return [] if key is None else ["--key", key]


def _if_written(path: Path) -> list[str]:
    """Return the file if it exists. The main process writes it, except in a dry run."""
    return [str(path)] if path.exists() else []


def _needed_by(run: Run, cells: Sequence[PlannedCell]) -> list[str]:
    images = {cell.image for cell in cells if cell.image is not None}
    sidecars = [run.plan.images[name]["sidecar"] for name in sorted(images)]
    return [*_data_of(run, cells), *sidecars]


def _data_of(run: Run, cells: Sequence[PlannedCell]) -> list[str]:
    return [str(run.data_dir / f"{name}.npz") for name in _prepared(cells)]


def _prepared(cells: Sequence[PlannedCell]) -> list[str]:
    """Return the data sets of cells that are read from prepared files.

    Those of the user's own are none, nor is that of a script.
    """
    known = load_catalog().data
    names = {cell.cell.data for cell in cells}
    return [n for n in sorted(names) if n in known and known[n]["prepared"]]
