"""Device functions that all GPU kernels are written with: instructions without a name in Numba, formats'
atoms, small helpers.

The ground:

    language.py          Numba's own words; stand-ins for them where nothing is compiled; an error where it is
                         missing
    numba_cuda.py        the words of numba-cuda
    assembly.py          how an instruction without a name in Numba becomes a function
    atoms.py             a format's own functions, compiled for the GPU
    tables.py            constant tables in global memory, which atoms read

Instructions of all cards (load and store: device memory; take and put: shared memory):

    ptx.py               floats, bits, loads, stores, copies into shared memory, ldmatrix
    integers.py          integers that stay 32 bits wide; addresses of what a thread fetches step by step
    bf16x2.py            pairs of bfloat16, and ``mma`` on them
    halves.py            pairs of float16: arithmetic, matrices in shared memory
    mma_runs.py          products by ``mma`` of packed weights, a run at a time: sums of floats, of halves, of
                         bytes
    codes.py             floats to 8-bit codes four at a time, loads and stores of their sizes
    codes8.py            products of bytes by ``mma`` and dp4a, and FP8 widened to halves
    lane.py              a thread's warp and lane, its elements of ``mma`` operands, addresses of matrix
                         elements; exchanges among the lanes of a warp
    floats.py            stores of results in the kinds of floats

Hopper's:

    barrier.py           barriers in shared memory, of warps, clusters and grids; registers of a warpgroup
    boxes.py             the copy engine: boxes of matrices
    dependent_launch.py  a kernel that starts while its predecessor still runs
    sums.py              sums of ``wgmma`` stored, added to memory, added up with factors: for the chapters
    wgmma.py             ``wgmma``: on 8-bit codes, with sums promoted to float32, for attention, with weights
                         in registers

Sizes are 32 bits wide, addresses 64. A plain integer beside an unsigned word is one, too
(driver/dialect.py); arithmetic of words is 64 bits wide, as Numba has it, so kernels make 32 bits of
results by name: ``uint32(row * 4)``.
"""
