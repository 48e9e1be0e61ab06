"""Experiment -> plan: which cells there are, and which cannot run here, and why."""
