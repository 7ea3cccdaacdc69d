"""The warp-specialised kernel of Hopper: a producer warp fetches, two warpgroups unpack and multiply.

    kernel.py            the kernel for packed weights, from top to bottom: parameters, shared memory,
                         producer loop, consumer loop, epilogue, stores
    frame.py             ``kernel(consumers, schedule, epilogue)``: roles of warps, the ring and its barriers;
                         shared with 8-bit codes (codes8/)
    tiles.py             WarpSpecializedTile: outputs of a block, threads, and how a stage is laid out; the
                         order of tiles, chosen so that operands stay in the L2 cache; the work units of a
                         block, the last wave of tiles split along K; x_tiles that idle warps make while
                         others multiply; problems that such kernels refuse
    stream_k.py          tiles whose K is split among blocks: partial sums through global memory, or
                         through the shared memory of a cluster
    experts.py           the same kernel for the tiles of all experts

r16_warp_specialized.py, mma/transposed.py and r5_grouped.py launch it;
cost/warp_specialized.py finds the tile and the split. To read it, begin with kernel.py.
"""
