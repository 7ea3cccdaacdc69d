"""Calls a libggml of the user's, to compare its encoders, decoders and products with ours: ``gq.llama``."""

from typing import Any

from .bridge import Bridge, Measurement
from .devices import Device

_TRACING = (
    "activations",
    "attach",
    "compare_logits",
    "compare_with_model",
    "imatrix",
    "trace",
)  # functions of ggmlq.trace, which stands on this package: imported when they are used

__all__ = [
    "Bridge", "Device", "Measurement", "activations", "attach", "compare_logits", "compare_with_model",
    "imatrix", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _TRACING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("ggmlq.trace"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_TRACING})
