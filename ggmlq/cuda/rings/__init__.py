"""Rings of stages in shared memory that are filled ahead of the products, and the tiles they hold.

mma_copies.py   the ring that all threads of a block fill by ``cp.async``; tiles of packed weights in it, and
                copies of their weights and activations
shape.py        tiles of 8-bit codes in such a ring, their warps, and the raster of blocks
"""
