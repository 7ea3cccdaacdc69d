"""The registry of kernels: problems, rungs, and the choice between them."""
