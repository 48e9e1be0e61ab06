"""Patches for faults of Snakemake and its Slurm plugin."""

from __future__ import annotations

import _thread
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
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


# --- how the plugin polls its jobs ----------------------------------------------------


def look_steadily(has_ended: Callable[[str], bool]) -> None:
    """Patch four faults of the plugin: it looks too late, too much, or never again.

    After each check without an ended job, the plugin waits ten seconds longer, up to
    three minutes. So it would notice the end of a short cell much too late. The patch
    waits `seconds-between-status-checks` of Snakemake, and longer only in proportion to
    what has been waited for already.

    Before each check, the plugin asks for the whole configuration of Slurm. The patch
    lets it ask until it gets an answer.

    When Slurm does not answer (its controller restarts, or is busy for long), the
    plugin drops all jobs and never checks them again, so Snakemake would wait forever.
    The patch checks a job again if a check did not report on it. The plugin also waits
    forever for a job that was preempted, and for one that Slurm has forgotten. The
    patch lets them end: well if its outputs are there.

    Args:
        has_ended: asks Slurm about a job; false if Slurm does not answer.
    """
    check_version("snakemake-executor-plugin-slurm", 2)
    import snakemake_executor_plugin_slurm as plugin

    _hold_the_pace(plugin.Executor)
    _lose_no_job(plugin, has_ended)
    plugin.get_min_job_age = _remember(plugin.get_min_job_age)


def _remember(ask: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that asks until there is an answer, and then keeps it."""
    kept: list[Any] = []

    def answer() -> Any:
        if not kept and (found := ask()) is not None:
            kept.append(found)
        return kept[0] if kept else None

    return answer


def _hold_the_pace(executor_class: Any) -> None:
    growing = executor_class.next_seconds_between_status_checks

    def seconds(executor: Any) -> float:
        settings = executor.workflow.remote_execution_settings
        least: float = settings.seconds_between_status_checks
        wanted: float = growing.fget(executor)
        quiet = time.monotonic() - getattr(executor, "_quiet_since", time.monotonic())
        return min(wanted, seconds_between_looks(least, quiet))

    def note(executor: Any, wanted: float) -> None:
        # The plugin counts from the beginning again when a job has ended.
        settings = executor.workflow.executor_settings
        initial = getattr(settings, "init_seconds_before_status_checks", 40)
        if wanted <= initial or not hasattr(executor, "_quiet_since"):
            executor._quiet_since = time.monotonic()
        growing.fset(executor, wanted)

    executor_class.next_seconds_between_status_checks = property(seconds, note)


# So often must Slurm say that a job is not there: a new one may not be known yet.
_DOUBTS = 2


def _lose_no_job(plugin: Any, has_ended: Callable[[str], bool]) -> None:
    executor_class, query = plugin.Executor, plugin.query_job_status
    ended: set[str] = set()
    # What Slurm has answered last: job -> state.
    told: list[dict[str, str]] = []
    doubts = Counter[str]()

    def remembering(report: Callable[..., None]) -> Callable[..., None]:
        def remember(executor: Any, job: Any, *args: Any, **kwargs: Any) -> None:
            ended.add(job.external_jobid)
            report(executor, job, *args, **kwargs)

        return remember

    for name in ("report_job_success", "report_job_error"):
        setattr(executor_class, name, remembering(getattr(executor_class, name)))
    look = executor_class.check_active_jobs

    async def look_at_all(executor: Any, jobs: Sequence[Any]) -> AsyncIterator[Any]:
        told.clear()
        left = [job async for job in look(executor, jobs)]
        known = {job.external_jobid for job in left} | ended
        if untold := [job for job in jobs if job.external_jobid not in known]:
            # Snakemake's log handler does not fill in arguments.
            said = f"Slurm did not report on {len(untold)} jobs"
            executor.logger.warning(f"{said}: they will be checked again")
        for job in left + untold:
            number = job.external_jobid
            if told:
                is_odd = told[-1].get(number) in (None, "PREEMPTED")
                is_over = is_odd and has_ended(number)
                doubts[number] = doubts[number] + 1 if is_over else 0
            if doubts[number] < _DOUBTS:
                yield job
            elif all(Path(file).exists() for file in job.job.output):
                executor.report_job_success(job)
            else:
                executor.report_job_error(job)

    async def ask(*args: Any) -> Any:
        answer = await query(*args)
        told.extend([answer[0]] if answer[0] is not None else [])
        return answer

    plugin.query_job_status = ask
    executor_class.check_active_jobs = look_at_all


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
