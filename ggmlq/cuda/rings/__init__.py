"""Rings of stages in shared memory that are filled ahead of the products, and the tiles they hold.

mma_copies.py   the ring that all threads of a block fill by ``cp.async``; tiles of packed weights in it, and
                copies of their weights and activations
int_tiles.py    tiles of unpacked operands in such a ring, and their products on int8 tensor cores
shape.py        tiles of 8-bit codes in such a ring, their warps, and the raster of blocks
"""
