"""Where an array lives, told without importing CuPy."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


def is_host(x: object) -> bool:
    """Whether an array lives in host memory (everything but a CuPy array does)."""
    return type(x).__module__.partition(".")[0] != "cupy"


def device_of(x: Any) -> str:
    """``"cpu"``, or ``"cuda:0"`` and so on."""
    return "cpu" if is_host(x) else f"cuda:{x.device.id}"


def to_host(x: Any) -> Any:
    """A CuPy array as a NumPy array, a QuantArray on the host; anything else as it is."""
    if not is_host(x):
        return x.get()
    return x.to("cpu") if hasattr(type(x), "dequantize") else x


def cuda_device() -> Any:
    """The module that knows CuPy, loaded only when someone asks for a device."""
    return importlib.import_module("ggmlq.cuda.device")


def namespace(x: Any) -> Any:
    """NumPy or CuPy, whichever made the array."""
    return np if is_host(x) else cuda_device().cupy()
