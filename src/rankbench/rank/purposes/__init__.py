"""What a launch is for: to measure, to check a strategy, or to profile."""
