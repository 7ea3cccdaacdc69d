"""Products of packed weights by ``mma.sync``: any card from compute capability 8.0 on.

kernel.py       the kernel of r14, r18, r19 and of experts' r9, from tiles and stages to stores and the launch
transposed.py   ``y @ q``: few rows by packed weights as they lie, very many by decoded ones
ring.py         the next stage of a ring, for r15 and kernels of 8-bit codes, too
"""
