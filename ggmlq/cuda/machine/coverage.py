"""Kernels that a GPU gets with the package, counted: the rest wants a compiler, for ``ggmlq doctor``."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from typing import Any

from ... import cuda
from . import served


def families() -> dict[str, Any]:
    """Every function that makes kernels, by name, once the modules of all are imported."""
    for package in (cuda, importlib.import_module("ggmlq.gru.cuda")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    made: dict[str, Any] = importlib.import_module(f"{cuda.__name__}.machine.launch").FAMILIES
    return made


def coverage(capability: tuple[int, int]) -> dict[str, Any]:
    """Kernels in the package for a capability, of all there are; rooms that have none in it."""
    every, here = Counter[str](), Counter[str]()
    for name, family in families().items():
        room = name.removeprefix("ggmlq.").removeprefix("cuda.").partition(".")[0]
        for case in family.cases:
            kernel = family.make(*case)
            every[room] += 1
            here[room] += served.is_served(kernel.origin, capability, kernel.exact)
    lacking = sorted(room for room in every if not here[room])
    return {"served": here.total(), "all": every.total(), "lacking": lacking}
