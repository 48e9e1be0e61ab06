"""Patches for faults of Snakemake and its Slurm plugin."""

from __future__ import annotations

import _thread
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rankbench.environ import submit_from_here
from rankbench.failures import JOB, Need, note_attempt
from rankbench.record import Layout, read_json
from rankbench.schedulers import seconds_between_looks


def check_version(package: str, major: int) -> None:
    """Check that the installed version is one that rankbench knows how to patch.

    Raises:
        ValueError: it is not; the message says which version to install.
    """
    found = version(package)
    if int(found.partition(".")[0]) != major:
        raise ValueError(
            f"{package} {found}: rankbench corrects faults of version {major} at run "
            f"time and knows no other version: pip install '{package}=={major}.*'"
        )


# --- SIGTERM --------------------------------------------------------------------------


def take_sigterm_in_a_thread() -> None:
    """Patch Snakemake's scheduler to handle SIGTERM in a separate thread.

    Its handler takes locks that the interrupted thread may hold, for example while it
    finishes a job. Then Snakemake would hang, and outlive its Slurm job if Slurm tracks
    processes by their parents. A separate thread can wait for the locks.
    """
    check_version("snakemake", 9)
    from snakemake.scheduling.job_scheduler import JobScheduler

    handler = JobScheduler.exit_gracefully

    def handle(scheduler: Any, *_: object) -> None:
        # Not threading.Thread, because its start takes locks as well.
        _thread.start_new_thread(handler, (scheduler,))

    JobScheduler.exit_gracefully = handle


# --- how the plugin looks for its jobs ------------------------------------------------

# States of jobs that have ended without success.
_FAILED = (
    *("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    "TIMEOUT",
)
# So often must Slurm say that a job is not there: a new one may not be known yet.
_DOUBTS = 2


def look_steadily(read_states: Callable[[], Mapping[str, str] | None]) -> None:
    """Replace how the plugin looks for its jobs: too late, too much, or never again.

    It would wait longer after each look, up to three minutes, and so notice the end of
    a short cell much too late; ask for the whole configuration of Slurm each time; drop
    all jobs if Slurm does not answer once (its controller restarts); and wait forever
    for a job that was preempted, or that Slurm has forgotten. Here a look is one
    question about all jobs. A job that is no more has ended: well if its outputs are
    there.

    Args:
        read_states: asks for the state of each job, by its number; None if Slurm does
            not answer.
    """
    check_version("snakemake-executor-plugin-slurm", 2)
    from snakemake_executor_plugin_slurm import Executor

    doubts = Counter[str]()
    since = time.monotonic()  # a job has last ended

    async def look(executor: Any, jobs: Sequence[Any]) -> AsyncIterator[Any]:
        nonlocal since
        left, states = 0, read_states() if jobs else {}
        if states is None:
            # Snakemake's log handler does not fill in arguments.
            said = f"Slurm did not report on {len(jobs)} jobs"
            executor.logger.warning(f"{said}: they will be checked again")
        for job in jobs:
            number, state = job.external_jobid, "unknown"
            if states is not None:
                state = states.get(number, "PREEMPTED")
                doubts[number] = doubts[number] + 1 if state == "PREEMPTED" else 0
            is_gone = doubts[number] >= _DOUBTS and states is not None
            is_made = is_gone and all(Path(f).exists() for f in job.job.output)
            if state == "COMPLETED" or is_made:
                executor.report_job_success(job)
            elif state in _FAILED or is_gone:
                executor.report_job_error(job)
            else:
                left += 1
                yield job
        settings = executor.workflow.executor_settings
        seconds: float = settings.init_seconds_before_status_checks
        if left < len(jobs) or not jobs:
            since = time.monotonic()
        else:
            general = executor.workflow.remote_execution_settings
            least: float = general.seconds_between_status_checks
            seconds = seconds_between_looks(least, time.monotonic() - since)
        executor.next_seconds_between_status_checks = seconds

    Executor.check_active_jobs = look


# --- how the plugin submits jobs, and reports refusals --------------------------------

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


def submit_well(layout: Layout, why_ended: Callable[[str], str]) -> None:
    """Patch four faults of the plugin in this process.

    It names the reason of a refused job only amid its own output, so nobody who reads
    the table learns it, and does not ask why Slurm ended a job. It refuses options of
    sbatch, and types of GPUs with a hyphen, which Slurm itself makes. And it deletes
    the variable that names Slurm's configuration.

    Args:
        layout: of the run, whose rows tell why their jobs were refused, or ended.
        why_ended: asks Slurm about a job, and says it in words.
    """
    check_version("snakemake-executor-plugin-slurm", 2)
    import snakemake_executor_plugin_slurm as plugin

    submit_from_here()
    plugin.delete_slurm_environment = submit_from_here
    plugin.set_gres_string = add_options
    refuse = plugin.Executor._report_job_error_threadsafe
    report = plugin.Executor.report_job_error

    def refuse_with_note(executor: Any, info: Any, msg: str) -> None:
        note_end(info, f"its job could not be submitted: {explain_refusal(msg)}")
        refuse(executor, info, msg)

    def report_with_note(executor: Any, info: Any, *args: Any, **named: Any) -> None:
        # Its supervisor may be lost with its host: Slurm is asked once, here. It knows
        # no job that was refused.
        if info.external_jobid is not None:
            note_end(info, why_ended(info.external_jobid))
        report(executor, info, *args, **named)

    def note_end(info: Any, why: str) -> None:
        name = str(getattr(info.job.wildcards, "job", None))
        job = read_json(layout.agenda)["jobs"].get(name)
        for cell in job["cells"] if job else ():
            note_attempt(Need(JOB, cell), why, layout.log(name))

    plugin.Executor._report_job_error_threadsafe = refuse_with_note
    plugin.Executor.report_job_error = report_with_note


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
