# One job per cell. It runs the launches that the attempt still lacks, and exits with 0 for
# every typed status. Records are not outputs, so Snakemake never deletes them.

# The plugin writes the rule and its wildcards into the comment of a Slurm job. The
# experiment is a wildcard so that the comment names it (launch/hosts/slurm_queue.py).
ANY_LAYOUT = Layout(LAYOUT.root.with_name("{experiment}"))


def any_of(cells):
    """A pattern that matches any of these cells; without cells it matches nothing."""
    return "|".join(map(re.escape, cells)) or "(?!)"


def get_inputs(wildcards):
    """Request, data and image of a cell."""
    return RUN.inputs_of(wildcards.cell)


def get_request(wildcards):
    return get_inputs(wildcards)["request"]


def get_data(wildcards):
    return get_inputs(wildcards)["data"]


def get_image(wildcards):
    return get_inputs(wildcards)["image"]


def get_resource(name):
    """A function that returns one resource of a cell's job; None omits the resource."""

    def get(wildcards):
        return RUN.resources_of(wildcards.cell).get(name)

    return get


rule cell:
    input:
        request=get_request,
        data=ancient(get_data),
        # A new image makes records stale, but it does not start a measurement.
        image=ancient(get_image),
    output:
        str(ANY_LAYOUT.summary("{cell}")),
    log:
        str(ANY_LAYOUT.log("{cell}")),
    # launch/hosts/slurm_resources.py explains them. Without Slurm there are none.
    resources:
        nodes=get_resource("nodes"),
        tasks=get_resource("tasks"),
        cpus_per_task=get_resource("cpus_per_task"),
        mem_mb=get_resource("mem_mb"),
        runtime=get_resource("runtime"),
        gres=get_resource("gres"),
        tasks_per_gpu=get_resource("tasks_per_gpu"),
        mpi=get_resource("mpi"),
        slurm_partition=get_resource("slurm_partition"),
        slurm_account=get_resource("slurm_account"),
        qos=get_resource("qos"),
        slurm_extra=get_resource("slurm_extra"),
    params:
        python=sys.executable,
        results=str(LAYOUT.root),
    message:
        "measuring {wildcards.cell}"
    # exec makes the supervisor Snakemake's own child, so that it notices when Snakemake
    # dies.
    shell:
        "exec {params.python:q} -m rankbench.launch {params.results:q}"
        " {wildcards.cell:q} --log {log:q}"


# The hosts of such a cell are separate jobs, which its supervisor submits from here.
use rule cell as cell_of_job_array with:
    wildcard_constraints:
        cell=any_of(RUN.job_arrays()),
    localrule: True


ruleorder: cell_of_job_array > cell
