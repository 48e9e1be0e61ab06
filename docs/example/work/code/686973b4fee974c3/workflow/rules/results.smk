# The table is a function of plan and records. It is made when a job has ended or the
# plan has changed, after a failure, and by `rankbench table`.


def get_plan(wildcards):
    """The plan; none in a dry run before the first run."""
    return [str(LAYOUT.plan)] if LAYOUT.plan.exists() else []


def with_caption(file):
    """A result, with its place in `snakemake --report` if it is a table or a plot."""
    if file == str(LAYOUT.report):
        return report(file, caption="../report/result.rst", category="Results")
    if file in PLOT_FILES and file.endswith(".svg"):
        return report(file, caption="../report/plot.rst", category="Plots")
    return file


rule table:
    input:
        summary_files(RUN),
        job_files(RUN),
        plan=get_plan,
    output:
        [with_caption(file) for file in RESULTS],
    log:
        str(LAYOUT.log("table")),
    localrule: True
    params:
        python=sys.executable,
        results=str(LAYOUT.root),
        options=TABLE_OPTIONS,
    message:
        "writing {params.results}/report.html"
    shell:
        "{params.python:q} -m rankbench.cli table {params.results:q}"
        " {params.options}"
        " > {log:q} 2>&1"
