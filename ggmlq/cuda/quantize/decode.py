"""``dequantize`` on the GPU: one kernel for all formats, through their atoms, except K types (decode_k.py).

A thread decodes the neighbours that fill one store of 16 bytes, so it needs one scale and one
offset. Product and difference are rounded one after the other, as in ggml: never fused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...formats import BLOCK_FORMATS, BlockFormat
from ...formats.scalars import ScalarFormat
from ..activations.floats import converted
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import atoms, inlined
from ..intrinsics.floats import DTYPES, KINDS, LEAST, storing
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, float32, int64, uint8, uint32, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, array, family
from . import decode_k

THREADS = 256
BLOCKS = array(uint8, 2)  # [blocks, bytes of a block]


def values(fmt: BlockFormat) -> Any:
    """The device function ``value(block, i, scale, offset)`` of a format, rounded as in ggml."""
    code, has_offset = atoms(fmt).code, fmt.has_offset
    mul, sub = ptx.mul, ptx.sub

    @inlined
    def value(block: Any, i: Any, scale: Any, offset: Any) -> Any:
        product = mul(scale, float32(code(block, i)))
        if has_offset:
            product = sub(product, offset)
        return product

    return value


class _WatchedBlock:
    """A block of zeros that records the bytes that are read."""

    def __init__(self) -> None:
        self.read: set[int] = set()

    def __getitem__(self, at: int) -> np.uint8:
        self.read.add(at)
        return np.uint8(0)


def partner(fmt: BlockFormat) -> int:
    """The distance from element 0 to the next one whose code lies in the same bytes.

    The low nibble's partner is 16 further in q4_0 and 32 further in q4_K: the atoms tell. A format without
    one gets half a block, so that the stores of a warp lie side by side.
    """
    first = _WatchedBlock()
    fmt.code(first, 0)  # type: ignore[arg-type]
    for distance in (16, 32, 64, 128):
        other = _WatchedBlock()
        if 2 * distance <= fmt.block_size:
            fmt.code(other, distance)  # type: ignore[arg-type]
        if first.read & other.read:
            return distance
    return fmt.block_size // 2


def threads_of_block(fmt: BlockFormat, kind: str) -> int:
    """Threads that decode a block together."""
    if fmt.name in decode_k.LAYOUTS:
        return decode_k.threads_of_block(fmt, kind)
    return fmt.block_size * KINDS[kind] // 32


def part_decoder(fmt: BlockFormat, kind: str) -> Any:
    """The device function ``decode(blocks, b, part, out, to)``: a thread's part of block b, to block ``to``.

    ``blocks``: an address for K types, otherwise an array [blocks, bytes of one].
    """
    if fmt.name in decode_k.LAYOUTS:
        return decode_k.part_decoder(fmt, kind)
    value, (_, scale, offset) = values(fmt), atoms(fmt)
    store_length = 16 // KINDS[kind]  # values of a store
    apart = partner(fmt)
    size, group, count = fmt.block_size, fmt.group, 2 * store_length
    store = storing(kind)

    @inlined
    def by_atoms(blocks: Any, b: Any, part: Any, out: Any, to: Any) -> None:
        block = blocks[b]
        pairs, within = part // uint32(apart // store_length), part % uint32(apart // store_length)
        start = pairs * uint32(2 * apart) + within * uint32(store_length)
        v = cuda.local.array(count, float32)
        for side in range(2):  # loops, so that a code book is in the code once
            i = int64(start) + side * apart
            s, o = scale(block, i // group), offset(block, i // group)
            for j in range(store_length):
                v[side * store_length + j] = value(block, i + j, s, o)
        at = address(out, to, size, start, 16 // store_length)
        store(at, v, 0)
        store(at + uint64(apart * 16 // store_length), v, store_length)

    return by_atoms


@family((fmt, kind) for fmt in BLOCK_FORMATS for kind in KINDS)
def decoder(fmt: BlockFormat, kind: str) -> Kernel:
    """The kernel for one format and one kind of values."""
    name = f"dequantize {fmt.name} to {kind}"
    facts: dict[str, Any] = {"threads": THREADS, "least": LEAST[kind], "early": True}
    if fmt.name in decode_k.LAYOUTS:
        return Kernel(name, decode_k.decoder(fmt, kind, THREADS), uint64, uint64, uint32, **facts)
    decode_part, parts = part_decoder(fmt, kind), threads_of_block(fmt, kind)
    take_turn = dependent_launch.take_turn

    def by_atoms(
        blocks: Any,  # uint8 [blocks, bytes of one]
        out: Any,  # values of the kind [blocks, block size]
    ) -> None:
        take_turn()
        index = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        b = index // uint32(parts)
        if b < uint32(blocks.shape[0]):
            decode_part(blocks, b, index % uint32(parts), out, b)

    return Kernel(name, by_atoms, BLOCKS, uint64, **facts)


def dequantize(q: QuantArray, dtype: np.dtype[Any]) -> Any:
    """The values of an array on the current device."""
    if dtype.name == "bfloat16" and (isinstance(q.format, BlockFormat) or q.format.name == "bf16"):
        bits = decoded(q, "bfloat16")
        return (bits.copy() if q.format.name == "bf16" else bits).view(dtype).reshape(q.shape)
    if isinstance(q.format, ScalarFormat):
        stored = q.raw.reshape(-1).view(q.format.dtype).reshape(q.shape)
        if q.format.bfloat:
            stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return converted(stored, dtype)
    return converted(decoded(q, "float16" if dtype == np.float16 else "float32"), dtype)


def decoded(q: QuantArray, kind: str) -> Any:
    """The values of an array in a kind of floats; those of kind bfloat16 as uint16, their bits."""
    fmt = q.format
    if isinstance(fmt, ScalarFormat) and fmt.bfloat and kind == "bfloat16":
        return q.raw.view(DTYPES[kind])
    assert isinstance(fmt, BlockFormat)
    out = cupy().empty(q.shape, DTYPES[kind])
    decode(fmt, kind, q.raw.reshape(-1, fmt.dtype.itemsize), out)
    return out


def decode(fmt: BlockFormat, kind: str, blocks: Any, out: Any) -> None:
    """Decode blocks [count, bytes of one] into ``out``, values of a kind."""
    by_words = fmt.name in decode_k.LAYOUTS
    store_length = decode_k.thread_values(kind) if by_words else 32 // KINDS[kind]
    more = (len(blocks),) if by_words else ()
    decoder(fmt, kind)((-(-out.size // (store_length * THREADS)),), (THREADS,), blocks, out, *more)
