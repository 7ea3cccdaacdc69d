"""Activations: the operands that kernels make of rows of floats.

floats.py         floats as others: halves and bfloat16 as kernels read them, and back
floats.py          other floats: float64, bfloat16, halves, and the order of columns of ``wgmma``
code_tiles.py            int8 codes with a scale for each 32, and their sums
x_tiles.py       halves, each row times a power of two, and the inverses
code_tiles.py      the same in the order of ``mma``, in pieces that a block copies whole
x_tiles.py         bfloat16, swizzled as ``wgmma`` reads it from shared memory
layers.py          norms of rows, heads turned by positions: a launch each; the functions of gates
layers.py          a sum and its norm, a gate and what it lets through as halves of a row: a launch each
router.py          the scores of experts, the choice of some, weighted sums: a launch each
x_tiles.py  the same for experts: rows where a plan has their uses
code_tiles.py    rows of 8-bit codes where a plan has their uses
"""
