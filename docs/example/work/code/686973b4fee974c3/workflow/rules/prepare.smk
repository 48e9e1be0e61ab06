# Data sets, prepared once as plain array files, so that ranks need no library for them.
# As for an image, the rule makes a note, and succeeds even if the data set could not be
# made: the jobs leave out the cells that need it, and the other cells do not wait.


rule prepare:
    input:
        need_files(RUN, DATA),
    localrule: True
    # Fails if one of them did.
    shell:
        '! grep -h \'"reason": "\' {input} /dev/null'


rule data:
    output:
        str(LAYOUT.need("data.{data}")),
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
