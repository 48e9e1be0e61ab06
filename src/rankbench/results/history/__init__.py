"""Results over time: runs in a store, the lines of their cells, and what changed."""
