"""The table of all options, and what a command declares about itself."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankbench.commands import COMMANDS
from rankbench.say import say

OK, FINDING, BAD_INPUT, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130

Function = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of `rankbench`.

    Attributes:
        run: its function; the docstring is the text above the options, and the file's
            name is the command's.
        options: keys of `OPTIONS`; positional arguments in their order.
        examples: without `rankbench` before each.
        json_holds: the contents of the JSON output.
        exits: the exit statuses.
    """

    run: Function
    options: str
    examples: Sequence[str]
    json_holds: str
    exits: str = "0, or 2 on bad input"

    @property
    def name(self) -> str:
        return self.run.__module__.rpartition(".")[2].replace("_", "-")

    def add_to(self, commands: Any) -> None:
        """Add the command to the parser of `rankbench`."""
        about = inspect.cleandoc(self.run.__doc__ or "").partition("\n\nRaises:")[0]
        lines = "\n".join(f"  rankbench {example}" for example in self.examples)
        usage = ["%(prog)s", "[options]"]
        parser = commands.add_parser(
            self.name,
            help=COMMANDS[self.name][1],
            description=_fill(about),
            epilog=f"examples:\n{lines}\n\n{_fill(f'exit status: {self.exits}')}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for key in self.options.split():
            keywords = OPTIONS[key]
            if key.startswith("-"):
                parser.add_argument(*_SHORT.get(key, ()), key, **keywords)
            else:
                action = parser.add_argument(
                    _DESTINATIONS.get(key, key.lower()), **{"metavar": key, **keywords}
                )
                nargs, words = action.nargs or "", str(action.metavar)
                words += " ..." if nargs in ("*", "+") else ""
                usage.append(f"[{words}]" if nargs in ("*", "?") else words)
        parser.usage = " ".join(usage)
        parser.add_argument(
            "--json", action="store_true", help=f"print JSON: {self.json_holds}"
        )
        parser.set_defaults(command=self.run)


# Those that were imported.
declared: dict[str, Command] = {}

_SHORT = {"--dry-run": ("-n",)}
_DESTINATIONS = dict.fromkeys(("WHAT", "CHECKED", "MEASURED"), "experiment")


def command(**attributes: Any) -> Callable[[Function], Function]:
    """Declare the command that the decorated function executes, in its file.

    The function returns the exit status; `attributes` are those of `Command`.
    """

    def keep(run: Function) -> Function:
        entry = Command(run=run, **attributes)
        declared[entry.name] = entry
        return run

    return keep


def print_json(value: Any) -> None:
    """Print a value as strict JSON, which has no infinities."""
    say(json.dumps(value, indent=1, default=str, allow_nan=False))


def print_result(arguments: argparse.Namespace, facts: Any, text: str) -> None:
    """Print the facts as JSON if --json is given, or else the text."""
    if arguments.json:
        print_json(facts)
    else:
        say(text)


def _fill(text: str) -> str:
    """Text in lines for a terminal of 80 columns."""
    return textwrap.fill(" ".join(text.split()), 79)


def _number(expected: str, least: float, below: float) -> Callable[[str], float]:
    """What reads a number in [least, below); `expected` says it, with an example."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= (value := float(text)) < below:
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")

    return read


# Metavar of an option that takes a number -> what reads it.
_NUMBERS = {
    "EFFICIENCY": _number("a share above 0 and below 1, such as 0.7", 1e-9, 1),
    "MARGIN": _number("a share above 0 and below 1, such as 0.03 for 3 %", 1e-9, 1),
    "MINUTES": _number("minutes, such as 10", 0, math.inf),
    "P": _number("at least 0.5 and less than 1, such as 0.95", 0.5, 1),
    "SHARE": _number("a share above 0 and below 2, such as 0.9 for 90 %", 1e-9, 2),
    "X": _number("a number, such as 1e-6", 0, math.inf),
}


def _row(said: str, metavar: str | None = None, **keywords: Any) -> dict[str, Any]:
    """Keywords of `add_argument`; help names the default of a number."""
    if metavar in _NUMBERS:
        keywords["type"] = _NUMBERS[metavar]
        said += " (%(default)s)" if "default" in keywords else ""
    return {"help": said, **({"metavar": metavar} if metavar else {}), **keywords}


def _switch(said: str) -> dict[str, Any]:
    return _row(said, action="store_true")


# Positional argument or long flag -> keywords of `add_argument`.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "EXPERIMENT": _row("experiment file (config.yaml)", nargs="?"),
    "MEASURED": _row(
        "experiment file (config.yaml), or a training script", "WHAT", nargs="?"
    ),
    "WHAT": _row("experiment file (config.yaml), result folder, or bundle", nargs="?"),
    "CELLS": _row("ids of cells", nargs="*"),
    "CHECKED": _row("experiment file (config.yaml), or a Python file", nargs="?"),
    "NAME": _row("an image, such as gloo-cpu", nargs="*"),
    "FOLDER": _row("a new folder, or an empty one", type=Path, nargs="?"),
    "SIDE": _row(
        "result folder, bundle, baseline, or CSV with columns cell and throughput",
        type=Path,
        nargs="+",
    ),
    "BUNDLE": _row("results.tar.zst or its folder", type=Path),
    "--override": _row("an override of the experiment file", "NAME"),
    "--site": _row(
        "folder of a profile, with site.yaml in it (local_profile, or the variable "
        "SNAKEMAKE_PROFILE)",
        "DIR",
    ),
    "--only": _row(
        "only cells that match all of these; A,B matches A or B", "KEY=A,B", nargs="+"
    ),
    "--memory": _switch("with -n: estimate memory and communication of a step"),
    "--fit": _row(
        "with -n: find the largest batch that fits on the devices",
        choices=("batch_size",),
    ),
    "--prepare": _switch("only make the data files: this needs the network"),
    "--dry-run": _switch("preview the run; write nothing"),
    "--next": _row(
        "only launches that settle a question: fastest, cheapest or scaling",
        "QUESTION",
        nargs="?",
        const="",
        choices=("fastest", "cheapest", "scaling", ""),
    ),
    "--wait-quiet": _row(
        "wait at most so long until other programs end", "MINUTES", default=0.0
    ),
    "--no-plots": _switch("write only tables"),
    "--failed": _switch("all failed cells"),
    "--stale": _switch("all cells whose definition or image has changed"),
    "--with-base": _switch("also the cells that speedups are relative to"),
    "--show": _switch("show file and SHA-256; build nothing"),
    "--force": _switch("build images again that are up to date"),
    "--ssh": _row(
        "write a profile for hosts that ssh reaches (1 device)", "HOST[:N]", nargs="+"
    ),
    "--slurm": _row(
        "fill in site.yaml of a profile (slurm_profile, or --site) with the facts of a "
        "partition, by default Slurm's default; without FOLDER, here",
        "PARTITION",
        nargs="?",
        const="",
    ),
    "--data": _row(
        "data set, or your own file, for a model (digits)", default="digits"
    ),
    "--option": _row(
        "option of the model; repeat it for several",
        "NAME=VALUE",
        action="append",
        default=[],
    ),
    "--margin": _row(
        "rows whose bracket is within this share of 1 are equal", "MARGIN", default=0.03
    ),
    "--efficiency": _row(
        "least efficiency of a topology worth using", "EFFICIENCY", default=0.7
    ),
    "--details": _switch("say more than ten lines"),
    "--at": _row(
        "predict these topologies, which were not measured", "NODESxDEVICES", nargs="+"
    ),
    "--at-least": _row("share of the first side's speed that rows must reach", "SHARE"),
    "--confidence": _row("probability that no verdict is wrong", "P", default=0.95),
    "--between": _row("compare cells of SIDE that differ in this key alone", "KEY=A,B"),
    "--by": _row(
        "each run with the one before; hosts with each other",
        "date|host",
        choices=("date", "host"),
    ),
    "--models": _switch("compare models, of files or of launches"),
    "--save-baseline": _row("save the launches of the last side", "FILE", type=Path),
    "--tolerance": _row("ignore differences of elements up to X", "X", default=0.0),
    "--page": _row("also write a page with a plot", "FILE.html", type=Path),
    "--anonymise": _switch("replace names of hosts, users, accounts, jobs and paths"),
    "--sign": _row("sign with this SSH key, or one of ssh-agent", "KEY", type=Path),
    "--strict": _switch("fail unless all numbers were derived again"),
    "--signers": _row(
        "fail unless each signature, and at least one, is by somebody in FILE, which "
        "has OpenSSH's format allowed_signers",
        "FILE",
        type=Path,
    ),
    "--signer": _row(
        "fail unless USER has signed, whose public keys the file lists; may be "
        "repeated, and other signatures are refused",
        "USER.keys",
        type=Path,
        action="append",
        default=[],
    ),
    "--run": _switch("measure, and compare"),
    "--run-their-code": _switch("also run code that the bundle brings"),
}
