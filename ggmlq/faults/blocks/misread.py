"""Weights misread as the doctor imitates it, one mistake each: nibbles, high bits, constants, scales.

Mistakes are made in parts (codes, scales, offsets) or in fields by ggml's letters, so each one serves every
format that has this part or field.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...formats import BlockFormat, Format
from ...formats.format import Blocks
from ..explanation import Formulas, Mistake
from ..numbers import Index
from . import orders
from .operand import Operand, operand
from .packed import Packing, exchanges_halves, packing
from .packed import byte_formulas
from .readings import shifted
from .subscales import wrongly_unpacked
from .terms import one_term


def mistakes(fmt: Format, every: Blocks, columns: Index) -> Iterator[Mistake[Operand]]:
    """Every way to misread these rows [N, blocks] of the tensor, seen at some of its rows."""
    blocks = every[columns]
    right = operand(fmt, blocks)
    if isinstance(fmt, BlockFormat):
        yield from _constants(fmt, right)
        yield from _nibbles(fmt, right)
        yield from _high_bits(fmt, blocks, right)
        yield from _sub_scales(fmt, right)
        yield from one_term(fmt, right)
        yield from wrongly_unpacked(fmt, blocks)
        yield from _neighbours(fmt, every, columns)


# --- constants and offsets ------------------------------------------------------------------


def _constants(fmt: BlockFormat, right: Operand) -> Iterator[Mistake[Operand]]:
    """The constant inside the code, and the offset of formats that have one."""
    if fmt.zero:
        z = float(fmt.zero)
        yield Mistake("offset-missing", f"{z:g} never taken off", right.but(zero=0.0, summed=0.0))
        yield Mistake("offset-twice", f"{z:g} taken off twice", right.but(zero=2 * z, summed=z))
        yield Mistake("offset-sign", f"{z:g} added", right.but(zero=-z, summed=-z))
        signed = np.where(right.stored >= z, right.stored - 2 * z, right.stored)
        signed_codes = right.but(stored=signed, zero=0.0, summed=0.0)
        yield Mistake("offset-missing", "taken as two's complement", signed_codes)
    if fmt.has_offset:
        grouped = fmt.block_size > fmt.group
        fault = "min-ignored" if grouped else "sum-missing"
        name = "the minima" if grouped else "m"
        yield Mistake(fault, f"{name} never applied", right.but(offset=0 * right.offset))
        yield Mistake("offset-sign", f"{name} with the other sign", right.but(offset=-right.offset))
        yield Mistake("offset-twice", f"{name} applied twice", right.but(offset=2 * right.offset))
    codes = right.stored - right.zero
    if not fmt.zero and not fmt.has_offset and fmt.block_size == 256 and codes.size:
        whole = np.rint(codes / 8) * 8
        if np.abs(codes - whole).max(initial=0) == 1:  # iq1: eighths beside the grid
            yield Mistake("offset-missing", "the eighth never added", right.but(stored=whole))


# --- codes ----------------------------------------------------------------------------------


def _nibbles(fmt: BlockFormat, right: Operand) -> Iterator[Mistake[Operand]]:
    """Codes of a block in the wrong order: all of them, or the low bits alone."""
    if _bits_a_byte(fmt) > 4:
        return
    split = low_bits(fmt)
    stored = right.stored.reshape(-1, fmt.block_size)
    packed = packing(fmt.name)
    for name, order in orders.field_orders(fmt.block_size):
        fault, formulas = order_fault(packed, order)
        moved = right.but(stored=stored[:, order].reshape(right.stored.shape))
        yield Mistake(fault, name, moved, formulas=formulas)
        if split:
            low, high = stored % 2**split, stored // 2**split
            mixed = low[:, order] + high * 2**split
            weights = right.but(stored=mixed.reshape(right.stored.shape))
            yield Mistake(fault, f"{name}, high bits in place", weights, formulas=formulas)


def order_fault(packed: Packing | None, order: orders.Order) -> tuple[str, Formulas | None]:
    """The name of the fault that takes packed codes in this order, and its formulas if any."""
    if packed is None:
        return "nibble-order", None
    fault = "nibbles-exchanged" if exchanges_halves(packed, order) else "nibble-order"
    return fault, lambda: byte_formulas(packed, order)


def _bits_a_byte(fmt: BlockFormat) -> int:
    """Bits of a code that the main field (qs, ql) holds; more than 4 where it is not packed."""
    assert fmt.dtype.fields is not None
    name = "ql" if "ql" in fmt.dtype.fields else "qs"
    if name not in fmt.dtype.fields or fmt.dtype[name].base != np.dtype("u1"):
        return 8
    bits = 8 * fmt.dtype[name].itemsize // fmt.block_size
    return bits if bits in (2, 4) else 8


def low_bits(fmt: BlockFormat) -> int:
    """The number of bits of a code below its high bits; 0 if a format does not store high bits apart."""
    names = fmt.dtype.names or ()
    plain = _bits_a_byte(fmt) in (2, 4) and (fmt.zero or fmt.has_offset)
    return _bits_a_byte(fmt) if plain and {"qh", "hmask"} & set(names) else 0


def _high_bits(fmt: BlockFormat, blocks: Blocks, right: Operand) -> Iterator[Mistake[Operand]]:
    """High bits dropped, turned over, shifted, or taken from another element's place."""
    split = low_bits(fmt)
    if not split:
        if "qh" in (fmt.dtype.names or ()):  # code books: the high bits of the row's number
            without = blocks.copy()
            without["qh"] = 0
            yield Mistake("high-bits", "dropped", operand(fmt, without))
        return
    shape = right.stored.shape
    stored = right.stored.reshape(-1, fmt.block_size)
    unit = 2**split
    low, high = stored % unit, stored // unit
    top = 2 * fmt.zero // unit - 1 if fmt.zero else high.max(initial=0)
    changed = {
        "dropped": 0 * high,
        "always set": 0 * high + top,
        "turned over": top - high,
        "shifted one place too little": high / 2,
        "shifted one place too far": high * 2,
    }
    if top > 1:
        changed["the upper one dropped"] = high % 2
        changed["the lower one dropped"] = high // 2 * 2
        changed["exchanged"] = high % 2 * 2 + high // 2
    for name, bits in changed.items():
        weights = right.but(stored=(low + bits * unit).reshape(shape))
        yield Mistake("high-bits", name, weights)
    half = right.but(stored=low.reshape(shape), zero=right.zero / 2, summed=right.summed / 2)
    if fmt.zero:
        yield Mistake("high-bits", "dropped, and the constant halved", half)
    for name, order in orders.bit_orders(fmt.block_size):
        weights = right.but(stored=(low + high[:, order] * unit).reshape(shape))
        yield Mistake("high-bits", name, weights)


# --- scales ---------------------------------------------------------------------------------


def _sub_scales(fmt: BlockFormat, right: Operand) -> Iterator[Mistake[Operand]]:
    """The sub-scales of a super-block, each right, in the wrong order."""
    groups = fmt.block_size // fmt.group
    if groups == 1:
        return
    shape = right.scale.shape
    scale, offset = right.scale.reshape(-1, groups), right.offset.reshape(-1, groups)
    for name, order in orders.group_orders(groups):
        s, o = scale[:, order].reshape(shape), offset[:, order].reshape(shape)
        yield Mistake("sub-scale-order", name, right.but(scale=s, offset=o))
        if fmt.has_offset:
            yield Mistake("sub-scale-order", f"scales {name}", right.but(scale=s))
            yield Mistake("sub-scale-order", f"minima {name}", right.but(offset=o))


def _neighbours(fmt: BlockFormat, every: Blocks, columns: Index) -> Iterator[Mistake[Operand]]:
    """The scale d (and dmin, m) of the block before or after, under every rule for the end."""
    names = fmt.dtype.names or ()
    fields = [name for name in ("d", "dmin", "m", "e") if name in names]
    if every.size < 2:
        return
    index = np.arange(every.size, dtype=np.float64).reshape(every.shape)
    sets = [tuple(fields), *((name,) for name in fields if len(fields) > 1)]
    places: dict[bytes, tuple[str, Index]] = {}
    for name, place in shifted(index + 1, ("wraps", "itself", "zero")):  # 0 marks "zero"
        at = place[columns].astype(np.int64) - 1
        places.setdefault(at.tobytes(), (name, at))  # many differ at the ends of the tensor alone
    for which in sets:
        for name, at in places.values():
            changed = every[columns].copy()
            for field in which:
                values = every.reshape(-1)[field][at]
                outside = (at < 0).reshape(at.shape + (1,) * (values.ndim - at.ndim))
                changed[field] = np.where(outside, np.zeros((), values.dtype), values)
            label = f"{' and '.join(which)} of the {name}"
            yield Mistake("scale-neighbour", label, operand(fmt, changed))
