"""Kernels for NVIDIA GPUs, and what compiles and launches them: CuPy holds the arrays, Numba compiles.

Only this folder imports CuPy. The kernels of a GRU are in gru/cuda; they use what is here.

    ladder/      one rung a file, by operation: linear/ is that of ``x @ q.T``. Rungs that teach are complete
                 in their files; chapters/ has each technique of the summit alone
    kernels/     the kernels that choices take, from their parameters to their stores: gemv/, mma/, hopper/,
                 codes8/, attention/, quantize/; epilogue/: from sums in registers to memory;
                 cost/: how long they take
    layouts/     operands in the order in which kernels read them: packed weights, x_tiles, codes
    intrinsics/  instructions without a name in Numba, and formats' atoms on the GPU
    driver/      the GPU itself, or several; how kernels are compiled, stored and launched; uploads

How ``x @ q.T`` is computed, for q4_0 and 512 rows of x on a Hopper card:

    ops/linear.py                          checks the operands and asks dispatch/ladder.py for a rung
    kernels/cost/choice.py                 orders the rungs by their estimates
    ladder/linear/r16_warp_specialized.py  is the first: ``launch`` finds a tile and a split, ``kernel`` runs
    kernels/cost/warp_specialized.py       the tile, and the split of the last wave, that should be fastest
    layouts/pack.py                        the packed weights, made once; they stay with the array
    layouts/x_tiles.py                     the kernel before: x as x_tiles of bfloat16, all or the first ones;
                                           there is none for bfloat16 and narrow tiles
    driver/launch.py                       the kernel's code: prebuilt, or compiled, then loaded and launched

and in each of its blocks, which stay on the card until all tiles are computed:

    kernels/hopper/kernel.py               parameters, shared memory; the producer's thread fetches weights
                                           and x_tiles into the ring of stages, or x as it lies; with wide
                                           tiles three more warps make later x_tiles meanwhile; two
                                           warpgroups wait for full stages, unpack and multiply; epilogue
    kernels/hopper/tiles.py                the tile, the steps of it that come next, and its place
    layouts/weights.py                     a fragment's bits to bfloat16 weights, scale included
    kernels/hopper/stream_k.py             sums of tiles that blocks share, in memory or within a cluster

Up to 32 rows r13_gemv.py comes first where its estimate is lower: each of its warps keeps fragments in flight
for itself (kernels/gemv/stages.py), and all add up in the end. One row is r17_gemv_int16.py's.

A new kernel is a file in a ladder's folder and touches nothing else. Kernels that ``auto`` takes import no
chapter of their ladder, so each chapter can be changed or dropped alone.
"""
