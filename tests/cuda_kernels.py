"""All kernels of the CUDA side, for the tests: importing its modules registers them."""

from __future__ import annotations

import importlib
import pkgutil


def families():
    """Every function that makes kernels, with all it is meant to be called with."""
    for module in pkgutil.walk_packages(importlib.import_module("ggmlq.cuda").__path__, "ggmlq.cuda."):
        importlib.import_module(module.name)
    return importlib.import_module("ggmlq.cuda.machine.launch").FAMILIES
