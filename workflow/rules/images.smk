# Images for the cells of an experiment. An image is built or pulled if it is missing or
# out of date. The main process writes a request for each image; Snakemake remakes the
# image if its request is newer (launch/images/store.py).


def get_image_request(wildcards):
    """The request of an image; none if a dry run has not written it."""
    return image_inputs(RUN, wildcards.image)


def get_images(wildcards):
    """All images that the chosen cells need."""
    return image_files(RUN)


rule images:
    input:
        get_images,


rule image:
    input:
        get_image_request,
    output:
        # `update` keeps the old image until a new one is built.
        update(str(RUN.image_dir / "{image}.json")),
    log:
        "logs/images/{image}.log",
    localrule: True
    params:
        python=sys.executable,
        images=str(RUN.image_dir),
        mirror=RUN.plan.site["debian_mirror"],
        # Plans of earlier versions do not have this key.
        torch_index=RUN.plan.site.get("torch_index", "auto"),
        key=signing_key(RUN),
    message:
        "making the image {wildcards.image}"
    # exec, so that a signal to Snakemake's child ends the build.
    shell:
        "exec {params.python:q} -m rankbench.launch.images build {wildcards.image:q}"
        " --image-dir {params.images:q} --mirror {params.mirror:q}"
        " --torch-index {params.torch_index:q} {params.key:q} --log {log:q}"
