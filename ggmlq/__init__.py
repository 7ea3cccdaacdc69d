"""ggmlq: ggml's block formats as NumPy and CuPy arrays, with products on the quantized weights.

>>> import numpy as np, ggmlq as gq
>>> w = np.random.default_rng(0).standard_normal((8, 64), np.float32)
>>> q = gq.quantize(w, "q4_0")              # the bytes that ggml writes
>>> q
<QuantArray q4_0 (8, 64), ne [64, 8], 288 bytes, cpu>
>>> y = np.ones((2, 64), np.float32) @ q.T  # a product on the quantized weights
>>> y.shape
(2, 8)
"""

from . import errors, reference
from .array import QuantArray
from .errors import GGMLQError, GGUFError
from .faults import Diagnosis, diagnose
from .formats import FORMATS as formats
from .formats import Format
from .gguf import open, save
from .ladder import kernels
from .metrics import nmse
from .ops import dequantize, linear, quantize

__version__ = "0.1.0"

__all__ = [
    "Diagnosis",
    "Format",
    "GGMLQError",
    "GGUFError",
    "QuantArray",
    "dequantize",
    "diagnose",
    "errors",
    "formats",
    "kernels",
    "linear",
    "nmse",
    "open",
    "quantize",
    "reference",
    "save",
]
