"""Where launches run: on this machine, in a Slurm job, or on hosts that ssh reaches."""
