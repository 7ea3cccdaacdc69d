"""The warp-specialised kernel of Hopper, and its parts for packed weights: a producer warp fetches, two
warpgroups unpack and multiply.

    kernel.py            the one kernel, of packed weights and of codes (codes8/): weights, schedule, epilogue
    tile.py              WarpSpecializedTile: outputs of a block, threads, and how a stage is laid out;
                         problems that such kernels refuse
    schedules.py         one product, or experts: the work of a block, and its producers
    producer.py          the thread that fetches weights and x_tiles into the ring of stages; activations of
                         16 bits as they lie, by a tensor map; x_tiles that idle warps make meanwhile
    consumers.py         weights: the warpgroups that unpack fragments and multiply them with activations
    stream_k.py          tiles whose K is split among blocks: partial sums through global memory, or
                         through the shared memory of a cluster

linear/r16_warp_specialized.py and expert_linear/r5_grouped.py put these together. schedule/ says which work
units a block takes, epilogue/ writes the results.
"""
