# Reads the experiment and the site once. The main process makes and writes the plan, unless
# `rankbench run` has done so; jobs read it. A dry run writes nothing.
import gc
import json
import os
import re
import shlex
import subprocess
import sys

# Snakemake puts the project first, where yaml.py, for example, would be taken for a module.
sys.path[:] = [
    place for place in sys.path if place != os.path.abspath(workflow.basedir)
]

from snakemake.exceptions import WorkflowError

from rankbench.environ import begin_safely
from rankbench.failures import DATA, IMAGE
from rankbench.invocation import read_invocation
from rankbench.launch.hosts.slurm import read_states, why_job_ended
from rankbench.launch.hosts.slurm_resources import check_resources
from rankbench.launch.images.store import SETTINGS
from rankbench.project.preview import Preview
from rankbench.project.run import open_run, reopen_run
from rankbench.project.start import begin, end_with_parent, has_begun
from rankbench.project.jobs import (
    job_files,
    job_inputs,
    jobs_here,
    need_files,
    rule_resources,
    summary_files,
    with_setup,
)
from rankbench.record import PLOTS, Layout
from rankbench.schedulers import scheduler_of
from rankbench.snakemake_fixes import (
    look_steadily,
    submit_well,
    take_sigterm_in_a_thread,
)


def get_run():
    """The plan of this experiment, and the requested cells."""
    if not workflow.is_main_process:
        return reopen_run()
    invocation = read_invocation()
    if has_begun():
        end_with_parent()
        run = reopen_run()
    else:
        values = {**config, **invocation.config}
        starts = not invocation.passive
        run = open_run(values, profile=invocation.profile, write=starts, probe=starts)
        if invocation.dry_run or not invocation.passive:
            print(*Preview(run).lines(), sep="\n", file=sys.stderr)
        if not invocation.passive:
            begin(run, measures=invocation.measures)
    if not invocation.passive and scheduler_of(run.plan.site).extra == "slurm":
        look_steadily(read_states)
        submit_well(run.layout, why_job_ended)
    return run


def as_text(*words):
    """Words of a shell command, in which Snakemake finds no fields."""
    return shlex.join(words).replace("{", "{{").replace("}", "}}")


def write_table():
    """Write the table from the existing records; after a failure its rule does not run."""
    command = [sys.executable, "-m", "rankbench.cli", "table", *TABLE_OPTIONS]
    subprocess.run([*command, str(LAYOUT.root)], stdout=subprocess.DEVNULL)


begin_safely()
try:
    # Needed in jobs as well, because Slurm ends them by SIGTERM.
    take_sigterm_in_a_thread()
    RUN = get_run()
except (ValueError, OSError) as error:
    raise WorkflowError(str(error)) from None

# The plan and Snakemake's jobs live as long as this process. Searching them again and
# again for garbage would take a tenth of the time of a dry run with 10,000 cells.
gc.freeze()
gc.set_threshold(100_000, 50, 50)

LAYOUT = RUN.layout

RESULTS = [str(LAYOUT.table(suffix)) for suffix in ("csv", "md", "html", "tex")]
RESULTS += [str(LAYOUT.readme), str(LAYOUT.report)]
if RUN.plan.experiment["study"]:
    RESULTS += [str(LAYOUT.section("published"))]
PLOT_FILES = [
    str(LAYOUT.plot(name, suffix)) for name in PLOTS for suffix in ("svg", "png")
]
TABLE_OPTIONS = []
if RUN.plots:
    RESULTS += PLOT_FILES
else:
    TABLE_OPTIONS += ["--no-plots"]


wildcard_constraints:
    experiment=re.escape(RUN.plan.name),
    job=r"[^/]+",
    data=r"[a-z0-9_]+",
    image=r"[^/]+",
