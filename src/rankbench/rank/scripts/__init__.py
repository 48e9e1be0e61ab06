"""Runs an unmodified training script, and finds its steps, phases and end."""
