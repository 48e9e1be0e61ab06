# Images: what an experiment's cells run in. Each is built, or pulled, if it is not there
# as it is wanted; what is wanted the main process writes into the request, whose time
# says whether something has changed (launch/images/store.py).


def get_image_request(wildcards):
    """What is wanted of an image, once that is written: a dry run writes nothing."""
    return RUN.image_input(wildcards.image)


def get_images(wildcards):
    """All images that the chosen cells run in."""
    return RUN.images()


rule images:
    input:
        get_images,


rule image:
    input:
        get_image_request,
    output:
        # Not deleted before: a build that fails leaves the image that was there.
        update(str(RUN.image_dir / "{image}.json")),
    log:
        "logs/images/{image}.log",
    localrule: True
    params:
        python=sys.executable,
        images=str(RUN.image_dir),
        mirror=RUN.plan.site["debian_mirror"],
        # A plan of an earlier version has none.
        torch_index=RUN.plan.site.get("torch_index", "auto"),
    message:
        "making the image {wildcards.image}"
    # exec: what ends Snakemake's child must end the build.
    shell:
        "exec {params.python:q} -m rankbench.launch.images build {wildcards.image:q}"
        " --image-dir {params.images:q} --mirror {params.mirror:q}"
        " --torch-index {params.torch_index:q} --log {log:q}"
