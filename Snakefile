# rankbench: from an experiment to a results table.
#
#   snakemake --profile local_profile                                    one machine
#   snakemake --profile local_profile -n                                 what would run, why not
#   snakemake --profile local_profile --config experiment=studies/x.yaml                 a study in full
#   snakemake --profile local_profile --config experiment=studies/x.yaml override=laptop   and scaled down
#   snakemake --profile local_profile --config only='strategy=ddp'       part of the matrix
#   snakemake --profile local_profile --config rerun=CELL                one cell again
#   snakemake --profile local_profile --config plots=false               tables only: sooner
#   snakemake --profile local_profile images                             only its images
#   snakemake --profile local_profile publish                            a site to put on the web
#   snakemake --profile slurm_profile                                    a cluster: docs/slurm.md
#   snakemake --profile slurm_profile site_check                         is it as site.yaml says?
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
        # Also when a table stands already: after a failure, or after a part of the matrix.
        RUN.summaries(),
        RESULTS,
    message:
        "all that was asked for is there"


onerror:
    write_table()
