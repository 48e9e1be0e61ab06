"""The command `rankbench images`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rankbench.assets import find_asset
from rankbench.commands._execute import run_target
from rankbench.commands.base import (
    add_experiment,
    add_only,
    add_parser,
    argv_for,
    plan_run,
    print_json,
    require_workflow,
)
from rankbench.launch.images.store import (
    Image,
    load_images,
    read_sidecar,
    reason_to_make,
)
from rankbench.project import Run
from rankbench.project.inputs import image_files

ABOUT = """\
Build or pull the images of an experiment, one for each backend, that are missing or out
of date. If names are given, build these images, even if the experiment does not need
them."""

EXAMPLES = """\
examples:
  rankbench images --profile slurm_profile
  rankbench images gloo-cpu mpi-cpu
  rankbench images gloo-cpu --test
  rankbench images --profile slurm_profile --show --json

exit status: 0 success, 1 an image could not be made or failed its test, 2 bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "images",
        make_images,
        summary="build, test or show images",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="each image: why it must be made (or null), file and SHA-256",
    )
    add_experiment(parser)
    add_only(parser)
    parser.add_argument("name", nargs="*", help="image and flavour, such as gloo-cpu")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--test", action="store_true", help="compare images with images.yaml"
    )
    what.add_argument(
        "--show", action="store_true", help="show file and SHA-256; build nothing"
    )
    what.add_argument(
        "--force", action="store_true", help="build images again that are up to date"
    )


def make_images(arguments: argparse.Namespace) -> int:
    """Build, test or show images; return the exit status."""
    run = plan_run(arguments)
    images = _choose(run, arguments.name)
    status = 0
    if not arguments.show:
        status = run_target(_argv(run, list(images), arguments))
    if arguments.json:
        print_json([_describe(image) for image in images.values()])
    elif arguments.show:
        for image in images.values():
            known = _describe(image)
            there = known["missing"] or f"{known['file']}  SHA-256 {known['sha256']}"
            print(f"{image.name:<12} {there}")
    return status


def _choose(run: Run, names: list[str]) -> dict[str, Image]:
    """Return the images with these names; without names, those of the chosen cells.

    Raises:
        ValueError: an image does not exist, or no cell runs in an image.
    """
    known = run.known_images or load_images(find_asset("containers"), run.image_dir, {})
    for name in names:
        if name not in known:
            raise ValueError(f"{name}: no such image (known: {', '.join(known)})")
    if names:
        return {name: known[name] for name in names}
    image_files(run)  # raises if no cell runs in an image
    return {name: known[name] for name in run.image_names}


def _argv(run: Run, names: list[str], arguments: argparse.Namespace) -> list[str]:
    if not arguments.name and not arguments.test and not arguments.force:
        require_workflow(run)
        return argv_for(arguments, targets=["images"])
    module = [sys.executable, "-m", "rankbench.launch.images"]
    where = ["--image-dir", str(run.image_dir)]
    if arguments.test:
        return [*module, "test", *names, *where]
    mirror = ["--mirror", run.plan.site["debian_mirror"]]
    mirror += ["--torch-index", run.plan.site["torch_index"]]
    if key := run.plan.site["image_key"]:
        mirror += ["--key", key]
    force = ["--force"] if arguments.force else []
    return [*module, "build", *names, *where, *mirror, *force]


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
