"""Runs a graph on a CPU with work memory of ours, and guard bytes behind it.

Kernels take what they need for a while from one piece of memory, whose size ggml plans before. A plan that is
too small shows nowhere else: what lies behind is overwritten, and the process may die much later.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from ..errors import LibraryFailedError
from .guards import GUARD, Stray
from .symbols import INT, SIZE, P

if TYPE_CHECKING:
    from .product import Multiplier

BEHIND = 1 << 20  # bytes of the guard


class Plan(ctypes.Structure):
    """ggml's plan of a computation: the size of its work memory, the memory, and what we leave as it is."""

    _fields_ = [("work_size", SIZE), ("work_data", P), ("rest", ctypes.c_uint8 * 112)]


def compute(m: Multiplier, graph: int, threads: int, what: str) -> Stray | None:
    """Run a graph; what was written behind the work memory, where the device is a CPU that shows it."""
    s = m.symbols
    if m.handle.device.backend != "CPU" or not s.has("ggml_graph_plan"):
        m.compute(graph, what)
        return None
    s.ggml_graph_plan.restype, s.ggml_graph_plan.argtypes = Plan, [P, INT, P]
    s.ggml_graph_compute.restype, s.ggml_graph_compute.argtypes = INT, [P, P]
    plan: Plan = s.ggml_graph_plan(graph, threads, None)
    size = int(plan.work_size)
    words = np.full(-(-size // 4) + BEHIND // 4, GUARD, np.uint32)
    memory = words.view(np.uint8)
    plan.work_data = memory.ctypes.data
    before = memory[size:].copy()
    status = s.ggml_graph_compute(graph, ctypes.byref(plan))
    if status != 0:
        raise LibraryFailedError(
            f"{what}: ggml_graph_compute returned status {status}, 0 is success; try another shape"
        )
    changed = np.flatnonzero(memory[size:] != before)
    if not changed.size:
        return None
    return Stray("behind the work memory", len(changed), int(changed[0]), int(changed[-1]))
