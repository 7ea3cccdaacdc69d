"""Integer codes of 8 bits as register tiles take them: weights 16 rows at a time, sums over whole groups.

    layout.py       how K is cut: groups that share scales, chunks whose sums fit int32, fours
    operands.py     what kernels are given
    lay.py          both operands as tiles read them, compiled
    weights.py      slabs of 16 rows from an array, made once, with scales and sums beside them
    activations.py  rows of codes, padded to whole fours, with their sums
    tile.py         the product of one slab with a few rows, in registers: int32 until the scales change
    product.py      the walk, compiled: loops that keep both near
    multiply.py     a product: operands, kernel, threads

Unlike panels (``cpu/panels``) slabs hold nothing but codes: scales stand apart, because there is one for 128
or for all of K, not one for 32. The dot products are the same (``machine/simd.py``).
"""
