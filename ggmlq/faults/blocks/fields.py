"""Mistakes with whole fields of a block: those of another block, or their bytes in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...formats import BlockFormat
from ...formats.format import Blocks
from ..findings import Mistake
from ..numbers import Index
from .books import grid_of
from .operand import Operand, operand
from .readings import shifted

Turn = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
SCALES = ("d", "dmin", "m", "e")


def of_fields(fmt: BlockFormat, every: Blocks, columns: Index) -> Iterator[Mistake[Operand]]:
    """Fields of another block, and fields whose bytes are read wrongly."""
    yield from _neighbours(fmt, every, columns)
    yield from _bytes(fmt, every[columns])


def _bytes(fmt: BlockFormat, blocks: Blocks) -> Iterator[Mistake[Operand]]:
    """Bytes of a field that are exchanged, turned or never read."""
    for field in fmt.dtype.names or ():
        kind = fmt.dtype[field]
        if field in SCALES:
            continue
        raw = np.ascontiguousarray(blocks[field]).view(np.uint8).reshape(*blocks.shape, -1)
        for name, change in TURNS.items():
            changed = blocks.copy()
            turned = np.ascontiguousarray(change(raw).reshape(raw.shape))
            changed[field] = turned.view(kind.base).reshape(changed[field].shape)
            yield Mistake(_fault(fmt, field, name), f"{field}: {name}", operand(fmt, changed))


def _fault(fmt: BlockFormat, field: str, turn: str) -> str:
    """The name of a mistake with the bytes of a field."""
    if field.startswith("scales"):
        whole = fmt.dtype[field].itemsize == fmt.block_size // fmt.group
        return "sub-scale-order" if whole and turn in ORDERS else "sub-scale-unpack"
    if field in ("qh", "hmask"):
        return "high-bits"
    if field == "signs":
        return "sign-bits"
    if grid_of(fmt) is not None:
        return "grid-index"
    return "nibble-order" if turn in ORDERS else "nibbles-exchanged" if "nibbles" in turn else "codes-misread"


def _units(width: int) -> Turn:
    """Bits of each byte with units of some bits in reverse."""

    def turned(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        bits = np.unpackbits(raw[..., None], axis=-1).reshape(*raw.shape, 8 // width, width)
        return np.packbits(bits[..., ::-1, :].reshape(*raw.shape, 8), axis=-1)[..., 0]

    return turned


def _pairs(raw: NDArray[np.uint8], parts: int = 0) -> NDArray[np.uint8]:
    """Bytes in pairs, or in some parts; all in one where they are odd."""
    count = raw.shape[-1]
    return raw.reshape(*raw.shape[:-1], *((1, count) if count % 2 else (parts or count // 2, -1)))


ORDERS: dict[str, Turn] = {
    "bytes in reverse": lambda raw: raw[..., ::-1],
    "the next byte": lambda raw: np.roll(raw, -1, axis=-1),
    "the byte before": lambda raw: np.roll(raw, 1, axis=-1),
    "neighbouring bytes exchanged": lambda raw: np.flip(_pairs(raw), -1),
    "halves exchanged": lambda raw: np.roll(raw, raw.shape[-1] // 2, axis=-1),
    "bytes of two halves in turn": lambda raw: _pairs(raw, 2).swapaxes(-1, -2),
    "each second byte first": lambda raw: _pairs(raw).swapaxes(-1, -2),
}
TURNS: dict[str, Turn] = ORDERS | {
    "bits of each byte in reverse": _units(1),
    "pairs of bits of each byte in reverse": _units(2),
    "nibbles of each byte exchanged": _units(4),
    "all bits turned over": lambda raw: ~raw,
    "never read": lambda raw: raw * np.uint8(0),
    "high nibbles never read": lambda raw: raw & np.uint8(15),
}


def _neighbours(fmt: BlockFormat, every: Blocks, columns: Index) -> Iterator[Mistake[Operand]]:
    """Fields of the block before or after: the scale d (and dmin, m) under every rule for the end, codes."""
    names = fmt.dtype.names or ()
    fields = [name for name in SCALES if name in names]
    codes = [name for name in names if name not in fields]
    if every.size < 2:
        return
    index = np.arange(every.size, dtype=np.float64).reshape(every.shape)
    places: dict[bytes, tuple[str, Index]] = {}
    for name, place in shifted(index + 1, ("wraps", "itself", "zero")):  # 0 marks "zero"
        at = place[columns].astype(np.int64) - 1
        places.setdefault(at.tobytes(), (name, at))  # many differ at the ends of the tensor alone
    whole = index.astype(np.int64)[columns]
    plain = [(name, at) for name, at in places.values() if name.endswith("wraps")]
    plain += [("first block of the row", whole - whole % every.shape[1])]
    plain += [("row below", (whole + every.shape[1]) % every.size)] if len(every) > 1 else []
    for which in [*_some(fields), *_some(codes)] if fields else ():
        is_scale = which[0] in fields or which[0].startswith("scales")
        fault = "scale-neighbour" if is_scale else "codes-misread"
        for name, at in [*places.values(), *plain[-2:]] if which[0] in fields else plain:
            changed = every[columns].copy()
            for field in which:
                values = every.reshape(-1)[field][at]
                outside = (at < 0).reshape(at.shape + (1,) * (values.ndim - at.ndim))
                changed[field] = np.where(outside, np.zeros((), values.dtype), values)
            yield Mistake(fault, f"{' and '.join(which)} of the {name}", operand(fmt, changed))
    right = operand(fmt, every[columns])
    for name, at in plain if fmt.block_size > fmt.group else ():  # in arrays of their own
        other = operand(fmt, every.reshape(-1)[at])
        yield Mistake("scale-neighbour", f"scales of the {name}", right.but(scale=other.scale))
        if fmt.has_offset:
            yield Mistake("scale-neighbour", f"minima of the {name}", right.but(offset=other.offset))


def _some(fields: Sequence[str]) -> list[list[str]]:
    """All fields, and each by itself."""
    return [list(fields), *([name] for name in fields if len(fields) > 1)]
