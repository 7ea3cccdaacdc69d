"""Products of packed weights by ``mma.sync``: any card from compute capability 8.0 on.

copies.py       tiles, and the ring of stages that all threads of a block fill by ``cp.async``
frame.py        the kernel of r14 and r18, and its launch, which r19 shares; a step of r14
transposed.py   ``y @ q``: few rows by packed weights as they lie, very many by decoded ones
shape.py        tiles of 8-bit codes in such a ring, their warps, and the raster of blocks
"""
