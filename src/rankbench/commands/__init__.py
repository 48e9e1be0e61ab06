"""The commands of `rankbench`, a file each: what it does, its examples, `add`."""
