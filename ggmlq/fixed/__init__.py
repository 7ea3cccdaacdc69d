"""Fixed point: integers whose scale is a power of two, and what programs do with them.

    qformat.py    an integer's meaning, value = (code - zero) · 2^-exponent, and how a range becomes one
    shift.py      multiplication by a power of two, rounded half away from zero: atoms and whole arrays
    observers.py  what calibration keeps of a tensor, and the range that each observer makes of it
    tables.py     sigmoid and tanh as a table of codes, built in three ways

A product of two such integers is theirs times the product of the scales, so all that is left between two
formats is a shift by the difference of the exponents; zero points are taken off first, in products of
matrices with the sum of the other operand (``ggmlq/reference/identity.py``). The atoms are plain Python,
which Numba compiles for the CPU and for CUDA. Nothing here knows of a GRU: that is ``ggmlq/gru``.
"""

from .observers import OBSERVERS, Observed
from .qformat import QFormat, format_of
from .shift import rounding_shift, shifted, shifted_array
from .tables import TABLES, table_of

__all__ = [
    "OBSERVERS", "TABLES", "Observed", "QFormat", "format_of", "rounding_shift", "shifted", "shifted_array",
    "table_of",
]  # fmt: skip
