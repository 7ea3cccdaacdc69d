"""The expansion of a stored panel to bytes and float32, which pays where many rows of activations use it."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..machine.intrinsics import intrinsic_of
from ..machine.numba_names import cgutils
from ..machine.simd import I64
from ..machine.target import Target
from .layout import ROWS, PanelLayout, expanded
from .read import Panel


@cache
def expander(layout: PanelLayout, target: Target) -> Any:
    """An intrinsic that expands a panel: (its address, that of the expanded one, number of runs)."""
    wide = expanded(layout, target)
    return intrinsic_of(lambda builder, *words: _emit(Panel(builder, layout, target), wide, *words), 3)


def _emit(panel: Panel, to: PanelLayout, source: Any, target: Any, runs: Any) -> None:
    b, store = panel.b, panel.simd.store
    with cgutils.for_range(b, runs, intp=I64) as loop:
        here = panel.run_at(source, loop.index)
        there = b.add(target, b.mul(loop.index, I64(to.run_bytes)))
        for group in range(to.groups):
            scale, offset = panel.scale(here, group)
            store(scale, b.add(there, I64(4 * ROWS * group)))
            if to.offset:
                store(offset, b.add(there, I64(to.scales + 4 * ROWS * group)))
        for j in range(8):
            store(panel.codes(here, j), b.add(there, I64(to.codes_at + 64 * j)))
