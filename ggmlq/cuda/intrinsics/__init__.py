"""What kernels are written in.

    language.py     Numba's own words, and an error where it is missing
    assembly.py     how an instruction without a name in Numba becomes a function
    ptx.py          instructions of all GPUs: loads, stores, copies, conversions
    integers.py     whole numbers that stay 32 bits wide
    codes8.py       products of bytes, signed or not, and FP8 widened to halves
    bf16x2.py       pairs of bfloat16, and ``mma`` on them; ``mma_into`` and ``sums_into`` add to an array
    codes.py        floats to codes of 8 bits by fours, loads and stores of their sizes
    warpgroup.py    Hopper's ``wgmma`` with weights in registers
    wgmma8.py       ``wgmma`` on codes of 8 bits; promoted.py: on FP8, with sums that go over into float32
    barrier.py      Hopper's barriers in shared memory; warps, clusters and grids that meet; registers
    boxes.py        its copy engine; epilogue/wgmma_sums.py: sums of ``wgmma`` to floats, boxes or elements of them
    epilogue/wgmma_steps.py      sums of ``wgmma`` with a bias, or in pieces for what makes codes of them
    address.py      elements of matrices behind plain addresses
    lane.py         warp, lane, and what that lane holds of operands of ``mma``
    votes.py        which lanes of a warp have equal numbers
    floats.py       kinds of floats that kernels write
    atoms.py        a format's own functions, compiled for the GPU; tables.py has their constants
    dependent_launch.py  a kernel that begins while the one before it still runs

Sizes are 32 bits wide, addresses 64: a plain integer would make 64 of both, so kernels say which.
"""
