# The web site: a page with its data and downloads, which needs no server.


rule publish:
    input:
        str(LAYOUT.root / "site" / "index.html"),


rule site:
    input:
        RESULTS,
        job_files(RUN),
    output:
        str(LAYOUT.root / "site" / "index.html"),
    log:
        str(LAYOUT.log("publish")),
    localrule: True
    params:
        python=sys.executable,
        results=str(LAYOUT.root),
    message:
        "writing {params.results}/site/index.html"
    shell:
        "{params.python:q} -m rankbench.cli publish {params.results:q}"
        " > {log:q} 2>&1"
