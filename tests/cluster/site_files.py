"""The site file of a project on the pretend cluster."""

from __future__ import annotations

import re
from pathlib import Path

from pretend_host import INTERFACE

# Only the first two hosts are used, because they share no core.
SITE_FILE = f"""
scheduler: slurm
software: native
nodes: 2
device: cpu
cores: 1
memory: 2000
partition: pretend
interface: {INTERFACE}
"""

PAUSES = {
    "slurm-init-seconds-before-status-checks": 1,
    "seconds-between-status-checks": 1,
}


def with_images(folder: Path) -> str:
    """By which cells run in the images of a folder that the hosts see."""
    inside = f"software: container\nimage_dir: {folder}"
    return SITE_FILE.replace("software: native", inside)


def look_more_often(settings: Path) -> None:
    """Shorten the pauses between two looks at the queue: jobs are short here."""
    text = settings.read_text()
    for key, seconds in PAUSES.items():
        text, count = re.subn(f"(?m)^{key}: .*$", f"{key}: {seconds}", text)
        assert count == 1, key
    settings.write_text(text)
