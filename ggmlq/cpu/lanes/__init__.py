"""Small vectors inside compiled code: ``load``, arithmetic, ``store``, for whatever SIMD there is.

LLVM does not turn the short loops over a block into vector instructions: it would have to prove
that reading the block and writing the codes do not overlap. So a kernel says it with vectors of a
fixed length. They are plain LLVM vectors, not instructions of one CPU: LLVM splits and lowers them
for SSE, AVX2, AVX-512 or NEON.

A vector supports ``& | ^ << >> + - *`` with another of its kind or with a scalar, which is
converted to its kind. ``>>`` fills with zeros in unsigned kinds. Floats are never contracted.
"""

from .halves import half, narrow, store_floats, widen
from .kind import Lanes
from .memory import gather, load, lookup, spans, store, word
from .shapes import above, convert, either, interleave, negated, part, ramp, recast, splat

__all__ = [
    "Lanes", "above", "convert", "either", "gather", "half", "interleave", "load", "lookup",
    "narrow", "negated", "part", "ramp", "recast", "spans", "splat", "store", "store_floats", "widen", "word",
]  # fmt: skip
