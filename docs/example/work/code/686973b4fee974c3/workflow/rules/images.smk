# Images for the cells of an experiment. The main process finds those that are missing or
# out of date (launch/images/store.py); each is built or pulled, and a note says whether.


def get_images(wildcards):
    """The notes about all images that the chosen cells need and that must be made."""
    return need_files(RUN, IMAGE)


rule images:
    input:
        get_images,
    localrule: True
    # Fails if one of them did.
    shell:
        '! grep -h \'"reason": "\' {input} /dev/null'


rule image:
    output:
        str(LAYOUT.need("image.{image}")),
    log:
        "logs/images/{image}.log",
    localrule: True
    params:
        python=sys.executable,
        settings=json.dumps({key: RUN.plan.site[key] for key in SETTINGS}),
    message:
        "making the image {wildcards.image}"
    # exec, so that a signal to Snakemake's child ends the build.
    shell:
        "exec {params.python:q} -m rankbench.launch.images {wildcards.image:q}"
        " --settings {params.settings:q} --log {log:q}"
