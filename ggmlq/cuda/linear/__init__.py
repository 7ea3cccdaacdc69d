"""The CUDA ladder of ``linear``: one rung a file, ``r<level>_<name>.py``, to be read from the lowest up.

    r0 to r2     what a product with blocks is; integers in place of floats; decoding once for many rows
    r3 to r5     weights in planes: wide loads, dp4a, registers
    r6, r7       a library on decoded weights
    r8 to r10    int8 tensor cores on planes; scaling for less; filling the card
    r11          the library again, with bfloat16
    r12 to r15   weights in strips: the wide operand, few rows, many rows, Hopper's instructions
    r16          the same by blocks with roles, that stay

The head of a file says what it changed from the rung below, why that helps and what limits it now.
docs/ladder.md has the figures.
"""
