# A cell has a job of its own, or shares one with other cells, whose launches then take
# turns (`order` and `allocation` of the experiment). A job runs the launches that attempts
# still lack, and exits with 0 for every typed status. Records are not outputs, so Snakemake
# never deletes them.

# The plugin writes the rule and its wildcards into the comment of a Slurm job. The
# experiment is a wildcard so that the comment names it (launch/hosts/slurm.py).
ANY_LAYOUT = Layout(LAYOUT.root.with_name("{experiment}"))


def any_of(cells):
    """A pattern that matches any of these cells; without cells it matches nothing."""
    return "|".join(map(re.escape, cells)) or "(?!)"


# A new image makes records stale, but it does not start a measurement: hence ancient().
NEEDED = {
    cell: [ancient(file) for file in files] for cell, files in needed_files(RUN).items()
}


def get_inputs(wildcards):
    """The request of a cell, its data and its image."""
    return request_file(RUN, wildcards.cell) + NEEDED[wildcards.cell]


def get_job_inputs(wildcards):
    """The requests of the cells that share a job; that data and images were attempted."""
    requests, attempted = job_inputs(RUN, wildcards.job)
    return requests + [ancient(file) for file in attempted]


# Part of the command's text, not params: Snakemake formats params three times per job.
PYTHON, ROOT = [sys.executable, "-m", "rankbench.launch"], str(LAYOUT.root)
MEASURE = as_text(*PYTHON, "cell", ROOT)
MEASURE_JOB = as_text(*PYTHON, "job", ROOT)
SUMMARISE = as_text(*PYTHON, "summary", ROOT)

# Cell -> the job after which it is measured.
SHARED = last_jobs(RUN)

# Each cell matches one rule: a second one would double the time of a dry run.
ANY, NONE = r"[^/]+", "(?!)"


def get_job_of_cell(wildcards):
    """The request of a cell that shares a job, and what the job leaves."""
    job = SHARED.get(wildcards.cell)
    after = [] if job is None else [str(LAYOUT.job(job))]
    return request_file(RUN, wildcards.cell) + after


rule cell:
    input:
        get_inputs,
    output:
        str(ANY_LAYOUT.summary("{cell}")),
    # The command knows this path, too, and appends to the file.
    log:
        str(ANY_LAYOUT.log("{cell}")),
    wildcard_constraints:
        cell=NONE if SHARED else ANY,
    # launch/hosts/slurm_resources.py explains them.
    resources:
        **rule_resources(RUN, "cell", cell_resources),
    message:
        "measuring {wildcards.cell}"
    # exec makes the supervisor Snakemake's own child, so that it notices when Snakemake
    # dies.
    shell:
        f"exec {MEASURE} {{wildcards.cell:q}}"


# The hosts of such a cell are separate jobs, which its supervisor submits from here.
use rule cell as cell_of_job_array with:
    wildcard_constraints:
        cell=any_of(array_cells(RUN)),
    localrule: True


# Makes data or an image for a shared job. If that fails, the job leaves out the cells that
# need it, and the other cells do not wait.
rule attempt_data:
    output:
        str(LAYOUT.attempted("data.{data}")),
    log:
        "logs/prepare/{data}.log",
    localrule: True
    params:
        python=sys.executable,
        root=str(RUN.data_dir),
    message:
        "preparing {wildcards.data}"
    shell:
        "{params.python:q} -m rankbench.rank.data.prepare {wildcards.data:q}"
        " --root {params.root:q} --attempted {output:q} --log {log:q} 2>&1 | tee {log:q}"


rule attempt_image:
    output:
        str(LAYOUT.attempted("image.{image}")),
    log:
        "logs/images/{image}.log",
    localrule: True
    params:
        python=sys.executable,
        images=str(RUN.image_dir),
        mirror=RUN.plan.site["debian_mirror"],
        torch_index=RUN.plan.site.get("torch_index", "auto"),
        key=signing_key(RUN),
    message:
        "making the image {wildcards.image}"
    shell:
        "exec {params.python:q} -m rankbench.launch.images build {wildcards.image:q}"
        " --image-dir {params.images:q} --mirror {params.mirror:q}"
        " --torch-index {params.torch_index:q} {params.key:q} --attempted {output:q} --log {log:q}"


# Measures the cells that share a job, and leaves a note of which launches suffice.
rule job:
    input:
        get_job_inputs,
    output:
        str(ANY_LAYOUT.job("{job}")),
    log:
        str(ANY_LAYOUT.job_log("{job}")),
    resources:
        **rule_resources(RUN, "job", shared_resources),
    message:
        "measuring the cells of {wildcards.job}"
    shell:
        f"exec {MEASURE_JOB} {{wildcards.job:q}}"


# Finds nothing missing, and writes the summary of a cell.
rule cell_of_job:
    input:
        get_job_of_cell,
    output:
        str(ANY_LAYOUT.summary("{cell}")),
    # No log: Snakemake would remove the one of the cell, to which the job has written.
    wildcard_constraints:
        cell=ANY if SHARED else NONE,
    localrule: True
    message:
        "summary of {wildcards.cell}"
    shell:
        f"exec {SUMMARISE} {{wildcards.cell:q}}"


ruleorder: cell_of_job_array > cell_of_job > cell
