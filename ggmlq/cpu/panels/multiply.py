"""The driver of products with panels: activations become rows of codes, then threads share the panels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.packing import RUN
from ..encode._halves import float_rows
from ..machine.features import CACHED, prefetch_distance
from ..machine.kernels import Kernel, kernel
from ..machine.tables import address
from ..machine.target import target
from ..machine.workers import scratch, share_kernel
from .layout import ROWS, PanelLayout, remaining_zero, rows_at_once, start, x_run_bytes
from .operands import Activations, Operands

ALONE = CACHED // 4  # as CACHED, for one row: a model reads its other layers before these weights come again
X_BYTES = 4 << 20  # bytes of activations multiplied at a time: the last cache holds them


def multiply(
    x: Any, weights: Any, out: Any, layout: PanelLayout, kernels: Callable[[int], Kernel],
    grain: int = ROWS, most: int | None = None,
) -> None:  # fmt: skip
    """``out = x @ weights.T``; a part of the kernel ``kernels(rows at once)`` is ``grain`` rows of weights.

    ``layout`` is the one of the panels that the tiles read; the kernels take ``Operands``.
    ``most``: rows of activations at once, if not as many as a tile has.
    """
    n, runs = out.shape[1], x.shape[1] // RUN
    if not runs:
        out[...] = 0
        return
    nbytes = runs * x_run_bytes(layout)
    most = 1 if len(x) == 1 else most or rows_at_once(layout, target())
    multiply_panels = kernels(most)
    step = max(X_BYTES // nbytes, 64) // most * most
    beyond = weights.nbytes > (ALONE if len(x) == 1 else CACHED)
    weights_at, ahead = address(weights), prefetch_distance() if beyond else 0
    for first in range(0, len(x), step):
        x_rows, at = x_rows_of(x[first : first + step], layout, most)
        part: Floats = out[first : first + step]
        arguments = Operands(  # in their order: by keyword this takes microseconds of a small product
            weights_at, weights.shape[0], weights.shape[1],
            at, len(x_rows), nbytes,
            address(part), n, runs, ahead,
        )  # fmt: skip
        share_kernel(multiply_panels, arguments, -(-n // grain))


def x_rows_of(x: Any, layout: PanelLayout, most: int = 1) -> tuple[Bytes, int]:
    """The activations as rows of codes for the tiles of a layout, ``most`` in a batch, and their address."""
    kind, runs = target(), x.shape[1] // RUN
    rows = float_rows(x)
    x_rows = scratch((len(rows), runs * x_run_bytes(layout)), np.uint8)
    quantize = kernel("panels.activations.quantizer", layout.groups, layout.offset, kind)
    at = address(x_rows)
    arguments = Activations(
        address(rows), at, len(rows), runs * RUN,
        x_rows.shape[1], most, remaining_zero(layout, kind), start(layout),
    )  # fmt: skip
    share_kernel(quantize, arguments, len(rows), 16)
    return x_rows, at
