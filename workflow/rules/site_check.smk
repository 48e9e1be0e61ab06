# Whether the hosts are as site.yaml says: one short job over all of them, as a cell is
# one, and a judgement with remedies.


rule site_check:
    input:
        str(LAYOUT.root / "hosts.json"),
    log:
        "logs/site_check.log",
    localrule: True
    params:
        python=sys.executable,
        plan=str(LAYOUT.plan),
    message:
        "checking the hosts"
    # It removes its input: each check looks anew.
    shell:
        "{params.python:q} -m rankbench.launch.site.check {params.plan:q} {input:q}"
        " 2>&1 | tee {log:q}"


rule hosts:
    output:
        str(LAYOUT.root / "hosts.json"),
    log:
        "logs/hosts.log",
    resources:
        **RUN.check_resources(),
    params:
        python=sys.executable,
        plan=str(LAYOUT.plan),
    message:
        "looking at the hosts"
    shell:
        "{params.python:q} -m rankbench.launch.site.inventory {params.plan:q} --out {output:q}"
        " > {log:q} 2>&1"
