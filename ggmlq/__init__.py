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

from typing import TYPE_CHECKING, Any

from . import interrupted as interrupted  # isort: skip  (first: from here on Ctrl-C is one line)
from . import errors
from .array import QuantArray
from .codes import CODES as codes
from .errors import GGMLQError, GGUFError
from .formats import FORMATS as formats
from .formats import Format
from .listing import kernels
from .metrics import nmse
from .ops import (
    concatenate,
    dequantize,
    equal,
    expert_linear,
    linear,
    quantize,
    quantize_scaled,
    scaled_linear,
    stack,
)
from .scaled import ScaledArray

if TYPE_CHECKING:
    from . import checkpoint, convert, diff, functions, gguf, llama, parallel, reference, report, safetensors
    from .accuracy import error_table
    from .faults import Diagnosis, diagnose, diagnose_gru
    from .files import open, save
    from .gru import GRU, FixedGRU
    from .surveys import survey
    from .threads import set_num_threads

__version__ = "0.2.0"

__all__ = [
    "Diagnosis",
    "FixedGRU",
    "Format",
    "GGMLQError",
    "GGUFError",
    "GRU",
    "QuantArray",
    "ScaledArray",
    "checkpoint",
    "codes",
    "concatenate",
    "convert",
    "dequantize",
    "diagnose",
    "diagnose_gru",
    "diff",
    "equal",
    "error_table",
    "errors",
    "expert_linear",
    "formats",
    "functions",
    "gguf",
    "kernels",
    "linear",
    "llama",
    "nmse",
    "open",
    "parallel",
    "quantize",
    "quantize_scaled",
    "reference",
    "report",
    "safetensors",
    "save",
    "scaled_linear",
    "set_num_threads",
    "stack",
    "survey",
]

# Found in these modules when first asked for: `import ggmlq` stays quick.
_LATER = {"open": "files", "save": "files"} | dict.fromkeys(
    ("Diagnosis", "diagnose", "diagnose_gru"), "faults"
)
_LATER |= {"set_num_threads": "threads", "error_table": "accuracy", "GRU": "gru", "FixedGRU": "gru"}
_LATER["survey"] = "surveys"
_LATER |= dict.fromkeys(  # modules
    (
        "checkpoint",
        "convert",
        "diff",
        "functions",
        "gguf",
        "llama",
        "parallel",
        "reference",
        "report",
        "safetensors",
    ),
    "",
)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{_LATER[name] or name}")
    globals()[name] = found = getattr(module, name) if _LATER[name] else module
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
