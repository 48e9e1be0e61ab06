"""Build images: ``python -m rankbench.launch.images NAME ...``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from rankbench.assets import find_asset
from rankbench.failures import IMAGE, Need, note_attempt
from rankbench.launch.images.build import make_image
from rankbench.launch.images.store import choose_images, load_images
from rankbench.say import say


def main() -> int:
    """Return 0 on success, 1 if an image failed, 2 on bad input, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m rankbench.launch.images")
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
    settings, tell = arguments.settings, partial(say, aside=True)
    # Clean up after SIGTERM as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        image_dir = Path(os.path.abspath(settings.get("image_dir", "images")))
        place = os.path.abspath(settings.get("containers", find_asset("containers")))
        known = load_images(Path(place), image_dir, settings.get("images", {}))
        images = choose_images(known, arguments.name)
    except (ValueError, OSError) as error:
        tell(f"images: {error}")
        return 2
    for image in images.values():
        log = arguments.log or image.sidecar.with_suffix(".log")
        wanted = Need(IMAGE, image.name)
        try:
            make_image(image, tell, settings, log, force=arguments.force)
            note_attempt(wanted, None, log)
        except (ValueError, OSError) as error:
            tell(error)
            # The message names image and log itself.
            said = str(error).removeprefix(f"image {image.name}: ")
            # In a run, the note says it to the jobs of the cells.
            if not note_attempt(wanted, said.removesuffix(f"\n  log: {log}"), log):
                return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
