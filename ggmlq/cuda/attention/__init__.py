"""Attention on a GPU: keys and values stay as they are stored, a softmax runs along.

    call.py        from checked operands to launches: which plan, how many parts
    operands.py    keys and values as rows that the kernels read; rows of a cache for new positions
    unpacked.py    blocks as halves, for many rows of queries
    plan.py        what a block of threads computes, where its operands lie in shared memory
    kernel.py      any types and options, by ``mma``: for few rows, and for cards without wgmma
    turned.py      up to eight rows, or sixteen: keys and values are the wide operand; its products
    wide.py        many rows on Hopper, by ``wgmma``; its warpgroup that copies and decodes

and what the kernels are made of:

    problem.py     positions that rows see, the part of a block
    rows.py        copies into shared memory, tiles of 16-bit floats
    codes.py       queries and results of three kinds of floats; blocks decoded to halves
    products.py    scores, and weights times values, of a warp: of halves, of blocks decoded in registers
    softmax.py     scores to weights: options, hidden positions, maxima and sums; sums of warps, and of a
                   cluster's blocks, added
    results.py     sums to results; the parts of a row, put together
    unrolled.py    loops that are written out
"""
