"""The CPU itself: its instruction sets, compiling and storing of kernels, threads for work of microseconds.

Instructions:

    features.py        the features that Numba compiles for, in LLVM's names
    target.py          the facts that kernels are written for: a dot product, a number of registers
    simd.py            vectors of 64 bytes as LLVM code, the dot product of each target, tails of rows
    register_tile.py   the common part of all register tiles: cells, totals, steps along K

Kernels:

    kernels.py         kernels by name: their code, from the package or from Numba
    levels.py          the instruction sets that code comes with
    served.py          the packs that serve this CPU
    loading.py         object code of a pack into memory
    jit.py             the one decorator of compiled functions
    numba_names.py     Numba's names for files that emit code, and what that decorator makes
    intrinsics.py      LLVM code that is written where it is called: intrinsics without a result, fma, bits
    disk_cache.py      compiled code between processes
    memory.py          addresses in compiled code: tables of arguments, arrays, atomic steps

A product:

    tables.py          tables of arguments: words by name, some of them addresses
    workers.py         threads that wait in compiled code and share a kernel's work
    job.py             the board, the memory by which they share a job; board.py: their compiled part
    recorded.py        recorded launches: a repeated product runs the same tables with other addresses
    digest.py          a digest of weights that may be written to
    peaks.py           reads and products alone, whose rates are the roofs of a ladder
"""
