"""Products of 8-bit codes with scales: what the rungs of ``scaled_linear`` and of experts share.

    rows.py        both operands as kernels read them: aligned codes, scales, zero points; reasons why a
                   kernel does not take a product
    mma_tiles.py   kernels of ``mma.sync``, for any card from capability 8.0 on: tiles, their ring of stages,
                   the main loop along K, which tile serves a shape, the arguments that all of them take

The kernel of Hopper's ``wgmma`` (kernels/hopper/frame.py), whose operands the copy engine fetches in boxes:

    kernel.py      parameters, the job of a block, the ring and its producers, consumers from a full stage to
                   sums; the tiles of a block: dense, split along K, experts
    epilogue.py    from sums to outputs: bias, conversion, stores; exchange in a cluster
    tiles.py       tiles, their shared memory, the one with which all multiprocessors are done first;
                   variants: what a kernel is compiled for
    operands.py    maps of codes, scales in the order of steps, all words of a kernel; rows sorted by expert
    small_m.py     the same kernel with few rows of x, where weights are the wide operand, for one product or
                   experts: tiles, the rows and the part of K of a block, producers, consumers, and sums that
                   the blocks of a cluster exchange
"""
