# Images for the cells of an experiment. The main process finds those that are missing or
# out of date (launch/images/store.py); each is built or pulled, and a note says whether.


def get_images(wildcards):
    """The notes about all images that the chosen cells need and that must be made."""
    return need_files(RUN, IMAGE)


rule images:
    input:
        get_images,
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
        images=str(RUN.image_dir),
        mirror=RUN.plan.site["debian_mirror"],
        torch_index=RUN.plan.site["torch_index"],
        key=["--key", key] if (key := RUN.plan.site["image_key"]) else [],
    message:
        "making the image {wildcards.image}"
    # exec, so that a signal to Snakemake's child ends the build.
    shell:
        "exec {params.python:q} -m rankbench.launch.images build {wildcards.image:q}"
        " --image-dir {params.images:q} --mirror {params.mirror:q}"
        " --torch-index {params.torch_index:q} {params.key:q} --log {log:q}"
