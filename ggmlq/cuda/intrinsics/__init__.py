"""Device functions that all GPU kernels are written with: instructions without a name in Numba, formats'
atoms, small helpers.

The ground:

    language.py       Numba's own words; stand-ins for them where nothing is compiled; an error where it is
                      missing
    numba_cuda.py     the words of numba-cuda
    assembly.py       how an instruction without a name in Numba becomes a function, and how a device function
                      is written that emits its code
    atoms.py          a format's own functions, compiled for the GPU, and the tables in memory that they read

Instructions of all cards:

    ptx.py            arithmetic of floats and words; loads and stores of device memory (load, store) and of
                      shared memory (take, put), copies into shared memory
    floats.py         the kinds of floats: pairs of 16-bit ones in a register, stores of results
    bf16x2.py         instructions on pairs of bfloat16, by name
    halves.py         the same of float16
    codes8.py         floats to 8-bit codes four at a time, dp4a, and FP8 widened to halves
    lane.py           a thread's warp and lane, addresses of matrix elements; exchanges among the lanes of a
                      warp
    tensor_cores.py   ``mma`` and ldmatrix; products of packed weights, a run at a time: sums of floats, of
                      halves, of bytes

Hopper's:

    hopper.py         barriers in shared memory, of warps, clusters and grids; the copy engine; registers of a
                      warpgroup; a kernel that starts while its predecessor still runs
    wgmma.py          ``wgmma``: on 8-bit codes, with sums promoted to float32, for attention, with weights
                      in registers; its sums stored and added

Sizes are 32 bits wide, addresses 64. A plain integer beside an unsigned word is one, too
(driver/dialect.py); arithmetic of words is 64 bits wide, as Numba has it, so kernels make 32 bits of
results by name: ``uint32(row * 4)``.
"""
