"""The command `rankbench init`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rankbench.assets import find_asset
from rankbench.commands.base import OK, add_parser, print_json

ABOUT = """\
Write a new project folder: an experiment, a profile for this machine, a profile for a
Slurm cluster, and a Snakefile that uses the installed workflow. Nothing is measured."""

EXAMPLES = """\
examples:
  rankbench init my-benchmark
  rankbench init my-benchmark --json

exit status: 0, or 2 if the folder is not empty (then nothing is written)"""

# Files that users edit. The workflow itself stays in the package.
OWN = ("config.yaml", "local_profile", "slurm_profile")

SNAKEFILE = """\
# The workflow of the installed rankbench. You can add rules of your own below.
from rankbench.assets import find_asset


include: str(find_asset("Snakefile"))


# Snakemake ignores the default target of an included file.
rule default:
    default_target: True
    input:
        rules.all.input,
"""

# Everything that runs write.
IGNORED = """\
.snakemake/
data/
images/
logs/
results/
"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "init",
        init,
        summary="write a new project folder",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="the folder, and the files written",
    )
    parser.add_argument("folder", type=Path, help="a new folder, or an empty one")


def init(arguments: argparse.Namespace) -> int:
    """Write the project folder.

    Raises:
        ValueError: the folder is not empty, or is a file.
    """
    folder: Path = arguments.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise ValueError(f"{folder} {what}: name a new folder, or an empty one")
    folder.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        asset = find_asset(name)
        if asset.is_dir():
            # Not the modes: files of an installed package may be read-only.
            (folder / name).mkdir()
            for file in asset.iterdir():
                shutil.copyfile(file, folder / name / file.name)
        else:
            shutil.copyfile(asset, folder / name)
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / ".gitignore").write_text(IGNORED)
    files = sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )
    if arguments.json:
        print_json({"folder": str(folder), "files": files})
        return OK
    print(*(f"wrote {folder / name}" for name in files), sep="\n", file=sys.stderr)
    print(
        f"next: cd {shlex.quote(str(folder))}, then edit config.yaml (the experiment) "
        "and local_profile/site.yaml (this machine);\n"
        "`rankbench run -n` shows what would run, `rankbench run` measures it\n"
        f"schemas with all keys of both files: {find_asset('workflow/schemas')}"
    )
    return OK
