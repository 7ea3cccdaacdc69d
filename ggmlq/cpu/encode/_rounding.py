"""Ggml's rounding of floats to integers, for the compiled IQ encoders."""

from __future__ import annotations

import numpy as np

from ..machine.jit import inline

SHIFTER = np.float32(1.5 * 2**23)  # added to a float below 2**22, leaves its nearest integer in the mantissa


@inline
def nearest(v: np.float32) -> np.int32:
    """The nearest integer, ties to even; floats beyond 2**22 and NaN become the same integers as in ggml."""
    bits = np.float32(v + SHIFTER).view(np.int32)
    return np.int32((bits & np.int32(0x7FFFFF)) - np.int32(0x400000))


@inline
def bits(v: np.float32) -> np.uint32:
    """The bits of a float32; those of positive floats order like the floats."""
    return np.float32(v).view(np.uint32)
