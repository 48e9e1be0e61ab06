"""How Snakemake was called: its own parser reads its own arguments, once, here.

And how it is called to measure a cell again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

DEFAULT_EXPERIMENT = "config.yaml"
DEFAULT_PROFILE = "local_profile"

# Flags with which Snakemake looks, explains or tidies up, but runs no job.
_PASSIVE = (
    "dryrun",
    "lint",
    "list_rules",
    "list_target_rules",
    "dag",
    "rulegraph",
    "filegraph",
    "d3dag",
    "summary",
    "detailed_summary",
    "archive",
    "unlock",
    "cleanup_metadata",
    "cleanup_shadow",
    "report",
    "print_compilation",
    "list_changes",
    "list_input_changes",
    "list_params_changes",
    "list_untracked",
    "delete_all_output",
    "delete_temp_output",
    "containerize",
    "generate_unit_tests",
    "export_cwl",
    "list_conda_envs",
    "conda_cleanup_envs",
    "conda_create_envs_only",
    "container_cleanup_images",
    "touch",
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the main process must know of its command line.

    Attributes:
        profile: folder of the profile, where the site facts are.
        dry_run: it shows what would be done.
        passive: it runs no job, so that nothing may be written.
    """

    profile: Path
    dry_run: bool
    passive: bool


def read_invocation(argv: Sequence[str] | None = None) -> Invocation:
    """Read the arguments of the Snakemake process that this is."""
    from snakemake.cli import parse_args

    # It says again which profile it takes; Snakemake has said so already.
    with redirect_stderr(StringIO()):
        _, arguments = parse_args(list(sys.argv[1:] if argv is None else argv))
    values = vars(arguments)
    passive = any(values.get(flag) not in (None, False) for flag in _PASSIVE)
    given = arguments.profile
    profiles = [given] if isinstance(given, str | Path) else list(given or ())
    folders = [Path(p).parent if Path(p).is_file() else Path(p) for p in profiles]
    named = [p for p in folders if str(p) != "none"]
    with_site = [p for p in named if (p / "site.yaml").exists()]
    # Of several profiles the last that has site facts counts, as for any other key.
    profile = (with_site or named or [Path(DEFAULT_PROFILE)])[-1]
    return Invocation(profile, bool(arguments.dryrun), passive)


def rerun_command(
    cell_id: str, *, experiment: str, override: str | None, profile: str
) -> str:
    """What measures a cell again; only what is not make's default is said."""
    given = {"CELL": cell_id}
    if experiment != DEFAULT_EXPERIMENT:
        given["EXPERIMENT"] = experiment
    if override is not None:
        given["OVERRIDE"] = override
    if profile != DEFAULT_PROFILE:
        given["PROFILE"] = profile
    return shlex.join(["make", "rerun", *(f"{k}={v}" for k, v in given.items())])
