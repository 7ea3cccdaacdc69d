"""Activations: the operands that kernels make of rows of floats.

floats.py       floats as other floats: float64, float32, float16, bfloat16, also in the order of ``wgmma``
code_tiles.py   int8 codes with a scale for each 32, and their sums, in the order of ``mma``, in pieces that a
                block copies whole; rows of 8-bit codes where a plan has their uses
x_tiles.py      bfloat16, swizzled as ``wgmma`` reads it from shared memory, of rows or where a plan has their
                uses; halves, each row times a power of two
layers.py       norms of rows, heads turned by positions, the functions of gates: a launch each; a sum with
                its norm, a gate with what it lets through
router.py       the scores of experts, the choice of some, weighted sums: a launch each
"""
