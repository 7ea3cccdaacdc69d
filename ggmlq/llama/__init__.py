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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..base.hooks import Hook

if TYPE_CHECKING:
    from .bridge import Bridge, Measurement
    from .devices import Device

# Imported when they are used: the process that a library runs in imports this room, and needs no bridge.
_HOMES = {"Bridge": "bridge", "Measurement": "bridge", "Device": "devices"}
# Functions of ggmlq.trace, which stands on this package: imported when they are used.
_TRACE = Hook("traces of llama.cpp")
_TRACING = ("activations", "attach", "compare_logits", "compare_with_model", "imatrix", "trace")

__all__ = [
    "Bridge", "Device", "Measurement", "activations", "attach", "compare_logits", "compare_with_model",
    "imatrix", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name not in _TRACING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_TRACE.room(), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_TRACING})
