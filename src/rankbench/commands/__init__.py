"""The commands of `rankbench`, one file each: description, examples and `add`."""
