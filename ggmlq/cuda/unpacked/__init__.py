"""Planes, an operand: codes in one array, scales in another.

    layout.py    what they are, for weights and activations
    weights.py   made of blocks, once
    tiles.py     tiles of both in shared memory, a ring of them, and products on int8 tensor cores
    offsets.py   what is taken off a product where weights have offsets

Rungs r3 to r5 and r8 to r10 read them.
"""
