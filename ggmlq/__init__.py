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

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .base import interrupted as interrupted  # isort: skip  (first: from here on Ctrl-C is one line)
from . import errors
from .base import hooks
from .errors import GGMLQError, GGUFError

if TYPE_CHECKING:
    from . import (
        checkpoint,
        convert,
        diff,
        functions,
        gguf,
        llama,
        model,
        parallel,
        reference,
        report,
        safetensors,
    )
    from . import torch as torch
    from .accuracy import cache_error, error_table
    from .arrays.array import QuantArray
    from .arrays.scaled import ScaledArray
    from .base.threads import set_num_threads
    from .check.anybody import check
    from .codes import CODES as codes
    from .dispatch.listing import kernels
    from .faults import Diagnosis, diagnose, diagnose_gru
    from .formats import FORMATS as formats
    from .formats import Format
    from .gru import GRU, FixedGRU
    from .ops.attention import attention
    from .ops.cache import KVCache
    from .ops.dequantize import dequantize, fake_quantize
    from .ops.expert_linear import expert_linear
    from .ops.gated_linear import gated_linear
    from .ops.joining import concatenate, equal, stack
    from .ops.linear import linear
    from .ops.quantize import quantize
    from .ops.quantize_scaled import quantize_scaled
    from .ops.rows import empty, put, take
    from .ops.scaled_linear import scaled_linear
    from .reference.metrics import nmse
    from .report.survey import survey
    from .safetensors.either import open, save

__version__ = "0.3.0"

__all__ = [
    "Diagnosis",
    "FixedGRU",
    "Format",
    "GGMLQError",
    "GGUFError",
    "GRU",
    "KVCache",
    "QuantArray",
    "ScaledArray",
    "attention",
    "cache_error",
    "check",
    "checkpoint",
    "codes",
    "concatenate",
    "convert",
    "dequantize",
    "diagnose",
    "diagnose_gru",
    "diff",
    "empty",
    "equal",
    "error_table",
    "errors",
    "expert_linear",
    "fake_quantize",
    "formats",
    "functions",
    "gated_linear",
    "gguf",
    "kernels",
    "linear",
    "llama",
    "model",
    "nmse",
    "open",
    "parallel",
    "put",
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
    "take",
]

_BESIDE = ("torch",)  # not in __all__, which ``import *`` takes whole: it imports torch, where there is one

# Where each name comes from when it is first used: the command line imports this file for every Tab, and
# NumPy alone would take most of that time.
_HOMES = {
    name: home
    for home, names in {
        "arrays.array": "QuantArray", "arrays.scaled": "ScaledArray", "formats": "Format",
        "base.threads": "set_num_threads", "accuracy": "error_table cache_error", "gru": "GRU FixedGRU",
        "check.anybody": "check", "dispatch.listing": "kernels", "reference.metrics": "nmse",
        "report.survey": "survey", "safetensors.either": "open save",
        "faults": "Diagnosis diagnose diagnose_gru",
        "ops": "KVCache attention concatenate dequantize empty equal expert_linear fake_quantize "
        "gated_linear linear put quantize quantize_scaled scaled_linear stack take",
    }.items()
    for name in names.split()
}  # fmt: skip
_TABLES = {"codes": "CODES", "formats": "FORMATS"}  # folders whose name here means the table in them
_HIDDEN = {*_TABLES, "check"}  # folders that stay behind what has their name here


# What lower rooms ask of upper ones, and the room that does it: it is imported when it is first asked.
hooks.served_by({
    "devices and memory of CuPy": "cuda.driver.device",
    "models at addresses": "remote.opening:opened",
    "digests of an array's bytes": "cpu.machine.digest:digest",
    "packed weights that stand for their bytes": "cuda.layouts.to_blocks:packed_memory",
    "bytes restored from packed weights": "cuda.layouts.to_blocks:restored",
    "operations on arrays": "ops",
    "names of a tensor in other files": "checkpoint.families:equivalent_names",
    "tensors in parts on several devices": "parallel.sharded:to_several",
    "kernels of GRUs": "gru.cuda",
    "kernels that a product launches": "ops.dry_run:kernels_of",
    "traces of llama.cpp": "trace",
})  # fmt: skip


if not TYPE_CHECKING:  # or every name would be there to type checkers

    def __getattr__(name: str) -> Any:
        from importlib import import_module
        from importlib.util import find_spec

        if name in _HOMES or name in _TABLES:
            home = import_module(f"{__name__}.{_HOMES.get(name, name)}")
            globals()[name] = value = getattr(home, _TABLES.get(name, name))
            return value
        if name[:1] != "_" and find_spec(f"{__name__}.{name}"):  # a file or a folder of the package
            try:
                return import_module(f"{__name__}.{name}")
            except errors.MissingDependencyError as error:  # torch
                raise errors.MissingPartError(str(error)) from None
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_BESIDE, *(name for name in globals() if name.startswith("__"))})


class _Package(ModuleType):
    """The package itself: the import of a folder in ``_HIDDEN`` leaves its name alone."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HIDDEN or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
