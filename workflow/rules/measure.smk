# One job per cell: it launches what the wanted attempt still lacks, and ends well for
# every typed status. Records are no outputs, so Snakemake never deletes one.


def get_inputs(wildcards):
    """Request, data and image of a cell."""
    return RUN.inputs_of(wildcards.cell)


def get_request(wildcards):
    return get_inputs(wildcards)["request"]


def get_data(wildcards):
    return get_inputs(wildcards)["data"]


def get_image(wildcards):
    return get_inputs(wildcards)["image"]


rule cell:
    input:
        request=get_request,
        data=ancient(get_data),
        # A new image makes what was measured stale; it measures nothing by itself.
        image=ancient(get_image),
    output:
        str(LAYOUT.summary("{cell}")),
    log:
        str(LAYOUT.root / "logs" / "{cell}.log"),
    params:
        python=sys.executable,
        results=str(LAYOUT.root),
    # exec: the supervisor must be Snakemake's own child, so that it notices if it dies.
    shell:
        "exec {params.python:q} -m rankbench.launch {params.results:q}"
        " {wildcards.cell:q} --log {log:q}"
