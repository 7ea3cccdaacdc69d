"""Products of 8-bit codes with scales: what the rungs of ``scaled_linear`` and of experts share.

    rows.py                both operands as kernels read them: aligned codes, scales, zero points

Kernels of ``mma.sync``, for any card from capability 8.0 on:

    mma_tiles.py           which tile serves a shape, and the arguments that all of them take

The kernel of Hopper's ``wgmma`` (warp_specialized/kernel.py), whose operands the copy engine fetches in boxes
(rings/boxed.py):

    variant.py             what a kernel is compiled for: its tile, its codes, its outputs
    operands.py            maps of codes, scales in the order of steps, all words of a kernel
    schedules.py           dense, split along K, experts: the tiles of a block, and its producers
    epilogue.py            bias, conversion and stores of the outputs

The same kernel with few rows of x, where weights are the wide operand of ``wgmma``:

    small_m.py   one product, or experts: the rows and the part of K of a block, and its producers
"""
