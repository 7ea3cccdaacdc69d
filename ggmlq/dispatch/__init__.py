"""The registry of kernels (rungs), the problems that they solve, and the choice of a kernel for a problem.

ladder     the registry: a problem, a rung, and the rung that serves a problem
problems   the kinds of problems, one an operation
card       a GPU as kernels and choices see it, and a table of GPUs by name
tuned      tables of measured kernels: the shipped one (measured.json), files, and this machine's own
checks     arguments of the operations, checked
epilogue   steps after the sums of a product that a kernel may take itself
experts    products with a mixture of experts, one expert after the other
listing    ``gq.kernels``: the ladders as tables, and where ``auto`` takes a rung, at which cost
"""
