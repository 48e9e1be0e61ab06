"""The command line.

Exit status: 0 success, 1 a finding, 2 bad input, 3 undecided, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import shtab

from rankbench import __version__
from rankbench.commands import (
    accept,
    answer,
    cells,
    check,
    compare,
    diff_models,
    history,
    images,
    init,
    predict,
    prepare,
    publish,
    replay,
    rerun,
    run,
    show,
    site_check,
    status,
    table,
    verify,
)
from rankbench.commands.base import BAD_INPUT, INTERRUPTED, OK
from rankbench.extras import find_extra, say_missing

# In the order in which users need them.
COMMANDS = (
    init,
    check,
    site_check,
    images,
    prepare,
    cells,
    run,
    status,
    show,
    rerun,
    answer,
    predict,
    table,
    compare,
    accept,
    history,
    publish,
    verify,
    replay,
    diff_models,
)

EXAMPLES = """\
examples:
  rankbench run -n                      show what the default experiment would measure
  rankbench run                         measure it, and print its table
  rankbench status                      show its progress
  rankbench compare results/before results/after

`rankbench COMMAND --help` explains a command. To enable tab completion in this shell:
  eval "$(rankbench --print-completion bash)\""""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors in the input are printed without a traceback."""
    arguments = build_parser().parse_args(argv)
    try:
        found: int = arguments.command(arguments)
    except BrokenPipeError:
        # The reader has closed the pipe. Python's flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        print("rankbench: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"rankbench: {error}", file=sys.stderr)
        return BAD_INPUT
    except ModuleNotFoundError as error:
        if (extra := find_extra(error.name or "")) is None:
            raise
        print(f"rankbench: {say_missing([str(error.name)], [extra])}", file=sys.stderr)
        return BAD_INPUT
    return found


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="rankbench",
        description="Measure how distributed PyTorch training scales: strategies, "
        "backends and topologies of an experiment, as a table that others can verify.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    shtab.add_argument_to(
        parser, ["--print-completion"], help="print the completion script for a shell"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
