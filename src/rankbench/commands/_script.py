"""The experiment that `rankbench run train.py` makes of a training script."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rankbench.assets import find_asset
from rankbench.commands._base import find_profile
from rankbench.commands.init import make_project_here
from rankbench.invocation import DEFAULT_PROFILE
from rankbench.matrix.own import OwnFile, describe_file
from rankbench.matrix.site import Site
from rankbench.own_files import JOINS, read_source, unlisted_files
from rankbench.record import write_if_changed
from rankbench.say import say
from rankbench.schema import dump_yaml

_STEPS, _WARMUP, _LAUNCHES = 20, 5, 4

# An option, an argument or a variable with the samples of a step of one rank.
_BATCH = re.compile(r"-{0,2}(per[-_]device[-_])?(train[-_])?(batch[-_]?size|bs)", re.I)

# Libraries by which ranks join.
_LIBRARIES = re.compile(
    r"^\s*(?:from|import)\b.*\b(?:accelerate|horovod|deepspeed|(?:pytorch_)?lightning)\b"
    r"|\bTrainer\b",
    re.MULTILINE,
)

# What a rank must not do, because rankbench starts one process for each device.
_STARTS_RANKS = re.compile(r"\bspawn\(")

# In the arguments, for the batch size.
_FIELD = "{batch_size}"

_BACKENDS = ("nccl", "gloo", "mpi")

_HEAD = """\
# Made by: {command}
# Edit it, and run it again: docs/your-own-script.md explains its keys.
"""


def make_experiment(arguments: argparse.Namespace) -> str | None:
    """Write the experiment that measures a script, and say what was guessed.

    A folder that is no project becomes one.

    Args:
        arguments: `experiment` is the script, `words` those that it gets.

    Returns:
        Path of the experiment; None for a dry run, which only says it.

    Raises:
        ValueError: the file is no script, or there is another experiment of this name.
    """
    from rankbench.project.run import survey_site

    script = Path(arguments.experiment)
    own = describe_file(script)
    if own.key != "script":
        raise ValueError(f"{script} is no training script: it is a file for {own.key}")
    try:
        profile, is_project = find_profile(arguments), True
    except ValueError:
        if arguments.site != DEFAULT_PROFILE or Path("Snakefile").exists():
            raise
        profile, is_project = find_asset(DEFAULT_PROFILE), False
    site, _ = survey_site(profile / "site.yaml", write=False)
    keys, guesses = guess_keys(own, arguments.words, site)
    command = shlex.join(["rankbench", "run", os.fspath(script), *arguments.words])
    # Lists on a line are easier to edit.
    lines = (
        f"{key}: {json.dumps(value)}\n"
        if isinstance(value, list)
        else dump_yaml({key: value})
        for key, value in keys.items()
    )
    text = _HEAD.format(command=command) + "".join(lines)
    path = script.with_suffix(".yaml")
    is_new = not path.exists()
    if not is_new and path.read_text() != text:
        raise ValueError(
            f"{path} is another experiment: `rankbench run {path}` measures it; edit "
            "it, or remove it to make a new one"
        )
    if not (is_project or arguments.dry_run):
        make_project_here()
    if is_new and not arguments.dry_run:
        write_if_changed(path, text.encode())
    what = "would make" if is_new and arguments.dry_run else "made"
    say(f"{what} {path}:", text, *guesses, aside=not arguments.dry_run)
    return None if is_new and arguments.dry_run else os.fspath(path)


def guess_keys(
    own: OwnFile, words: Sequence[str], site: Site
) -> tuple[dict[str, object], list[str]]:
    """The keys of the experiment, and which of them may be wrong, in words.

    Args:
        own: the script.
        words: its arguments.
        site: the machine.
    """
    sources = [path for path in own.files.values() if path.suffix == ".py"]
    text = "\n".join(path.read_text(errors="replace") for path in sources)
    is_gpu = site["device"] == "cuda"
    devices = site["cuda_devices"] if is_gpu else site["cores"]
    usual = "nccl" if is_gpu else "gloo"
    values = [word.rpartition("=")[2] for word in words]
    given = [one for one in _BACKENDS if one in values]
    used = given or [one for one in _BACKENDS if re.search(f"[\"']{one}[\"']", text)]
    keys: dict[str, object] = {
        "name": re.sub(r"[^A-Za-z0-9_-]", "-", own.name),
        "script": f"./{own.path.name}",
    }
    guesses = []
    args, batch = _find_batch(sources, words)
    if args:
        # A field needs no quotation marks.
        quoted = (word if _FIELD in word else shlex.quote(word) for word in args)
        keys["args"] = " ".join(quoted)
    if batch is None:
        keys["samples_per_step"] = "devices"
        guesses.append(
            "its batch size is not seen: a step counts as one sample of each device; "
            "set samples_per_step"
        )
    elif any(_FIELD in word for word in args):
        keys |= {"batch_size": batch, "samples_per_step": "batch_size * devices"}
    else:
        keys["samples_per_step"] = f"{batch} * devices"
    alone = (
        "it may start ranks itself, which are not measured"
        if _STARTS_RANKS.search(text)
        else "it does not join its ranks"
        if not (JOINS.search(text) or _LIBRARIES.search(text))
        else None
    )
    if alone:
        keys["topology"] = "1x1"
        guesses.append(f"{alone}: measured on 1x1 only")
        if not is_gpu:
            # As many as it uses alone.
            keys["cores_per_device"] = devices
    else:
        keys["topology"] = ["1x1", f"1x{devices}"][: 1 + (devices > 1)]
        keys["backend"] = used[0] if len(used) == 1 else usual
        if re.search(r"^\s*(?:from|import) horovod\b", text, re.MULTILINE):
            keys["launcher"] = "horovodrun"
    if files := unlisted_files(own.path, own.files, words):
        keys["files"] = files
        guesses.append(f"files that it names are copied: {', '.join(files)}")
    if {"-n", "--dry-run"} & {*words}:
        guesses.append("-n behind the script is for the script; before it, it previews")
    keys |= {"warmup": _WARMUP, "steps": _STEPS, "launches": _LAUNCHES}
    return keys, guesses


def _find_batch(
    sources: Sequence[Path], words: Sequence[str]
) -> tuple[list[str], int | None]:
    """Arguments of the script, with a field for its batch size, and that of a rank.

    Without such an argument the script itself says it, or it is not known.
    """
    nodes = [node for path in sources for node in ast.walk(read_source(path))]
    known = [found for node in nodes if (found := _read_batch(node))]
    flags = {flag for options, _ in known for flag in options}
    filled = [word.replace("{", "{{").replace("}", "}}") for word in words]
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        is_known = option[:1] == "-" and _BATCH.fullmatch(option)
        if is_known or option in flags:
            if value.isdecimal():
                filled[at] = f"{option}={_FIELD}"
                return filled, int(value)
            if not equals and words[at + 1 : at + 2] and words[at + 1].isdecimal():
                filled[at + 1] = _FIELD
                return filled, int(words[at + 1])
    sizes = [(options, size) for options, size in known if size is not None]
    for options, size in sizes:
        if options:
            return [*filled, options[0], _FIELD], size
    return filled, next((size for _, size in sizes), None)


def _read_batch(node: ast.AST) -> tuple[list[str], int | None] | None:
    """Options of the script for its batch size, the longest first, and the size."""
    options: list[str] = []
    name = ""
    value: ast.expr | None = None
    match node:
        case ast.Call(args=args, keywords=keywords):
            texts = [one.value for one in args if isinstance(one, ast.Constant)]
            flags = [one for one in texts if isinstance(one, str) and one[:1] == "-"]
            options = sorted(flags, key=len, reverse=True)
            name = next(filter(_BATCH.fullmatch, options), "")
            value = next((k.value for k in keywords if k.arg == "default"), None)
        case ast.keyword(arg=str(name), value=value):
            pass
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            pass
    if not _BATCH.fullmatch(name):
        return None
    size = value.value if isinstance(value, ast.Constant) else None
    return options, size if type(size) is int else None
