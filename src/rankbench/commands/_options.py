"""The table of all options, and what a command declares about itself."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

OK, FINDING, BAD_INPUT, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130

# In the order in which `rankbench --help` lists them.
GROUPS = ("set up", "measure", "read", "compare", "share")

Function = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of `rankbench`.

    Attributes:
        place: its group, and its number within the group.
        summary: a line for the list of commands.
        about: the text above the options.
        options: keys of `OPTIONS`; positional arguments in their order.
        defaults: destination -> a default other than the table's.
        examples: without `rankbench` before each.
        exits: the exit statuses.
        json_holds: the contents of the JSON output.
    """

    name: str
    run: Function
    place: tuple[str, int]
    summary: str
    about: str
    options: Sequence[str]
    examples: Sequence[str]
    exits: str
    json_holds: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def add_to(self, commands: Any) -> None:
        """Add the command to the parser of `rankbench`."""
        lines = "\n".join(f"  rankbench {example}" for example in self.examples)
        arguments = map(_usage, self.options)
        parser = commands.add_parser(
            self.name,
            usage=" ".join(["%(prog)s", "[options]", *filter(None, arguments)]),
            help=self.summary,
            description=_fill(self.about),
            epilog=f"examples:\n{lines}\n\n{_fill(f'exit status: {self.exits}')}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for key in self.options:
            is_option = key.startswith("-")
            named = OPTIONS[key] if is_option else {"metavar": key, **OPTIONS[key]}
            parser.add_argument(*(key.split() if is_option else ()), **named)
        parser.add_argument(
            "--json", action="store_true", help=f"print JSON: {self.json_holds}"
        )
        for old, new in _RENAMED.items():
            parser.add_argument(old, action=_Renamed, const=new, help=argparse.SUPPRESS)
        parser.set_defaults(command=self.run, **self.defaults)


COMMANDS: dict[str, Command] = {}


def command(name: str, **declared: Any) -> Callable[[Function], Function]:
    """Declare the command that the decorated function executes.

    The function returns the exit status. `declared` has the attributes of `Command`.
    """

    def keep(run: Function) -> Function:
        COMMANDS[name] = Command(name=name, run=run, **declared)
        return run

    return keep


def _usage(key: str) -> str:
    """A positional argument as the usage shows it; nothing for an option."""
    if key.startswith("-"):
        return ""
    nargs = OPTIONS[key].get("nargs")
    words = f"{key} ..." if nargs in ("*", "+") else key
    return f"[{words}]" if nargs in ("*", "?") else words


def _fill(text: str) -> str:
    """Text in lines for a terminal of 80 columns."""
    return textwrap.fill(" ".join(text.split()), 79)


class _Renamed(argparse.Action):
    """Refuses an option of an earlier version with today's spelling."""

    def __call__(
        self, parser: argparse.ArgumentParser, _: Any, value: Any, option: Any = None
    ) -> NoReturn:
        parser.error(f"{option} {value}: write {self.const.format(value)}")


_RENAMED = {
    "--experiment": "the file alone, without an option: {}",
    "--results": "the folder alone, without an option: {}",
    "--profile": "--site {}",
}


_EXPERIMENT = {"dest": "experiment", "nargs": "?"}
_SWITCH = {"action": "store_true"}

# Metavar of a positional argument, or flags of an option -> keywords of `add_argument`.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "EXPERIMENT": _EXPERIMENT | {"help": "experiment file (config.yaml)"},
    "WHAT": _EXPERIMENT
    | {"help": "experiment file (config.yaml), result folder, or bundle"},
    "CELL": {"dest": "cell", "help": "id of a cell (`rankbench cells` lists them)"},
    "CELLS": {"dest": "cells", "nargs": "*", "help": "ids of cells"},
    "NAME": {"dest": "name", "nargs": "*", "help": "an image, such as gloo-cpu"},
    "FOLDER": {"dest": "folder", "type": Path, "help": "a new folder, or an empty one"},
    "FILE": {"dest": "file", "type": Path, "help": "a Python file"},
    "BASELINE": {
        "dest": "baseline",
        "type": Path,
        "help": "result folder, bundle, baseline, or CSV file of published numbers",
    },
    "RESULTS": {"dest": "results", "type": Path, "help": "result folder, or bundle"},
    "OLD": {"dest": "old", "type": Path, "help": "result folder, bundle, or baseline"},
    "NEW": {
        "dest": "new",
        "type": Path,
        "nargs": "?",
        "help": "the same; none with --between, or to only save OLD",
    },
    "BUNDLE": {
        "dest": "bundle",
        "type": Path,
        "help": "results.tar.zst or its folder",
    },
    "MODEL": {
        "dest": "model",
        "type": Path,
        "nargs": "+",
        "help": "model file, or folder of a launch with the models of its ranks",
    },
    "add RUN": {
        "dest": "add",
        "nargs": "*",
        "help": "keep result folders or bundles in the store",
    },
    "--override": {"metavar": "NAME", "help": "an override of the experiment file"},
    "--site": {
        "metavar": "DIR",
        "help": "folder of a profile, with site.yaml in it (local_profile, or the "
        "variable SNAKEMAKE_PROFILE)",
    },
    "--only": {
        "nargs": "+",
        "metavar": "KEY=VALUE",
        "help": "only cells that match all of these (KEY=A,B matches A or B)",
    },
    "-n --dry-run": _SWITCH | {"help": "preview the run; write nothing"},
    "--next": {
        "nargs": "?",
        "const": "",
        "metavar": "QUESTION",
        "choices": ("fastest", "cheapest", "scaling", ""),
        "help": "only launches that would settle this question of the answer: fastest, "
        "cheapest or scaling",
    },
    "--verbose": _SWITCH | {"help": "show the output of Snakemake, too"},
    "--no-plots": _SWITCH | {"help": "write only tables"},
    "--failed": _SWITCH | {"help": "all failed cells"},
    "--stale": _SWITCH | {"help": "all cells whose definition or image has changed"},
    "--with-base": _SWITCH | {"help": "also the cells that speedups are relative to"},
    "--test": _SWITCH | {"help": "compare images with images.yaml"},
    "--show": _SWITCH | {"help": "show file and SHA-256; build nothing"},
    "--force": _SWITCH | {"help": "build images again that are up to date"},
    "--ssh": {
        "nargs": "+",
        "metavar": "HOST[:DEVICES]",
        "help": "write a profile for hosts that ssh reaches; DEVICES is 1 by default",
    },
    "--data": {
        "default": "digits",
        "help": "data set, or file of your own, for the check of a model (%(default)s)",
    },
    "--option": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "option of the model; may be repeated",
    },
    "--margin": {
        "type": float,
        "default": 0.03,
        "help": "relative differences up to this size are none (%(default)s)",
    },
    "--efficiency": {
        "type": float,
        "default": 0.7,
        "help": "a topology is sensible if its efficiency is higher (%(default)s)",
    },
    "--details": {
        "action": "store_true",
        "help": "say all that answer.json holds, in sentences",
    },
    "--topology": {
        "nargs": "+",
        "metavar": "NODESxDEVICES",
        "help": "topologies to predict (those of the experiment's key `predict`)",
    },
    "--at-least": {
        "type": float,
        "default": 0.95,
        "metavar": "RATIO",
        "help": "throughput over theirs that every row must reach (%(default)s)",
    },
    "--confidence": {
        "type": float,
        "default": 0.95,
        "help": "that no verdict is wrong, over all rows (%(default)s)",
    },
    "--between": {
        "metavar": "KEY=A,B",
        "help": "compare cells of OLD that differ in this key alone: A with B",
    },
    "--save-baseline": {
        "metavar": "FILE",
        "type": Path,
        "help": "save the numbers of NEW (of OLD, if NEW is not given) in a JSON file",
    },
    "--tolerance": {
        "type": float,
        "default": 0.0,
        "help": "largest difference between elements that is ignored (%(default)s)",
    },
    "--cell": {"metavar": "ID", "help": "only this cell, with its runs"},
    "--page": {"metavar": "FILE.html", "type": Path, "help": "also write a page"},
    "--store": {
        "metavar": "DIR",
        "type": Path,
        "default": Path("history"),
        "help": "folder with the runs (%(default)s)",
    },
    "--anonymise": _SWITCH
    | {"help": "replace names of hosts, users, accounts, jobs and paths"},
    "--sign": {
        "metavar": "KEY",
        "type": Path,
        "help": "sign with a private SSH key, or with a public one whose private half "
        "is in ssh-agent",
    },
    "--add-to": {
        "metavar": "BUNDLE",
        "type": Path,
        "help": "add the signature of --sign to this bundle, and publish nothing else",
    },
    "--strict": _SWITCH | {"help": "fail unless all numbers were derived again"},
    "--signers": {
        "metavar": "FILE",
        "type": Path,
        "help": "fail unless each signature, and at least one, is by somebody in FILE, "
        "which has OpenSSH's format allowed_signers",
    },
    "--signer": {
        "metavar": "USER.keys",
        "type": Path,
        "action": "append",
        "default": [],
        "help": "fail unless USER has signed, whose public keys the file lists; may be "
        "repeated, and other signatures are refused",
    },
    "--run": _SWITCH | {"help": "measure, and compare"},
    "--run-their-code": _SWITCH
    | {"help": "also run models, data sets, strategies and scripts from the bundle"},
}
