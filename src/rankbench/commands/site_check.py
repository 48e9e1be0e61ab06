"""The command `rankbench site-check`."""

from __future__ import annotations

import argparse
import os

from rankbench.commands._base import argv_for, plan_run, require_workflow
from rankbench.commands._execute import run_target
from rankbench.commands._options import FINDING, OK, command, print_json
from rankbench.project.jobs import why_too_long
from rankbench.say import say
from rankbench.schedulers import scheduler_of


@command(
    options="EXPERIMENT --override --site",
    examples=("site-check --site slurm_profile", "site-check --json"),
    exits="0 no difference found, 1 a difference found, 2 bad input",
    json_holds="whether all is well; differences go to stderr",
)
def check_site(arguments: argparse.Namespace) -> int:
    """Inspect the hosts of a cluster in a short job. Print where they differ from
    site.yaml, and how to correct it.

    Raises:
        ValueError: the site has no Slurm, or packages are missing.
    """
    arguments.site = arguments.site or os.environ.get(
        "SNAKEMAKE_PROFILE", "slurm_profile"
    )
    run = plan_run(arguments)
    if not scheduler_of(run.plan.site).has_hosts:
        raise ValueError(
            f"{arguments.site}/site.yaml has no scheduler: there are no hosts to "
            "check; give the profile of a cluster, such as --site slurm_profile"
        )
    require_workflow(run)
    status = run_target(argv_for(arguments, "site_check"))
    if why := why_too_long(run):
        say(f"FAULT {why}", aside=True)
        status = status or FINDING
    if arguments.json:
        print_json({"well": status == OK})
    return status
