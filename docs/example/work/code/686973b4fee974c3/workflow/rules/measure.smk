# A job measures a group of cells, most often of one: `allocation` of the
# experiment says which (src/rankbench/project/jobs.py). It runs the launches that attempts
# still lack, writes the summary of each of its cells, and exits with 0 for every typed
# status. Records and summaries are not outputs, so Snakemake never deletes them.

# The plugin writes the rule and its wildcards into the comment of a Slurm job. The
# experiment is a wildcard so that the comment names it (launch/hosts/slurm.py).
ANY_LAYOUT = Layout(LAYOUT.root.with_name("{experiment}"))


def get_inputs(wildcards):
    """What the job before leaves; notes about images and data that cells need."""
    before, notes = job_inputs(RUN, wildcards.job)
    # A new image makes records stale, but it does not start a measurement.
    return before + [ancient(file) for file in notes]


# Part of the command's text, not params: Snakemake formats params three times per job.
# exec makes the supervisor Snakemake's own child, so that it notices when Snakemake dies.
MEASURE = as_text(
    *with_setup(RUN, [sys.executable, "-m", "rankbench.launch", str(LAYOUT.root)])
)


rule job:
    input:
        get_inputs,
    output:
        # Whether a cell is measured is told by its summary. So the file lives until the
        # table is made, and an old one never says that a job is done.
        temp(str(ANY_LAYOUT.job("{job}"))),
    # The command knows this path, too, and appends to the file.
    log:
        str(ANY_LAYOUT.log("{job}")),
    # launch/hosts/slurm_resources.py explains them.
    resources:
        **rule_resources(RUN),
    message:
        "measuring {wildcards.job}"
    shell:
        f"exec {MEASURE} {{wildcards.job:q}}"


# The hosts of such a job are separate jobs, which its supervisor submits from here.
use rule job as job_here with:
    wildcard_constraints:
        job=jobs_here(RUN),
    localrule: True


ruleorder: job_here > job
