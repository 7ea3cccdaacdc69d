"""Operands of scaled products: rows of 8-bit codes, and tiles of them in shared memory.

rows.py      codes as copies of 16 bytes can read them, scales and zero points beside them
rings/shape.py     how many outputs a block and a warp make, stages in flight, the order of blocks
stages.py    the ring of stages: copies that run ahead, operands of the tensor cores out of a stage
epilogue/mma_sums.py   from sums to floats: the scales of a group, zero points, what is written
"""
