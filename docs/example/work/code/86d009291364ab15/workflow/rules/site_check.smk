# Checks whether the hosts are as site.yaml says: one short job on all hosts, then a report
# with remedies.


rule site_check:
    input:
        str(LAYOUT.work / "hosts.json"),
    log:
        "logs/site_check.log",
    localrule: True
    params:
        python=sys.executable,
        plan=str(LAYOUT.plan),
    message:
        "checking the hosts"
    # The command removes its input, so that each check inspects the hosts again.
    shell:
        "{params.python:q} -m rankbench.launch.site.hosts {params.plan:q} --check {input:q}"
        " 2>&1 | tee {log:q}"


rule hosts:
    output:
        str(LAYOUT.work / "hosts.json"),
    log:
        "logs/hosts.log",
    resources:
        **check_resources(RUN.plan.site, RUN.feasible),
    params:
        inspect=with_setup(RUN, [sys.executable, "-m", "rankbench.launch.site.hosts"]),
        plan=str(LAYOUT.plan),
    message:
        "inspecting the hosts"
    shell:
        "{params.inspect:q} {params.plan:q} --out {output:q} > {log:q} 2>&1"
