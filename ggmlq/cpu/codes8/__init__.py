"""Kernels of ``scaled_linear`` for 8-bit codes: integers as they are, 8-bit floats as pairs of bfloat16.

Integers, with sums over whole groups:

    int_layout.py       the cut of K: groups that share scales, chunks whose sums fit int32, fours; arguments
    int_multiply.py     a product: both operands in the order of tiles, kernel, threads
    int_product.py      kernels: that order; the register tile, int32 until scales change; the loops around it
    int_amx.py          kernel: the loops of the same product on Intel's matrix unit

8-bit floats, by the CPU's dot product of bfloat16:

    float_layout.py     the cut of K: runs of columns that share both scales; arguments
    float_multiply.py   a product: its conditions, activations decoded to bfloat16, kernel, threads
    float_decode.py     kernels: codes to bfloat16, in rows, and sixteen rows of weights side by side
    float_product.py    kernel: a register tile of such panels and a few rows, and the loops around it
    float_few.py        kernel for up to eight rows: nothing is laid side by side, sums run along K
    float_amx.py        kernel: the loops of many rows on Intel's matrix unit
    amx_multiply.py     the driver of both on the matrix unit

Panels of integers are laid out once and stay with the array: scales stand apart, because there is one for
128 columns or for all of K. Every number of e4m3 and e5m2 is one of bfloat16, so nothing is rounded before it
is summed; panels of these are not stored, because decoding a portion takes no longer than six rows of
activations do. ``machine/register_tile.py`` has the common part of all register tiles, ``machine/simd.py``
the dot products of integers.
"""
