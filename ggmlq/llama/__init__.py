"""Calls a libggml of the user's, to compare its encoders, decoders and products with ours: ``gq.llama``.

bridge.py    Bridge: the library from Python, in a process of its own
process.py   that process, its pipes, and the error where it dies
protocol.py  messages and arrays between both
worker.py    the main program of the process
files.py     where a build lies, or an archive of it
library.py   its functions, encoders and decoders
devices.py   its devices
product.py   a matrix product on one of them
program.py   a small graph, and a node with the arrays that were read
graph.py     such a graph in the library
structs.py   fields of a tensor, found by experiment
guards.py    writes beside a result
"""

from typing import Any

from ..base.hooks import Hook
from .bridge import Bridge, Measurement
from .devices import Device

# Functions of ggmlq.trace, which stands on this package: imported when they are used.
_TRACE = Hook("traces of llama.cpp")
_TRACING = ("activations", "attach", "compare_logits", "compare_with_model", "imatrix", "trace")

__all__ = [
    "Bridge", "Device", "Measurement", "activations", "attach", "compare_logits", "compare_with_model",
    "imatrix", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _TRACING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_TRACE.room(), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_TRACING})
