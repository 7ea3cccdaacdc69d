"""Rings of stages in shared memory that are filled ahead of the products, and the tiles they hold.

mma_copies.py    the ring that all threads of a block fill by ``cp.async``: prologue, refill, next stage
mma_copies.py    tiles of packed weights in such a ring
mma_copies.py  copies of their weights and activations
shape.py   tiles of 8-bit codes in such a ring, their warps, and the raster of blocks
boxed.py   Hopper's ring, which the copy engine fills in boxes: tiles, layout, barriers, producers, raster
"""
