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
from rankbench.schedulers import scheduler_of

ABOUT = """\
Inspect the hosts of a cluster in a short job. Print where they differ from site.yaml,
and how to correct it."""

EXAMPLES = f"""\
examples:
  rankbench site-check --profile {DEFAULT_CLUSTER}
  rankbench site-check --profile {DEFAULT_CLUSTER} --json

exit status: 0 no difference found, 1 a difference found, 2 bad input"""


def add(commands: Any) -> None:
    """Add the command to the parser of `rankbench`."""
    parser = add_parser(
        commands,
        "site-check",
        check_site,
        summary="check whether site.yaml describes the hosts correctly",
        about=ABOUT,
        examples=EXAMPLES,
        json_holds="whether all is well; differences go to stderr",
    )
    add_experiment(parser, profile=DEFAULT_CLUSTER)


def check_site(arguments: argparse.Namespace) -> int:
    """Check the hosts in a job of Snakemake; return the exit status.

    Raises:
        ValueError: the site has no Slurm, or packages are missing.
    """
    run = plan_run(arguments)
    if not scheduler_of(run.plan.site).has_hosts:
        raise ValueError(
            f"{arguments.profile}/site.yaml has no scheduler: there are no hosts to "
            "check; give the profile of a cluster, such as --profile slurm_profile"
        )
    require_workflow(run)
    status = run_target(argv_for(arguments, targets=["site_check"]))
    if arguments.json:
        print_json({"well": status == OK})
    return status
