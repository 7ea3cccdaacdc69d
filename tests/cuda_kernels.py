"""All kernels of the CUDA side, for the tests: importing its modules registers them."""

from __future__ import annotations

import importlib
import pkgutil


def families():
    """Every function that makes kernels, with all it is meant to be called with."""
    for package in ("ggmlq.cuda", "ggmlq.cuda.quantize", "ggmlq.cuda.linear"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")
    return importlib.import_module("ggmlq.cuda.launch").FAMILIES
