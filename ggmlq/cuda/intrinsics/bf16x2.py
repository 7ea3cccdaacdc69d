"""Instructions on pairs of bfloat16, under the names of ``Pairs`` (floats.py), for kernels to name."""

from .floats import BFLOATS

pair, narrowed, sub, fma, fma_low, fma_high = BFLOATS
ones = BFLOATS.ones
