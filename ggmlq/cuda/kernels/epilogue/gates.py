"""The kernel of a gate behind two products: ``act(gate) · up``, rounded once, in the kind of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...driver.device import cupy
from ...driver.launch import Kernel, family
from ...intrinsics import hopper, ptx
from ...intrinsics.language import cuda, uint32, uint64
from ..layers import GATES, numbered_gate
from .results import LETTERS, store_as

THREADS = 256


@family()
def gater() -> Kernel:
    """The kernel: a thread makes a result."""
    load_float, take_turn = ptx.load_float, hopper.take_turn

    def gate(
        gates: Any, ups: Any,  # float32 [count]
        y: Any, y_kind: Any,  # [count], of a kind by its place in KINDS
        which: Any,  # activation, by its place in GATES
        count: Any,
    ) -> None:  # fmt: skip
        take_turn()
        i = uint64(cuda.blockIdx.x) * THREADS + uint64(cuda.threadIdx.x)
        if i < count:
            at = i * 4
            value = numbered_gate(which, load_float(gates + at), load_float(ups + at))
            store_as(y + (at if y_kind == 0 else i * 2), value, y_kind)

    parameters = (uint64, uint64, uint64, uint32, uint32, uint64)
    return Kernel("gates behind two products", gate, *parameters, threads=THREADS, early=True)


def gated(activation: str, gates: Any, ups: Any, y: Any) -> None:
    """``y = act(gates) · ups`` of float32 arrays; y may be one of them, or have 16 bits."""
    blocks = -(-y.size // THREADS)
    gater()((blocks,), (THREADS,), gates, ups, y, LETTERS[y.dtype.char], GATES.index(activation), y.size)


def gate_product(activation: str, gate: Any, up: Any) -> Any:
    """``act(gate) · up`` of float32 arrays of one shape, with any strides."""
    xp = cupy()
    y = xp.empty(gate.shape, np.float32)
    gated(activation, xp.ascontiguousarray(gate), xp.ascontiguousarray(up), y)
    return y
