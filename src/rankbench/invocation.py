"""How Snakemake was called: its own parser reads its own arguments, once, here.

And how it is called to measure a cell again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

DEFAULT_EXPERIMENT = "config.yaml"
DEFAULT_PROFILE = "local_profile"

# Targets of which nothing goes to a cluster.
MADE_HERE = {"images", "prepare"}

# Flags with which Snakemake looks, explains or tidies up, but runs no job.
PASSIVE = (
    *("dryrun", "lint", "touch", "unlock", "report", "archive", "containerize"),
    *("list_rules", "list_target_rules", "list_changes", "list_input_changes"),
    *("list_params_changes", "list_untracked", "list_conda_envs"),
    *("dag", "rulegraph", "filegraph", "d3dag", "summary", "detailed_summary"),
    *("cleanup_metadata", "cleanup_shadow", "container_cleanup_images"),
    *("conda_cleanup_envs", "conda_create_envs_only", "delete_all_output"),
    *("delete_temp_output", "print_compilation", "generate_unit_tests", "export_cwl"),
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the main process must know of its command line.

    Attributes:
        profile: folder of the profile, where the site facts are.
        dry_run: it shows what would be done.
        passive: it runs no job, so that nothing may be written.
        measures: it may submit jobs that measure: its targets are not only those that
            are made here.
        config: values of --config as they were written. Snakemake reads them as YAML,
            in which 08 is 8, and ``run #2.yaml`` is ``run``.
    """

    profile: Path
    dry_run: bool
    passive: bool
    measures: bool
    config: Mapping[str, str] = field(default_factory=dict)


def read_invocation(argv: Sequence[str] | None = None) -> Invocation:
    """Read the arguments of the Snakemake process that this is."""
    from snakemake.cli import parse_args

    # It says again which profile it takes; Snakemake has said so already.
    with redirect_stderr(StringIO()):
        _, arguments = parse_args(list(sys.argv[1:] if argv is None else argv))
    values = vars(arguments)
    passive = any(values.get(flag) not in (None, False) for flag in PASSIVE)
    given = arguments.profile
    profiles = [given] if isinstance(given, str | Path) else list(given or ())
    folders = [Path(p).parent if Path(p).is_file() else Path(p) for p in profiles]
    named = [p for p in folders if str(p) != "none"]
    with_site = [p for p in named if (p / "site.yaml").exists()]
    # Of several profiles the last that has site facts counts, as for any other key.
    profile = (with_site or named or [Path(DEFAULT_PROFILE)])[-1]
    targets = set(arguments.targets or ())
    measures = not targets or bool(targets - MADE_HERE)
    pairs = (str(entry).partition("=") for entry in arguments.config or ())
    config = {key.strip(): value for key, _, value in pairs if value}
    return Invocation(profile, bool(arguments.dryrun), passive, measures, config)


def snakemake_argv(config: Mapping[str, str], profile: str, *words: str) -> list[str]:
    """The command with which Snakemake does what a command of rankbench was asked for.

    Args:
        config: as for `project.open_run`.
        profile: folder of the profile.
        words: targets in place of everything, and further options.
    """
    pairs = [f"{key}={value}" for key, value in config.items()]
    command = [sys.executable, "-P", "-m", "snakemake", "--profile", profile]
    # Snakemake would merge a profile that lies in profiles/default.
    return [*command, "--workflow-profile", "none", *words, "--config", *pairs]


def shown(argv: Sequence[str]) -> str:
    """A command as a person would type it in an environment that is activated."""
    words = argv[3:] if list(argv[1:3]) == ["-P", "-m"] else argv
    return shlex.join(words)


def named_in(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `rankbench_command` that name the experiment of a plan."""
    file, site = experiment["file"], experiment.get("site")
    return {"experiment": file, "override": experiment["override"], "site": site}


def rankbench_command(
    name: str,
    *,
    experiment: str | None = None,
    override: str | None = None,
    site: str | None = None,
    cells: Sequence[str] = (),
    options: Sequence[str] = (),
) -> str:
    """A command of rankbench for a person; only what is not the default is said.

    Args:
        cells: ids that follow the experiment.
        options: further options, and those for Snakemake behind two dashes.
    """
    words = ["rankbench", name]
    if experiment not in (None, DEFAULT_EXPERIMENT):
        words.append(str(experiment))
    words += cells
    if override is not None:
        words += ["--override", override]
    if site not in (None, DEFAULT_PROFILE):
        words += ["--site", str(site)]
    return shlex.join([*words, *options])
