"""Where launches run: on this machine, or in a job of Slurm."""
