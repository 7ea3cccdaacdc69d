"""Rows taken from arrays on a GPU: blocks decoded as decode.py does, by ids; one kernel, of any format."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ...formats import BLOCK_FORMATS, BlockFormat
from ..activations.floats import converted
from ..intrinsics import dependent_launch
from ..intrinsics.floats import DTYPES, KINDS, LEAST, storing
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, float32, int64, uint32, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, family
from ._block import THREADS
from ._kinds import IDS, KIND_OF, SCALARS, STEP, bits_in, loading, words_of
from .decode import BLOCKS, part_decoder, threads_of_block
from .decode_k import LAYOUTS


@family((fmt, kind) for fmt in BLOCK_FORMATS for kind in KINDS)
def block_taker(fmt: BlockFormat, kind: str) -> Kernel:
    """The kernel that decodes rows of blocks; rows of ids that no row has are NaN."""
    decode_part, parts, size = part_decoder(fmt, kind), threads_of_block(fmt, kind), fmt.block_size
    each, take_turn, store = 16 // KINDS[kind], dependent_launch.take_turn, storing(kind)

    def kernel(
        blocks: Any,  # uint8 [blocks, bytes of one], or its address
        ids: Any,  # int64 [rows of the result]
        out: Any,  # floats [rows of the result · K]
        per_row: Any,  # blocks
        rows: Any,  # of q
    ) -> None:
        take_turn()
        index = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        b, part = index // uint32(parts), index % uint32(parts)
        row = b // uint32(per_row)
        if row < uint32(ids.shape[0]):
            at = ids[row]
            if at >= int64(0) and at < int64(rows):
                decode_part(blocks, uint32(at) * uint32(per_row) + (b - row * uint32(per_row)), part, out, b)
            else:
                v = cuda.local.array(each, float32)
                for i in range(each):
                    v[i] = float32(float("nan"))
                for i in range(size // (parts * each)):
                    store(
                        address(out, b, size, part * uint32(size // parts) + uint32(i * each), 16 // each),
                        v,
                        0,
                    )

    blocks_kind = uint64 if fmt.name in LAYOUTS else BLOCKS
    facts: dict[str, Any] = {"threads": THREADS, "least": LEAST[kind], "early": True}
    return Kernel(f"take {fmt.name} as {kind}", kernel, blocks_kind, IDS, uint64, uint32, uint32, **facts)


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
        per_row, blocks = columns // fmt.block_size, raw.reshape(-1, fmt.dtype.itemsize)
        grid: tuple[int, ...] = (-(-len(ids) * per_row * threads_of_block(fmt, kind) // THREADS),)
        block_taker(fmt, kind)(grid, (THREADS,), blocks, ids, out, per_row, len(q))
        return
    if fmt.name not in SCALARS:
        raise UnsupportedError(
            f"take(q, ids) of {q!r}: on a GPU rows are taken from blocks, f32, f16 and bf16; use q[ids]"
        )
    grid = (len(ids), -(-columns // (STEP * THREADS)))
    stored = raw.view(np.uint32 if fmt.name == "f32" else np.uint16)
    scalar_taker(fmt.name, kind)(grid, (THREADS,), stored, ids, words, columns, len(q))
