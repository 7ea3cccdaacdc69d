"""Rows taken from arrays on a GPU: blocks decoded by their atoms, by ids; one kernel, of any format."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ...formats import BLOCK_FORMATS, BlockFormat
from ..activations.floats import converted
from ..intrinsics.atoms import atoms
from ..intrinsics.floats import DTYPES, KINDS, LEAST
from ..intrinsics.language import cuda, float32, int64, uint8, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, array, family
from ._block import THREADS
from ._kinds import IDS, KIND_OF, SCALARS, STEP, bits_in, loading, words_of
from .decode import values


@family((fmt, kind) for fmt in BLOCK_FORMATS for kind in KINDS)
def block_taker(fmt: BlockFormat, kind: str) -> Kernel:
    """The kernel that decodes rows of blocks by their atoms; a thread has neighbours of one group."""
    value, (_, scale, offset) = values(fmt), atoms(fmt)
    size, group, bits = fmt.block_size, fmt.group, bits_in(kind)
    run = min(group, 8)

    def kernel(
        blocks: Any,  # uint8 [blocks, bytes of one]
        ids: Any,  # int64 [rows of the result]
        out: Any,  # bits of floats [rows of the result · K]
        per_row: Any,  # blocks
    ) -> None:
        thread = int64(cuda.blockIdx.x) * int64(THREADS) + int64(cuda.threadIdx.x)
        b, part = thread // int64(size // run), thread % int64(size // run)
        row = b // int64(per_row)
        if row < int64(ids.shape[0]):
            at, start = ids[row], part * int64(run)
            place = b * int64(size) + start
            if at >= int64(0) and at * int64(per_row) < int64(blocks.shape[0]):
                block = blocks[at * int64(per_row) + (b - row * int64(per_row))]
                s, o = scale(block, start // int64(group)), offset(block, start // int64(group))
                for i in range(run):
                    out[place + i] = bits(value(block, start + i, s, o))
            else:
                for i in range(run):
                    out[place + i] = bits(float32(float("nan")))

    parameters = (array(uint8, 2), IDS, words_of(kind), uint64)
    return Kernel(f"take {fmt.name} as {kind}", kernel, *parameters, threads=THREADS, least=LEAST[kind])


@family((name, kind) for name in SCALARS for kind in KINDS)
def scalar_taker(name: str, kind: str) -> Kernel:
    """The kernel that converts rows of numbers without blocks to floats of a kind."""
    load, bits = loading(KIND_OF[name]), bits_in(kind)

    def kernel(
        raw: Any,  # bits of numbers [rows of q · K]
        ids: Any,  # int64 [rows of the result]
        out: Any,  # bits of floats [rows of the result · K]
        columns: Any,
        rows: Any,  # of q
    ) -> None:
        row = int64(cuda.blockIdx.x)
        at = ids[row]
        for step in range(STEP):
            column = int64(cuda.blockIdx.y) * int64(STEP * THREADS) + int64(step * THREADS)
            column += int64(cuda.threadIdx.x)
            if column < int64(columns):
                word = bits(float32(float("nan")))
                if at >= int64(0) and at < int64(rows):
                    word = bits(load(raw, at * int64(columns) + column))
                out[row * int64(columns) + column] = word

    parameters = (words_of(KIND_OF[name]), IDS, words_of(kind), uint64, uint64)
    return Kernel(f"take {name} as {kind}", kernel, *parameters, threads=THREADS, least=LEAST[kind])


def take(q: QuantArray, ids: Any, dtype: np.dtype[Any]) -> Any:
    """Rows ``ids`` of q as floats, on the current device."""
    kind = dtype.name if dtype.name in KINDS else "float32"
    out, fmt = cupy().empty((*ids.shape, *q.shape[1:]), DTYPES[kind]), q.format
    if out.size:
        _take(fmt, kind, q, ids.reshape(-1), out.reshape(-1))
    return converted(out, dtype) if kind == "float32" else out.view(dtype)


def _take(fmt: Any, kind: str, q: QuantArray, ids: Any, out: Any) -> None:
    columns, raw = out.size // len(ids), q.raw.reshape(-1)
    words = out.view(np.uint32 if kind == "float32" else np.uint16)
    if isinstance(fmt, BlockFormat):
        threads = out.size // min(fmt.group, 8)
        blocks = raw.reshape(-1, fmt.dtype.itemsize)
        block_taker(fmt, kind)(
            (-(-threads // THREADS),), (THREADS,), blocks, ids, words, columns // fmt.block_size
        )
        return
    if fmt.name not in SCALARS:
        raise UnsupportedError(
            f"take(q, ids) of {q!r}: on a GPU rows are taken from blocks, f32, f16 and bf16; use q[ids]"
        )
    grid = (len(ids), -(-columns // (STEP * THREADS)))
    stored = raw.view(np.uint32 if fmt.name == "f32" else np.uint16)
    scalar_taker(fmt.name, kind)(grid, (THREADS,), stored, ids, words, columns, len(q))
