"""Patches for faults of Snakemake and its Slurm plugin; one file per fault."""
