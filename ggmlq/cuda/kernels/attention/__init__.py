"""Attention on quantized K/V: read in their stored format, online softmax.

    call.py        from checked operands to launches: which plan, how many splits
    operands.py    K and V as rows that the kernels read, dequantized before many query rows; KV append
    plan.py        tile of a block and its shared memory, of mma.py and swap_ab.py

the kernels, each from its queries to its results:

    mma.py         ``mma.sync``, queries as A: any types and options, few rows and cards without wgmma
    swap_ab.py     decode attention, up to eight rows a block, or two blocks: K and V are A
    hopper.py      many rows on Hopper: wgmma, producer and consumers; its plan

and what they share:

    parameters.py  parameters, K/V range of a block and of a row
    kv_tiles.py    copies into shared memory, blocks decoded to halves, three kinds of floats
    softmax.py     scores of a lane: score options, mask, online softmax; loops over fragments
    split_kv.py    partials of split-KV: epilogues that write or merge them, the merge kernel
"""
