"""Where launches run: on this machine, in a Slurm job, or in an array of Slurm jobs."""
