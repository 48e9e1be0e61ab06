"""Build and test images: ``python -m rankbench.launch.images``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

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


def main() -> int:
    """Return 0 on success, 1 if an image failed, 2 on bad input, 130 if interrupted."""
    arguments = _parse()
    # Clean up after SIGTERM as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        image_dir = Path(os.path.abspath(arguments.image_dir))
        containers = Path(os.path.abspath(arguments.containers))
        known = load_images(containers, image_dir)
        known |= load_given(containers, image_dir, arguments.given)
        images = choose_images(known, arguments.name)
    except (ValueError, OSError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 2
    try:
        for image in images.values():
            arguments.command(image, arguments)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def build(image: Image, arguments: argparse.Namespace) -> None:
    """Build or pull an image that is missing or out of date."""
    log = arguments.log or image.sidecar.with_suffix(".log")
    wanted = Need(IMAGE, image.name)
    try:
        make_image(
            image,
            mirror=arguments.mirror,
            torch_index=arguments.torch_index,
            log_path=log,
            tell=_tell,
            force=arguments.force,
            key=arguments.key,
        )
    except (ValueError, OSError) as error:
        # The message names image and log itself.
        said = str(error).removeprefix(f"image {image.name}: ")
        # In a run, the note says it to the jobs of the cells.
        if not note_attempt(wanted, said.removesuffix(f"\n  log: {log}"), log):
            raise
        print(error, file=sys.stderr)
    else:
        note_attempt(wanted, None, log)


def test(image: Image, arguments: argparse.Namespace) -> None:
    """Compare the file of an image with its sidecar, and test its promises."""
    known = check_sif(image)
    if image.given:
        if ask_facts(image, image.file) != known["facts"]:
            raise ValueError(
                f"image {image.name}: another look into {image.file} finds other facts "
                f"than {image.sidecar}: make it again (--force)"
            )
        print(f"{image.name}: {image.file} is the file that was probed")
        return
    prove(image, image.file, Work(image, sys.stdout, _tell).follow)
    print(f"{image.name}: {image.file} equals the built file, and keeps its promises")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rankbench.launch.images")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (build, test):
        sub = commands.add_parser(command.__name__, help=command.__doc__)
        sub.add_argument("name", nargs="+", help="image and flavour: mpi-cpu")
        sub.add_argument("--image-dir", type=Path, default=Path("images"))
        sub.add_argument(
            "--containers",
            type=Path,
            default=find_asset("containers"),
            help="folder of the definitions (rankbench's own)",
        )
        sub.add_argument(
            "--given",
            type=json.loads,
            default={},
            help="images that are not built, in JSON: name -> {file} or {source}",
        )
        sub.set_defaults(command=command)
        if command is build:
            sub.add_argument("--mirror", default="auto", help="Debian mirror (apt's)")
            sub.add_argument(
                "--torch-index",
                default="auto",
                help="index for torch if pip's have none; off: none (PyTorch's own)",
            )
            sub.add_argument("--log", type=Path, help="log file (IMAGE_DIR/NAME.log)")
            sub.add_argument("--key", type=Path, help="private key (PEM) that signs")
            sub.add_argument("--force", action="store_true", help="even if up to date")
    return parser.parse_args()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
