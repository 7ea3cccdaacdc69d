"""Instructions on pairs of float16, under the names of ``Pairs`` (floats.py), for kernels to name."""

from .floats import HALVES

pair, narrowed, sub, fma, fma_low, fma_high = HALVES
ones = HALVES.ones
