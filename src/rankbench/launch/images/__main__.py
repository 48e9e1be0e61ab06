"""Build and test images: ``python -m rankbench.launch.images``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankbench.assets import find_asset
from rankbench.failures import IMAGE, Need, note_attempt
from rankbench.launch.images.build import Work, make_image
from rankbench.launch.images.store import (
    Image,
    choose_images,
    load_given,
    load_images,
)
from rankbench.launch.images.verify import ask_facts, check_sif, prove
from rankbench.say import say


def main() -> int:
    """Return 0 on success, 1 if an image failed, 2 on bad input, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m rankbench.launch.images")
    parser.add_argument("action", choices=("build", "test"))
    parser.add_argument("name", nargs="+", help="image and flavour: mpi-cpu")
    parser.add_argument(
        "--settings",
        type=json.loads,
        default={},
        help="in JSON: keys of a site file, its images that are not built, and "
        "containers, the folder of the definitions",
    )
    parser.add_argument("--log", type=Path, help="log file (IMAGE_DIR/NAME.log)")
    parser.add_argument("--force", action="store_true", help="even if up to date")
    arguments = parser.parse_args()
    settings = arguments.settings
    # Clean up after SIGTERM as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        image_dir = Path(os.path.abspath(settings.get("image_dir", "images")))
        containers = Path(settings.get("containers", find_asset("containers")))
        containers = Path(os.path.abspath(containers))
        known = load_images(containers, image_dir)
        known |= load_given(containers, image_dir, settings.get("images", {}))
        images = choose_images(known, arguments.name)
    except (ValueError, OSError) as error:
        say(f"images: {error}", aside=True)
        return 2
    try:
        for image in images.values():
            if arguments.action == "test":
                test(image)
            else:
                build(image, settings, arguments.log, force=arguments.force)
    except (ValueError, OSError) as error:
        say(error, aside=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def build(
    image: Image, settings: Mapping[str, Any], log: Path | None, *, force: bool
) -> None:
    """Build or pull an image that is missing or out of date."""
    log = log or image.sidecar.with_suffix(".log")
    wanted = Need(IMAGE, image.name)
    try:
        make_image(image, _tell, settings, log, force=force)
    except (ValueError, OSError) as error:
        # The message names image and log itself.
        said = str(error).removeprefix(f"image {image.name}: ")
        # In a run, the note says it to the jobs of the cells.
        if not note_attempt(wanted, said.removesuffix(f"\n  log: {log}"), log):
            raise
        say(error, aside=True)
    else:
        note_attempt(wanted, None, log)


def test(image: Image) -> None:
    """Compare the file of an image with its sidecar, and test its promises."""
    known = check_sif(image)
    if image.given:
        if ask_facts(image, image.file) != known["facts"]:
            raise ValueError(
                f"image {image.name}: another look into {image.file} finds other facts "
                f"than {image.sidecar}: make it again (--force)"
            )
        say(f"{image.name}: {image.file} is the file that was probed")
        return
    prove(image, image.file, Work(image, sys.stdout, _tell).follow)
    say(f"{image.name}: {image.file} equals the built file, and keeps its promises")


def _tell(text: str) -> None:
    say(text, aside=True)


if __name__ == "__main__":
    sys.exit(main())
