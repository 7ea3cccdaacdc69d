"""The driver of products with panels: activations become rows of codes, then threads share the panels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...arrays.buffers import address_of
from ...formats import BlockFormat
from ...formats.format import Bytes
from ...formats.packing import RUN
from ..encode.halves import float_rows
from ..machine.features import CACHED, prefetch_distance
from ..machine.kernels import Kernel, kernel
from ..machine.tables import address
from ..machine.target import Target
from ..machine.workers import SMALL, scratch, share_kernel, unrecorded
from .layout import (
    ROWS,
    Activations,
    Laying,
    Operands,
    PanelLayout,
    layout_of,
    remaining_zero,
    rows_at_once,
    start,
    unpacked,
    x_run_bytes,
)

FLOAT32 = np.dtype(np.float32)
ALONE = CACHED // 4  # as CACHED, for one row: a model reads its other layers before these weights come again
X_BYTES = 4 << 20  # bytes of activations multiplied at a time: the last cache holds them


class Coding(NamedTuple):
    """The codes of activations that meet panels of one layout, and the kernel that makes them."""

    quantizer: Kernel
    run_bytes: int
    zero: int  # that the product has to take from every code of the weights
    start: int  # the first value of its sums of integers
    most: int  # rows that a tile multiplies at once


@cache
def coding(layout: PanelLayout, kind: Target) -> Coding:
    """The codes of activations for a layout; found once, since each product asks for them."""
    quantizer = kernel("panels.make.quantizer", layout.groups, layout.offset, kind)
    zero, most = remaining_zero(layout, kind), rows_at_once(layout, kind)
    return Coding(quantizer, x_run_bytes(layout), zero, start(layout), most)


@cache
def coding_for_blocks(fmt: BlockFormat, kind: Target) -> Coding:
    """The codes of activations for weights that are unpacked to bytes in the product."""
    return coding(unpacked(fmt, kind), kind)


def multiply(
    x: Any, weights: Any, out: Any, how: Coding, kernels: Callable[[int], Kernel],
    grain: int = ROWS, most: int | None = None,
) -> None:  # fmt: skip
    """``out = x @ weights.T``; a part of the kernel ``kernels(rows at once)`` is ``grain`` rows of weights.

    ``how``: the codes for the panels that the tiles read; the kernels take ``Operands``.
    ``most``: rows of activations at once, if not as many as a tile has.
    """
    (m, k), n = x.shape, out.shape[1]
    runs = k // RUN
    if not runs:
        out[...] = 0
        return
    nbytes = runs * how.run_bytes
    most = 1 if m == 1 else most or how.most
    multiply_panels = kernels(most)
    step = max(X_BYTES // nbytes, 64) // most * most
    beyond = weights.nbytes > (ALONE if m == 1 else CACHED)
    weights_at, ahead = address_of(weights), prefetch_distance() if beyond else 0
    parts = -(-n // grain)
    for first in range(0, m, step):
        part, sums = (x, out) if m <= step else (x[first : first + step], out[first : first + step])
        x_rows, at = x_rows_of(part, how, most)
        arguments = Operands(  # in their order: by keyword this takes microseconds of a small product
            weights_at, weights.shape[0], weights.shape[1],
            at, len(x_rows), nbytes,
            address(sums), n, runs, ahead,
        )  # fmt: skip
        share_kernel(multiply_panels, arguments, parts, parts if m * n * k <= SMALL else 1)


def x_rows_of(x: Any, how: Coding, most: int = 1) -> tuple[Bytes, int]:
    """The activations as rows of codes, ``most`` in a batch, and their address."""
    m, k = x.shape
    rows = x if x.dtype is FLOAT32 and x.flags.c_contiguous else float_rows(x)
    x_rows = scratch((m, k // RUN * how.run_bytes), np.uint8)
    at = address(x_rows)
    arguments = Activations(
        address(rows), at, m, k // RUN * RUN,
        x_rows.shape[1], most, how.zero, how.start,
    )  # fmt: skip
    share_kernel(how.quantizer, arguments, m, 16)
    return x_rows, at


# --- Panels of weights, laid out once from the bytes of their blocks ------------------------------

SLAB = 1 << 17  # weights laid out at a time


def panels_shape(q: QuantArray) -> tuple[int, int] | None:
    """The shape of the panels of an array, (N / 16 rounded up, bytes of a panel); None where it has none."""
    layout = layout_of(q.format)
    if layout is None or q.ndim != 2:
        return None
    n, k = q.shape
    return -(-n // ROWS), layout.panel_bytes(k // RUN)


def panels(q: QuantArray) -> Bytes:
    """The panels of an array, uint8; rows beyond N are zeros."""
    shape, k = panels_shape(q), q.shape[1]
    assert shape is not None
    count, nbytes = shape
    memory = np.empty(count * nbytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    laid_out: Bytes = memory[skip : skip + count * nbytes].reshape(count, nbytes)
    pieces, place, at = q.pieces, kernel("panels.make.placer", q.format), 0
    if any(len(raw) % ROWS for raw in pieces[:-1]):
        pieces = (q.raw,)  # not .blocks: these may be big-endian
    grain = max(1, SLAB // (ROWS * max(k, 1)))
    with unrecorded():
        for piece in pieces:
            raw = piece if piece.strides[1] == 1 else np.ascontiguousarray(piece)
            (n, size), pitch, to = raw.shape, raw.strides[0], laid_out[at:].ctypes.data
            arguments = Laying(raw.ctypes.data, pitch, size, n, k, to, nbytes)
            share_kernel(place, arguments, -(-n // ROWS), grain)
            at += n // ROWS
    laid_out.flags.writeable = False
    return laid_out
