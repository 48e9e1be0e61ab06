"""Programs that start the ranks of one host."""
