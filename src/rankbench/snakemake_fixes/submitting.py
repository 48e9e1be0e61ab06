"""Corrects how Snakemake's Slurm plugin submits jobs, and reports refusals."""

from __future__ import annotations

import re
from typing import Any

from rankbench.environ import submit_from_here
from rankbench.failures import JOB, Need, note_attempt
from rankbench.record import Layout, read_json
from rankbench.snakemake_fixes import check_version

_SBATCH_SAID = re.compile(r"The error message was '(.*?)'\.\n", re.DOTALL)
# Words in a message of sbatch -> what to do.
_REMEDIES = {
    r"invalid partition|partition": "correct partition in site.yaml",
    r"account": "correct account in site.yaml",
    r"qos": "correct qos in site.yaml",
    r"gres|generic resource": "correct gres or devices_per_node in site.yaml",
    r"time limit": "set max_job_minutes in site.yaml, or lower time_limit",
    r"memory": "correct memory in site.yaml",
    r"node count|node configuration": "correct nodes, cores or sbatch in site.yaml",
    r"feature|reservation|license|option|switch|invalid --": "correct sbatch in "
    "site.yaml",
    r"timed out|unable to contact|connect": "try `scontrol ping`, and run again later",
    r"limit": "lower `jobs` in the profile's config.yaml",
}


def submit_well(layout: Layout) -> None:
    """Patch three faults of the plugin in this process.

    It names the reason of a refused job only amid its own output, so nobody who reads
    the table learns it. It refuses options of sbatch, and types of GPUs with a hyphen,
    which Slurm itself makes. And it deletes the variable that names Slurm's
    configuration.

    Args:
        layout: of the run, whose rows tell why their jobs were refused.
    """
    check_version("snakemake-executor-plugin-slurm", 2)
    import snakemake_executor_plugin_slurm as plugin

    submit_from_here()
    plugin.delete_slurm_environment = submit_from_here
    plugin.set_gres_string = add_options
    report = plugin.Executor._report_job_error_threadsafe

    def report_with_note(executor: Any, info: Any, msg: str) -> None:
        name = getattr(info.job.wildcards, "job", None)
        job = read_json(layout.agenda)["jobs"].get(name)
        for cell in job["cells"] if job else ():
            note_attempt(Need(JOB, cell), explain_refusal(msg), "")
        report(executor, info, msg)

    plugin.Executor._report_job_error_threadsafe = report_with_note


def add_options(job: Any) -> str:
    """What the plugin adds to the command of sbatch: options of job_resources."""
    return f" {job.resources.get('sbatch', '')}"


def explain_refusal(message: str) -> str:
    """What sbatch said, in one line, with a remedy.

    Args:
        message: of the plugin, with the whole command after it.
    """
    found = _SBATCH_SAID.search(message)
    said = found[1] if found else message.partition("\n")[0]
    lines = [re.sub(r"^sbatch: (error: )?", "", line) for line in said.splitlines()]
    why = "; ".join(dict.fromkeys(line for line in lines if line)) or "no message"
    for words, remedy in _REMEDIES.items():
        if re.search(words, why, re.IGNORECASE):
            return f"{why}: {remedy}"
    return why
