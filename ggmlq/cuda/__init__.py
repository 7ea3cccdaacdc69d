"""Kernels for NVIDIA GPUs, and what compiles and launches them: CuPy holds the arrays, Numba compiles.

Only this folder imports CuPy. The kernels of a GRU are in gru/cuda; they use what is here.

    linear/             the ladder of ``x @ q.T``: one rung a file, each a kernel and its ``launch``
    scaled_linear/      the ladder of products of codes with scales
    expert_linear/      the ladder of products with the experts that tokens use
    attention/          attention over keys and values in blocks
    cost/               how long kernels take (costs.json); the order of rungs that no table has
    schedule/           which block computes which uses of experts
    packed/             weights in the file's bits, in the order in which tensor cores take them; weights as
                        int8 codes and scales, for the middle of the ladder
    activations/        rows of floats as other floats, int8 codes, x_tiles
    codes8/             products of 8-bit codes with scales: operands, weights, schedules, epilogues
    gemv/               the kernel for few rows of packed weights
    kernels/            kernels from their parameters to their stores: hopper/, the warp-specialised one
    rings/              rings of stages in shared memory
    epilogue/           from sums in registers to results in memory
    intrinsics/         instructions without a name in Numba, and formats' atoms on the GPU
    ladder/             chapters: each technique of the summit alone, which nothing else imports
    machine/            the GPU itself, or several; how kernels are compiled, stored and launched; uploads
    quantize/           encoders of some formats, decoders of all
    quantize_scaled/    floats to codes with scales for tiles, and back

How ``x @ q.T`` is computed, for q4_0 and 512 rows of x on a Hopper card:

    ops/linear.py                         checks the operands and asks dispatch/ladder.py for a rung
    cost/choice.py                        orders the rungs by their estimates, which are in cost/packed.py
    linear/r16_warp_specialized.py        is the first: ``launch`` finds a tile and a split, ``kernel`` runs
    cost/warp_specialized.py              the tile, and the split of the last wave, that should take least
                                          time
    packed/pack.py                        the packed weights, made once; they stay with the array
    activations/x_tiles.py                the kernel before: x as x_tiles of bfloat16, all or the first ones;
                                          there is none for bfloat16 and narrow tiles
    machine/launch.py                     the kernel's code: prebuilt, or compiled, then loaded and launched

and in each of its blocks, which stay on the card until all tiles are computed:

    kernels/hopper/kernel.py              parameters, shared memory; the producer's thread fetches weights and
                                          x_tiles into the ring of stages, or weights and x as it lies; two
                                          warpgroups wait for full stages, unpack and multiply; epilogue
    kernels/hopper/tiles.py               the tile, the steps of it that come next, and its place
    packed/weights.py                     a fragment's bits to bfloat16 weights, scale included
    kernels/hopper/late_x_tiles.py        with wide tiles: three more warps make the later x_tiles meanwhile
    kernels/hopper/stream_k.py            sums of tiles that blocks share, in memory or within a cluster

Up to 32 rows linear/r13_gemv.py comes first where its estimate is lower: each of its warps keeps fragments in
flight for itself (gemv/stages.py), and all add up in the end. One row is r17_gemv_int16.py's.

A new kernel is a file in a ladder's folder and touches nothing else. Kernels that ``auto`` takes import no
chapter of their ladder, so each chapter can be changed or dropped alone.
"""
