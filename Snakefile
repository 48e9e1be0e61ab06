# rankbench: from an experiment to a results table.
#
#   snakemake --profile local_profile                                    measure on this machine
#   snakemake --profile local_profile -n                                 show what would run
#   snakemake --profile local_profile --config experiment=studies/x.yaml                   a study
#   snakemake --profile local_profile --config experiment=studies/x.yaml override=laptop   a smaller version
#   snakemake --profile local_profile --config only='strategy=ddp'       a part of the matrix
#   snakemake --profile local_profile --config rerun=CELL                measure a cell again
#   snakemake --profile local_profile --config plots=false               no plots, which is faster
#   snakemake --profile local_profile images                             make the images only
#   snakemake --profile local_profile publish                            make a web site
#   snakemake --profile slurm_profile                                    measure on a cluster (docs/slurm.md)
#   snakemake --profile slurm_profile site_check                         compare hosts with site.yaml
from snakemake.utils import min_version

min_version("9.17.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/images.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/results.smk"
include: "workflow/rules/publish.smk"
include: "workflow/rules/site_check.smk"


rule all:
    default_target: True
    input:
        RESULTS,
        # The table may exist already, after a failure or a run of a part of the matrix.
        job_files(RUN),
    message:
        "all requested cells and tables are done"


onerror:
    write_table()
