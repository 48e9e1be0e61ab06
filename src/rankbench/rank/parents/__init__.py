"""Programs that start the ranks of one host. They do not import torch."""
