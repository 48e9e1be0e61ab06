"""The command line.

Exit status: 0 success, 1 a finding, 2 bad input, 3 undecided, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from rankbench import __version__
from rankbench.commands import COMMANDS, MEANT
from rankbench.commands._options import BAD_INPUT, INTERRUPTED, OK, Command, declared
from rankbench.environ import begin_safely, explain_module
from rankbench.say import say

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
    if argv is None:
        begin_safely()
        argv = sys.argv[1:]
    try:
        arguments = read_arguments(argv)
        status: int = arguments.command(arguments)
    except BrokenPipeError:
        # The reader has closed the pipe. Python's flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        say("rankbench: interrupted", aside=True)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        say(f"rankbench: {error}", aside=True)
        return BAD_INPUT
    except ModuleNotFoundError as error:
        if (said := explain_module(error.name or "")) is None:
            raise
        say(f"rankbench: {said}", aside=True)
        return BAD_INPUT
    return status


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    What follows a script is for the script, and what follows two dashes for Snakemake.

    Raises:
        ValueError: it cannot be understood; the message names what is nearest.
    """
    words = list(argv) or ["--help"]
    flags: list[str] = []
    of_script: list[str] = []
    if words[0] == "run":
        for place, word in enumerate(words):
            if word == "--":
                words, flags = words[:place], words[place + 1 :]
                break
            if word.endswith(".py"):
                words, of_script = words[: place + 1], words[place + 1 :]
                break
    name = words[0]
    if name in COMMANDS:
        # Options may stand before, between and after the other arguments.
        parser = build_parser(name).commands[name]
        arguments = parser.parse_intermixed_args(words[1:])
    else:
        everything = name.startswith("--print-completion")
        arguments = build_parser(*COMMANDS if everything else ()).parse_args(words)
    arguments.snakemake, arguments.words = flags, of_script
    return arguments


def load_commands(*names: str) -> list[Command]:
    """Import these commands, or all."""
    # Only what is used is imported, because each import costs time.
    for name in names or COMMANDS:
        import_module(f"rankbench.commands.{name.replace('-', '_')}")
    return [declared[name] for name in names or COMMANDS]


def build_parser(*names: str) -> _Parser:
    """The parser with these commands."""
    parser = _Parser(prog="rankbench", usage=USAGE)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--print-completion", action=_Completion)
    subparsers = parser.add_subparsers(
        required=True, metavar="COMMAND", prog="rankbench", parser_class=_Parser
    )
    for command in load_commands(*names) if names else ():
        command.add_to(subparsers)
    parser.commands = subparsers.choices
    return parser


class _Completion(argparse.Action):
    """Prints the completion for a shell."""

    def __call__(self, parser: Any, _: Any, shell: Any, *__: Any) -> NoReturn:
        import shtab  # few need it

        if shell not in shtab.SUPPORTED_SHELLS:
            known = ", ".join(shtab.SUPPORTED_SHELLS)
            raise ValueError(f"--print-completion {shell}: expected one of {known}")
        say(shtab.complete(parser, shell))
        raise SystemExit(OK)


class _Parser(argparse.ArgumentParser):
    """A parser whose help lists all commands, and whose errors name what is nearest.

    Attributes:
        commands: name of a command -> its parser.
    """

    commands: Mapping[str, _Parser] = {}

    def format_help(self) -> str:
        if self.usage != USAGE:
            return super().format_help()
        lines, before = [], ""
        for name, (group, about) in COMMANDS.items():
            lines.append(f"  {group if group != before else '':<9}{name:<13}{about}")
            before = group
        return HELP.format(usage=USAGE, commands="\n".join(lines))

    def error(self, message: str) -> NoReturn:
        words = [word.partition("=")[0] for word in message.split() if word[0] == "-"]
        if "unrecognized" in message and words:
            message += "".join(map(self._explain, words))
        elif "invalid choice" in message and self.usage == USAGE:
            word = message.split("'")[1]
            message = f"{word}: no such command{_meant(word, COMMANDS)}"
        raise ValueError(f"{message} (`{self.prog} --help` explains)")

    def _explain(self, option: str) -> str:
        """What was meant by an option that does not exist."""
        from rankbench.schema import load_schema

        key = option.strip("-").replace("-", "_")
        if option not in MEANT and key in load_schema("experiment")["properties"]:
            return f": {key} is a key of the experiment file: set it there"
        return _meant(option, self._option_string_actions)

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message.rstrip("\n"), aside=file is sys.stderr)


def _meant(word: str, known: Iterable[str]) -> str:
    near = [MEANT[word]] if word in MEANT else get_close_matches(word, known, 1)
    return "".join(f": did you mean {name}?" for name in near)


if __name__ == "__main__":
    sys.exit(main())
