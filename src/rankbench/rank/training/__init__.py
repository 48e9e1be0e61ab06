"""The measured core: the training loop, its clock, its batches and its recipe."""
