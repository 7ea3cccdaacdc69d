"""Kernels of ``scaled_linear`` for 8-bit codes: integers as they are, 8-bit floats as pairs of bfloat16.

Integers, with sums over whole groups:

    int_layout.py       the cut of K: groups that share scales, chunks whose sums fit int32, fours
    int_operands.py     the arguments of their kernels
    int_interleave.py   both operands in the order of a tile, compiled
    int_weights.py      weights as panels of codes, laid out once, with scales and sums beside them
    int_activations.py  rows of codes, padded to whole fours, with their sums
    int_tile.py         a register tile: panels times a few rows, int32 until the scales change
    int_product.py      the loops around the tile, compiled
    int_multiply.py     a product: arguments, kernel, threads
    int_amx.py          the loops of the same product on Intel's matrix unit, compiled
    int_amx_multiply.py its driver

8-bit floats, by the CPU's dot product of bfloat16:

    float_needs.py        the conditions: a CPU with the instruction, kernels that came with the package
    float_layout.py       the cut of K: runs of columns that share both scales
    float_operands.py     the arguments of their kernels
    float_lookup.py       codes to bfloat16, by two tables of bytes
    float_activations.py  rows of bfloat16, made once in a product, with the scales of their runs
    float_decode.py       the compiled part of that
    float_transpose.py    sixteen rows of weights side by side, decoded
    float_tile.py         a register tile: such panels times a few rows
    float_product.py      the loops around the tile, compiled: a portion in the second cache times all rows
    float_few.py          up to eight rows: nothing is laid side by side, sums run along K
    float_multiply.py     a product: arguments, kernel, threads
    float_amx.py          the loops of many rows on Intel's matrix unit, compiled
    float_amx_multiply.py   their driver

Panels of integers are laid out once and stay with the array: scales stand apart, because there is one for
128 columns or for all of K. Every number of e4m3 and e5m2 is one of bfloat16, so nothing is rounded before it
is summed; panels of these are not stored, because decoding a portion takes no longer than six rows of
activations do. ``machine/register_tile.py`` has the common part of all register tiles, ``machine/simd.py``
the dot products of integers.
"""
