"""The CUDA ladder of ``linear``: one rung a file, ``r<level>_<name>.py``, to be read from the lowest up.

    r0 to r2     a product with blocks; integers in place of floats; decoding once for many rows
    r3 to r5     weights unpacked to int8: wide loads, dp4a, registers
    r6, r7       a library on decoded weights
    r8 to r10    int8 tensor cores on unpacked weights; scaling for less; filling the card
    r11          the library again, with bfloat16
    r12 to r15   packed weights: the wide operand, few rows, many rows, Hopper's instructions
    r16          packed weights by blocks that stay: a producer warp, consumer warpgroups
    r17          one row: activations as integers, codes as bytes
    r18          many rows: both as bytes
    r19          many rows: sums of halves, for cards whose tensor cores sum floats slowly
    gated.py     one row times two matrices, and the gate between them, in one launch
    transposed.py  ``y @ q``: up to 32 rows by packed weights as they lie, very many by decoded ones
    _gemv.py     the frame of r13 and r17, and their launch
    _mma_frame.py  the frame of r14 and r18, and the launch of r19 too; a step of r14
    _cublas.py   the slabs that r11 decodes and multiplies

The head of a file says what it changed from the rung below, why that helps and what limits it now. r0 to r12
import no other rung: what stays the same is written again, so that each is read alone.
docs/ladder.md has the figures.
"""
