"""Faults of Snakemake and its Slurm plugin, mended while they run, a file each."""
