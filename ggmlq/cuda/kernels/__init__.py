"""Kernels that choices take, each read from its parameters to its stores.

gemv/             few rows of x by packed weights, of the experts that few tokens use too
mma/              many rows by ``mma.sync``
hopper/           the warp-specialised kernel of Hopper: a producer warp fetches, two warpgroups multiply
codes8/           products of 8-bit codes with scales
attention/        attention over keys and values in blocks
quantize/         encoders of some formats, decoders of all
quantize_scaled/  floats to codes with scales for tiles, and back
epilogue/         from sums in registers to results in memory
cost/             how long kernels take: the order of rungs that no table has, tiles and splits
layers.py         norms, RoPE, Hadamard transforms, gates: a launch each
gated.py          one row times two matrices, of experts too, and the gate between them, in one launch
router.py         scores of experts, the choice of some, weighted sums: a launch each
cublas.py         a product by the library, and the numbers that its calls take
"""
