"""Turns an experiment into a plan: its cells, and reasons for those that cannot run."""
