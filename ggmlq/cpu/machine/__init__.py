"""The CPU itself: its instruction sets, how functions are compiled and kept, threads of microseconds.

features.py     what Numba compiles for, in LLVM's names
target.py       what of that decides how kernels are written: which dot product, how many registers
simd.py         vectors of 64 bytes as LLVM code, and the dot product of each target
ends.py         the end of a row: vectors of which some lanes have numbers
totals.py       the sum of a vector's lanes
bfloats.py      LLVM's bfloat, for instructions that take it
kernels.py      kernels by name: their code, from the package or from Numba
jit.py          the one decorator of compiled functions
words.py        Numba's own words, and what that decorator makes
disk_cache.py   where compiled code stays between processes
memory.py       addresses in compiled code: arrays over them, atomic steps
floats.py       what Numba has no name for: a fused product, the bits of a float32
tables.py       what a kernel is given, as words by name, some of them addresses
arguments.py    how compiled code reads that
workers.py      threads that wait in compiled code and share a kernel's work
recorded.py     a warm product: the same tables, other addresses
job.py          the board that they look at; board.py: their compiled part
digest.py       whether bytes that may be written to are still the same
report.py       what ``ggmlq doctor`` says of all this
"""
