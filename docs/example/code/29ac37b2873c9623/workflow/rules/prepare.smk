# Data sets, prepared once as plain array files, so that ranks need no library for them.


rule prepare:
    input:
        data_files(RUN),


rule prepare_data:
    output:
        str(RUN.data_dir / "{data}.npz"),
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
        " --root {params.root:q} --log {log:q} 2>&1 | tee {log:q}"
