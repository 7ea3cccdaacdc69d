"""A count of the kernels that need no compiler on a GPU, for ``ggmlq doctor``."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from typing import Any

from ... import cuda
from . import served


def families() -> dict[str, Any]:
    """All families of kernels by name; importing their modules registers them."""
    for package in (cuda, importlib.import_module("ggmlq.gru.cuda")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    families_by_name: dict[str, Any] = importlib.import_module(f"{cuda.__name__}.machine.launch").FAMILIES
    return families_by_name


def coverage(capability: tuple[int, int]) -> dict[str, Any]:
    """The number of kernels whose code the package has for a capability, of all kernels; rooms with none."""
    totals, served_counts = Counter[str](), Counter[str]()
    for name, family in families().items():
        room = name.removeprefix("ggmlq.").removeprefix("cuda.").partition(".")[0]
        for case in family.cases:
            kernel = family.make(*case)
            totals[room] += 1
            served_counts[room] += served.is_served(kernel.origin, capability, kernel.exact)
    rooms_without = sorted(room for room in totals if not served_counts[room])
    return {"served": served_counts.total(), "all": totals.total(), "lacking": rooms_without}
