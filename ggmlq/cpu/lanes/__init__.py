"""Small vectors inside compiled code: ``load``, arithmetic, ``store``, for whatever SIMD there is.

LLVM does not turn the short loops over a block into vector instructions: it would have to prove
that reading the block and writing the codes do not overlap. So a kernel says it with vectors of a
fixed length. They are plain LLVM vectors, not instructions of one CPU: LLVM splits and lowers them
for SSE, AVX2, AVX-512 or NEON.

A vector supports the operators of ``operators.py`` with another of its kind or with a number, which
takes its kind: arithmetic, bits (``>>`` fills with zeros in unsigned kinds), and comparisons, which
give a mask. Floats are never contracted.

    kind.py        the type, and the helpers of all functions on it
    memory.py      load and store, words and spans of arrays, look-ups in tables
    operators.py   arithmetic, bits, comparisons
    shapes.py      lanes from other lanes: parts of them, two in turn, other types
    choices.py     by a mask, lane by lane
    sums.py        one number of all lanes
    halves.py      16-bit floats, which Numba does not have on the CPU
    books.py       code books in registers, for the IQ formats
"""

from . import operators
from .books import levels, pick, shuffles_words
from .choices import chosen, clipped, either, first, negated, some
from .halves import half, narrow, store_floats, widen
from .kind import Lanes
from .memory import deposit, gather, load, lookup, spans, store, word
from .shapes import convert, interleave, part, ramp, recast, splat
from .sums import most, total

__all__ = [
    "Lanes", "chosen", "clipped", "convert", "deposit", "either", "first", "gather", "half", "interleave",
    "levels", "load", "lookup", "most", "narrow", "negated", "operators", "part", "pick", "ramp", "recast",
    "shuffles_words", "some", "spans", "splat", "store", "store_floats", "total", "widen", "word",
]  # fmt: skip
