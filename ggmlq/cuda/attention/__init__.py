"""Attention on a GPU: keys and values stay as they are stored, a softmax runs along.

    call.py        from checked operands to launches: which plan, how many parts
    operands.py    keys and values as rows that the kernels read
    unpacked.py    blocks as halves, for many rows of queries
    plan.py        what a block of threads computes, where its operands lie in shared memory
    kernel.py      any types and options, by ``mma``: for few rows, and for cards without wgmma
    turned.py      up to eight rows, or sixteen: keys and values are the wide operand
    wide.py        many rows on Hopper, by ``wgmma``

and what the kernels are made of:

    problem.py     positions that rows see, the part of a block
    rows.py        copies into shared memory, tiles of 16-bit floats
    codes.py       blocks decoded to halves
    products.py    scores, and weights times values, of a warp
    softmax.py     scores to weights: options, hidden positions, maxima and sums
    results.py     sums to results
    unrolled.py    loops that are written out
"""
