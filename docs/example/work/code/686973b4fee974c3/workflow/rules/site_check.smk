# Checks whether the hosts are as site.yaml says: one short job on all hosts, then a report
# with remedies.


rule site_check:
    input:
        str(LAYOUT.work / "hosts.txt"),
    log:
        "logs/site_check.log",
    localrule: True
    message:
        "checking the hosts"
    # The input goes, so that each check inspects the hosts again.
    shell:
        "mv {input:q} {log:q}; cat {log:q}; ! grep -q '^FAULT ' {log:q}"


rule hosts:
    output:
        str(LAYOUT.work / "hosts.txt"),
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
        "{params.inspect:q} {params.plan:q} > {output:q} 2> {log:q}"
