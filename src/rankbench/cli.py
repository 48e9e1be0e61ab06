"""The command line.

Exit status: 0 success, 1 a finding, 2 bad input, 3 undecided, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import shtab

from rankbench import __version__, commands
from rankbench.commands._extras import find_extra, say_missing
from rankbench.commands._options import (
    BAD_INPUT,
    COMMANDS,
    GROUPS,
    INTERRUPTED,
    OK,
    Command,
)

USAGE = "rankbench COMMAND [options]"
HELP = """\
usage: {usage}

Measure how distributed PyTorch training scales: strategies, backends and
topologies of an experiment, as a table that others can verify.

{commands}

options:
  -h, --help                  show this help; after a COMMAND, explain it
  --version                   show the version
  --print-completion SHELL    complete commands and options by the tab key:
                              eval "$(rankbench --print-completion bash)"
examples:
  rankbench run -n            show what config.yaml would measure
  rankbench run scaling.yaml  measure another one, and print its table
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors in the input are printed without a traceback."""
    arguments = read_arguments(sys.argv[1:] if argv is None else argv)
    try:
        status: int = arguments.command(arguments)
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
    return status


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. What follows two dashes of `run` is for Snakemake."""
    words, flags = list(argv), []
    if words[:1] == ["run"] and "--" in words:
        place = words.index("--")
        words, flags = words[:place], words[place + 1 :]
    parser = build_parser(words[0] if words else None)
    if words and words[0] in parser.commands:
        # Options may stand before, between and after the other arguments.
        arguments = parser.commands[words[0]].parse_intermixed_args(words[1:])
    else:
        arguments = parser.parse_args(words)
    arguments.snakemake = flags
    return arguments


def load_commands(name: str | None = None) -> list[Command]:
    """Import the command of this name, or all; return what is there, in order."""
    modules = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    names = {m.replace("_", "-"): m for m in modules if not m.startswith("_")}
    # Only what is used is imported, because each import costs time.
    for module in [names[name]] if name in names else names.values():
        import_module(f"rankbench.commands.{module}")
    return sorted(
        COMMANDS.values(),
        key=lambda found: (GROUPS.index(found.place[0]), found.place[1]),
    )


def build_parser(name: str | None = None) -> _Parser:
    """The parser with the command of this name, or with all commands."""
    parser = _Parser(prog="rankbench", usage=USAGE)
    parser.add_argument("--version", action="version", version=__version__)
    shtab.add_argument_to(parser, ["--print-completion"])
    subparsers = parser.add_subparsers(
        required=True,
        metavar="COMMAND",
        prog="rankbench",
        parser_class=argparse.ArgumentParser,
    )
    for command in load_commands(name):
        command.add_to(subparsers)
    parser.commands = subparsers.choices
    return parser


class _Parser(argparse.ArgumentParser):
    """The parser of `rankbench`; its help lists the commands by groups.

    Attributes:
        commands: name of a command -> its parser.
    """

    commands: Mapping[str, argparse.ArgumentParser]

    def format_help(self) -> str:
        lines = [
            f"  {command.place[0] if command.place[1] == 1 else '':<9}"
            f"{command.name:<13}{command.summary}"
            for command in load_commands()
        ]
        return HELP.format(usage=USAGE, commands="\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
