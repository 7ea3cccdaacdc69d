"""The CUDA ladder of ``linear``: one rung a file, ``r<level>_<name>.py``, to be read from the lowest up.

    r0 to r2     a product with blocks; integers in place of floats; decoding once for many rows
    r3 to r5     weights unpacked to int8: wide loads, dp4a, registers
    r6, r7       a library on decoded weights
    r8           int8 tensor cores on unpacked weights
    r11          the library again, with bfloat16
    r13, r14     packed weights as the wide operand: few rows, many rows
    r16          Hopper's instructions, by blocks that stay: a producer warp, consumer warpgroups
    r17          one row: activations as integers, codes as bytes
    r18          many rows: both as bytes
    r19          many rows: sums of halves, for cards whose tensor cores sum floats slowly

The head of a file says what it changed from the rung below, why that helps and what limits it now. r0 to r11
import no other rung: what stays the same is written again, so that each is read alone.
docs/ladder.md has the figures.
"""
