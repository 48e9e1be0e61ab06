"""The command `rankbench images`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.commands._base import plan_run, shift_experiment
from rankbench.commands._execute import run_command, run_target
from rankbench.commands._options import command, print_json
from rankbench.failures import IMAGE
from rankbench.launch.images.store import (
    SETTINGS,
    Image,
    choose_images,
    load_images,
    read_sidecar,
    reason_to_make,
)
from rankbench.matrix.catalog import CONTAINERS
from rankbench.project.jobs import need_files
from rankbench.project.run import Run
from rankbench.say import say


@command(
    options="EXPERIMENT NAME --override --site --only --show --force",
    examples=(
        "images --site slurm_profile",
        "images gloo-cpu mpi-cpu --force",
        "images --site slurm_profile --show --json",
    ),
    exits="0 success, 1 an image could not be made, 2 bad input",
    json_holds="each image: why it must be made (or null), file and SHA-256",
)
def make_images(arguments: argparse.Namespace) -> int:
    """Build, pull or probe the images of an experiment that are missing or out of
    date. If names are given, make these images, even if the experiment does not need
    them. docs/images.md explains them.
    """
    shift_experiment(arguments, "name")
    if arguments.show and arguments.force:
        raise ValueError("--show and --force: give one of them, not both")
    run = plan_run(arguments, probe=not arguments.show and not arguments.name)
    place = Path(run.plan.site["image_dir"])
    images = run.known_images or load_images(CONTAINERS, place)
    if arguments.name:
        images = choose_images(images, arguments.name)
    else:
        need_files(run, IMAGE)  # raises if no cell runs in an image
        images = {name: images[name] for name in run.image_names}
    status = 0 if arguments.show else _make(run, images, arguments)
    found = [_describe(image) for image in images.values()]
    if arguments.json:
        print_json(found)
    elif arguments.show:
        for one in found:
            there = one["missing"] or f"{one['file']}  SHA-256 {one['sha256']}"
            say(f"{one['name']:<12} {there}")
    return status


def _make(run: Run, images: Mapping[str, Image], arguments: argparse.Namespace) -> int:
    """Make them by Snakemake, or those of a name here; return 0, 1 or 130."""
    if not arguments.name and not arguments.force:
        return run_target(run, arguments, "images")
    settings = {key: run.plan.site[key] for key in SETTINGS}
    given = {n: run.known_images[n].given for n in images if n in run.known_images}
    settings["images"] = {name: one for name, one in given.items() if one}
    module = [sys.executable, "-m", "rankbench.launch.images"]
    force = ["--force"] if arguments.force else []
    return run_command([*module, *images, "--settings", json.dumps(settings), *force])


def _describe(image: Image) -> dict[str, Any]:
    known = read_sidecar(image) or {}
    return {
        "name": image.name,
        "missing": reason_to_make(image),
        "file": str(image.file),
        "sha256": known.get("sha256"),
        "built": known.get("built"),
        "bytes": known.get("bytes"),
    }
