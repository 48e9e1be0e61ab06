"""What every rank executes: imports torch, and little else."""
