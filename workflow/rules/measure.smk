# One job per cell. It runs the launches that the attempt still lacks, and exits with 0 for
# every typed status. Records are not outputs, so Snakemake never deletes them.

# The plugin writes the rule and its wildcards into the comment of a Slurm job. The
# experiment is a wildcard so that the comment names it (launch/hosts/slurm_queue.py).
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


# Part of the command's text, not params: Snakemake formats params three times per job.
LAUNCH = as_text(sys.executable, "-m", "rankbench.launch", str(LAYOUT.root))


rule cell:
    input:
        get_inputs,
    output:
        str(ANY_LAYOUT.summary("{cell}")),
    # The command knows this path, too, and appends to the file.
    log:
        str(ANY_LAYOUT.log("{cell}")),
    # launch/hosts/slurm_resources.py explains them.
    resources:
        **rule_resources(RUN),
    message:
        "measuring {wildcards.cell}"
    # exec makes the supervisor Snakemake's own child, so that it notices when Snakemake
    # dies.
    shell:
        f"exec {LAUNCH} {{wildcards.cell:q}}"


# The hosts of such a cell are separate jobs, which its supervisor submits from here.
use rule cell as cell_of_job_array with:
    wildcard_constraints:
        cell=any_of(array_cells(RUN)),
    localrule: True


ruleorder: cell_of_job_array > cell
