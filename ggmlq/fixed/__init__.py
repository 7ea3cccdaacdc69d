"""Fixed-point arithmetic for the GRU in integers: codes with scales that are powers of two.

    qformat.py    an integer's meaning, value = (code - zero) · 2^-exponent, and how a range becomes one
    shift.py      multiplication by a power of two, rounded half away from zero: atoms and whole arrays
    observers.py  what calibration keeps of a tensor, and the range that each observer makes of it
    tables.py     sigmoid and tanh as a table of codes, built in three ways

Scales are powers of two, so a code goes from one format to another by a shift, by the difference of the
exponents. Zero points are taken off first; a product of matrices takes one off as the zero point times the
sum of the other operand (``ggmlq/reference/multiply.py``). The atoms are plain Python,
which Numba compiles for the CPU and for CUDA. Nothing here depends on ``ggmlq/gru``.
"""

from .observers import OBSERVERS, Observed
from .qformat import QFormat, format_of
from .shift import rounding_shift, shifted, shifted_array
from .tables import TABLES, table_of

__all__ = [
    "OBSERVERS", "TABLES", "Observed", "QFormat", "format_of", "rounding_shift", "shifted", "shifted_array",
    "table_of",
]  # fmt: skip
