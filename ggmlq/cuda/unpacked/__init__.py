"""Unpacked operands: int8 codes in one array, float32 scales in another.

    weights.py   the arrays; weights unpacked from blocks, once; their offsets, taken off a finished product
    tiles.py     tiles of both operands in a ring of stages, and their products on int8 tensor cores

Rungs r3 to r5 and r8 to r10 read them.
"""
