"""Kernels that choices take, each read from its parameters to its stores.

gemv/             few rows of x by packed weights
mma/              many rows by ``mma.sync``
hopper/           the warp-specialised kernel of Hopper: a producer warp fetches, two warpgroups multiply
experts/          weights of the experts that tokens use, and their router
codes8/           products of 8-bit codes with scales
attention/        attention over keys and values in blocks
quantize/         encoders of some formats, decoders of all
quantize_scaled/  floats to codes with scales for tiles, and back
epilogue/         from sums in registers to results in memory
cost/             how long kernels take: the order of rungs that no table has, tiles and splits
layers.py         norms, RoPE, gates: a launch each
gated.py          one row times two matrices, and the gate between them, in one launch
cublas.py         numbers that cuBLAS is told
"""
