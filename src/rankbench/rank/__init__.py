"""The code that every rank executes; it imports torch and little else."""
