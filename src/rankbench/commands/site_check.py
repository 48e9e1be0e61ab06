"""The command `rankbench site-check`."""

from __future__ import annotations

import argparse
from typing import Any

from rankbench.commands._execute import run_target
from rankbench.commands.base import (
    DEFAULT_CLUSTER,
    OK,
    add_experiment,
    add_parser,
    argv_for,
    plan_run,
    print_json,
    require_workflow,
)
from rankbench.matrix.site import SLURM

ABOUT = """\
Look at the hosts of a cluster by a short job, and say where they are not as site.yaml
says, with what to do."""

EXAMPLES = f"""\
examples:
  rankbench site-check --profile {DEFAULT_CLUSTER}
  rankbench site-check --profile {DEFAULT_CLUSTER} --json

exit status: 0 all is as it should be, 1 something is not, 2 bad input"""


def add(commands: Any) -> None:
    """Add it to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "site-check",
        check_site,
        summary="are the hosts as site.yaml says?",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="whether all is well; what is not is said on stderr",
    )
    add_experiment(parser, profile=DEFAULT_CLUSTER)


def check_site(arguments: argparse.Namespace) -> int:
    """Check them by Snakemake; returns the exit status.

    Raises:
        ValueError: the site has no Slurm, or packages are missing.
    """
    run = plan_run(arguments)
    if run.plan.site["scheduler"] != SLURM:
        raise ValueError(
            f"{arguments.profile}/site.yaml has no scheduler: there are no hosts to "
            "check; name the profile of a cluster, such as --profile slurm_profile"
        )
    require_workflow(run)
    status = run_target(argv_for(arguments, targets=["site_check"]))
    if arguments.json:
        print_json({"well": status == OK})
    return status
