"""Kernels that a GPU gets with the package, counted: the rest wants a compiler, for ``ggmlq doctor``."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from typing import Any

from ... import cuda
from . import served


def coverage(capability: tuple[int, int]) -> dict[str, Any]:
    """Kernels in the package for a capability, of all there are; rooms of ggmlq/cuda that have none in it."""
    for module in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}."):
        importlib.import_module(module.name)
    launch = importlib.import_module(f"{cuda.__name__}.machine.launch")
    every, here = Counter[str](), Counter[str]()
    for name, family in launch.FAMILIES.items():
        room = name.split(".")[2]
        for case in family.cases:
            kernel = family.make(*case)
            every[room] += 1
            here[room] += served.is_served(kernel.origin, capability, kernel.exact)
    lacking = sorted(room for room in every if not here[room])
    return {"served": here.total(), "all": every.total(), "lacking": lacking}
