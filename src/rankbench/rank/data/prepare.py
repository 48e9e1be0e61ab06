"""Write the prepared file of a data set: python -m rankbench.rank.data.prepare NAME."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rankbench.failures import DATA, Need, note_attempt
from rankbench.rank import variants
from rankbench.rank.data import DataError, path, read_arrays, write_arrays


def prepare(name: str, root: Path) -> Path | None:
    """Write `root/NAME.npz` from the original files in `root/raw/NAME`.

    A valid prepared file is kept.

    Returns:
        The path of the prepared file; None if the data set needs no file.

    Raises:
        DataError: the original files are missing or damaged.
        ValueError: there is no such data set.
    """
    module = variants.load("data", name)
    if not module.PREPARED:
        return None
    target = path(name, root)
    try:
        read_arrays(target, module.SHAPE)
    except DataError:
        source = root / "raw" / name
        arrays = module.prepare(source)
        try:
            arrays.check(module.SHAPE)
        except ValueError as error:
            raise DataError(f"{source} does not contain {name}: {error}") from error
        write_arrays(target, arrays)
    return target


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rankbench.rank.data.prepare", description=__doc__
    )
    parser.add_argument("name", metavar="NAME", help="the data set")
    parser.add_argument("--root", type=Path, required=True, help="folder to write to")
    parser.add_argument("--log", default="-", help="log file of this command")
    arguments = parser.parse_args(argv)
    wanted = Need(DATA, arguments.name)
    try:
        target = prepare(arguments.name, arguments.root)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        # In a run, the note says it to the jobs of the cells.
        return 0 if note_attempt(wanted, str(error), arguments.log) else 2
    note_attempt(wanted, None, arguments.log)
    print(target or f"{arguments.name} needs no file")
    return 0


if __name__ == "__main__":
    sys.exit(main())
