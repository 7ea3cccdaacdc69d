"""Products of 8-bit codes with scales: what the rungs of ``scaled_linear`` and of experts share.

    checks.py              reasons why a kernel does not take a product
    rows.py                both operands as kernels read them: aligned codes, scales, zero points

Kernels of ``mma.sync``, for any card from capability 8.0 on:

    mma_tiles.py           which tile serves a shape, and the arguments that all of them take
    stages.py              their ring of stages in shared memory, and the main loop along K

Kernels of Hopper's ``wgmma``, whose operands the copy engine fetches in boxes (rings/boxed.py):

    variant.py             what a kernel is compiled for: its tile, its codes, its outputs
    operands.py            maps of codes, scales in the order of steps
    consumers.py           warps that multiply: from a full stage to outputs
    epilogue.py            bias, conversion and stores of the outputs
    persistent.py          blocks that stay on the card: one warp fetches, two warpgroups multiply
    split_k.py             K of a tile divided among the blocks of a cluster, which add their sums
    small_m.py             few rows of x: tiles, variants, the producer
    small_m_consumers.py   their warps that multiply
    small_m_sums.py        their exchange of sums within a cluster
    small_m_uses.py        their lists of rows, for experts
    grouped.py             persistent blocks over the tiles of all experts
    expert_operands.py     rows of x sorted by expert, scales of w by expert
"""
