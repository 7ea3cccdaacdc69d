"""Weights misread as the doctor imitates it: nibbles, high bits, constants, scales, addresses, the end of K.

Mistakes are made in parts (codes, scales, offsets) or in fields by ggml's letters, so each one serves every
format that has this part or field.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...formats import FORMATS, BlockFormat, Format
from ...formats.format import Blocks
from ..findings import Formulas, Mistake
from ..numbers import Index
from .books import of_grids
from .fields import of_fields
from .formulas import Packing, bits_a_byte, byte_formulas, exchanges_halves, low_bits, main_field, packing
from .operand import Operand, operand
from .orders import bit_orders, field_orders, group_orders
from .subscales import wrongly_unpacked
from .tables import of_tables

Misread = Iterator[Mistake[Operand]]


def mistakes(fmt: Format, every: Blocks, columns: Index) -> Misread:
    """Every way to misread these rows [N, blocks] of the tensor, seen at some of its rows."""
    blocks = every[columns]
    right = operand(fmt, blocks)
    if isinstance(fmt, BlockFormat):
        yield from _constants(fmt, right)
        yield from _nibbles(fmt, right)
        yield from _high_bits(fmt, right)
        yield from _sub_scales(fmt, right)
        yield from _one_term(fmt, right)
        yield from wrongly_unpacked(fmt, blocks)
        yield from of_grids(fmt, right)
        yield from of_tables(fmt, blocks, right)
        yield from of_fields(fmt, every, columns)


# --- constants and offsets ------------------------------------------------------------------


def _constants(fmt: BlockFormat, right: Operand) -> Misread:
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
        fault, name = ("min-ignored", "the minima") if grouped else ("sum-missing", "m")
        yield Mistake(fault, f"{name} never applied", right.but(offset=0 * right.offset))
        yield Mistake("offset-sign", f"{name} with the other sign", right.but(offset=-right.offset))
        yield Mistake("offset-twice", f"{name} applied twice", right.but(offset=2 * right.offset))
    for step, words in ((1, "large"), (-1, "small")) if fmt.zero != 1 else ():
        yield Mistake("codes-misread", f"each code 1 too {words}", right.but(stored=right.stored + step))
    if fmt.dtype[main_field(fmt)].base == np.dtype("i1"):
        yield Mistake("codes-misread", "bytes taken for unsigned ones", right.but(stored=right.stored % 256))
    codes = right.stored - right.zero
    if not fmt.zero and not fmt.has_offset and fmt.block_size == 256 and codes.size:
        whole = np.rint(codes / 8) * 8
        if np.abs(codes - whole).max(initial=0) == 1:  # iq1: eighths beside the grid
            yield Mistake("offset-missing", "the eighth never added", right.but(stored=whole))


# --- codes ----------------------------------------------------------------------------------


def _nibbles(fmt: BlockFormat, right: Operand) -> Misread:
    """Codes of a block in the wrong order: all of them, or the low bits alone."""
    if bits_a_byte(fmt) > 4:
        return
    unit, shape = 2 ** low_bits(fmt), right.stored.shape
    stored = right.stored.reshape(-1, fmt.block_size)
    packed = packing(fmt.name)
    for name, order in field_orders(fmt.block_size):
        fault, formulas = order_fault(packed, order)
        moved = right.but(stored=stored[:, order].reshape(shape))
        yield Mistake(fault, name, moved, formulas=formulas)
        if unit > 1:
            mixed = right.but(stored=((stored % unit)[:, order] + stored // unit * unit).reshape(shape))
            yield Mistake(fault, f"{name}, high bits in place", mixed, formulas=formulas)


def order_fault(packed: Packing | None, order: Index) -> tuple[str, Formulas | None]:
    """The name of the fault that takes packed codes in this order, and its formulas if any."""
    if packed is None:
        return "nibble-order", None
    fault = "nibbles-exchanged" if exchanges_halves(packed, order) else "nibble-order"
    return fault, lambda: byte_formulas(packed, order)


def _high_bits(fmt: BlockFormat, right: Operand) -> Misread:
    """High bits dropped, turned over, shifted, or taken from another element's place."""
    split = low_bits(fmt)
    if not split:
        return
    unit, shape = 2**split, right.stored.shape
    stored = right.stored.reshape(-1, fmt.block_size)
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
        yield Mistake("high-bits", name, right.but(stored=(low + bits * unit).reshape(shape)))
    if fmt.zero:
        half = right.but(stored=low.reshape(shape), zero=right.zero / 2, summed=right.summed / 2)
        yield Mistake("high-bits", "dropped, and the constant halved", half)
    for name, order in bit_orders(fmt.block_size):
        yield Mistake("high-bits", name, right.but(stored=(low + high[:, order] * unit).reshape(shape)))


# --- scales ---------------------------------------------------------------------------------


def _sub_scales(fmt: BlockFormat, right: Operand) -> Misread:
    """The sub-scales of a super-block, each right, in the wrong order; or all its weights."""
    groups = fmt.block_size // fmt.group
    for name, order in group_orders(groups) if groups > 1 else ():
        s, o = (
            part.reshape(-1, groups)[:, order].reshape(part.shape) for part in (right.scale, right.offset)
        )
        yield Mistake("sub-scale-order", name, right.but(scale=s, offset=o))
        if fmt.has_offset:
            yield Mistake("sub-scale-order", f"scales {name}", right.but(scale=s))
            yield Mistake("sub-scale-order", f"minima {name}", right.but(offset=o))
    for name, order in field_orders(fmt.block_size) if groups > 1 or bits_a_byte(fmt) > 4 else ():
        moved = right.dense.reshape(-1, fmt.block_size)[:, order].reshape(right.dense.shape)
        yield Mistake("nibble-order", f"{name}, scales with them", right.but(values=moved))


# --- one term alone -----------------------------------------------------------------------------
# Kernels sum codes and take constants off apart:
#
#     y = Σ over groups: scale·Σ stored·x  -  (zero·scale + offset)·Σ x
#
# The scales of the first term may be wrong while those of the second are right; sums may meet wrong minima.


def _one_term(fmt: BlockFormat, right: Operand) -> Misread:
    """Weights with a mistake in one term alone, for super-blocks with constants."""
    groups = fmt.block_size // fmt.group
    if groups == 1 or not (fmt.zero or fmt.has_offset):
        return
    for name, order in group_orders(groups):
        if fmt.zero:
            words = f"in the main sum alone, {name}"
            yield Mistake("sub-scale-order", words, main_scales(right, groups, order))
        if fmt.zero or len(set(order.tolist())) < groups:  # else it is the minima that are in another order
            yield Mistake("sum-order", f"{name}: {_in_words(order)}", wrong_sums(right, groups, order))


def main_scales(right: Operand, groups: int, order: Index) -> Operand:
    """Weights with the scales of codes in another order, and those of the constant in the right one."""
    scale = right.scale.reshape(-1, groups)[:, order].reshape(right.scale.shape)
    return right.but(scale=scale, offset=right.offset + right.zero * (right.scale - scale))


def wrong_sums(right: Operand, groups: int, order: Index) -> Operand:
    """Weights where the constant of group g is multiplied with the sum of group order[g]."""
    constant = (right.zero * right.scale + right.offset).reshape(-1, groups)
    sums = np.zeros_like(constant)
    for g, other in enumerate(order.tolist()):
        sums[:, other] += constant[:, g]
    return right.but(offset=right.offset + (sums - constant).reshape(right.offset.shape))


def _in_words(order: Index) -> str:
    """Words for groups that take the sums of others, neighbours together."""
    runs: list[list[tuple[int, int]]] = []
    for g, to in enumerate(order.tolist()):
        if runs and runs[-1][-1] == (g - 1, to - 1):
            runs[-1].append((g, to))
        elif g != to:
            runs.append([(g, to)])
    words = []
    for (a, b), *_, (c, d) in ([run[0], *run] for run in runs[:4]):
        several = f"groups {a} to {c} take those of {b} to {d}"
        words.append(f"group {a} takes that of {b}" if a == c else several)
    return ", ".join(words) + (" …" if len(runs) > 4 else "")


# --- addresses, and the end of K ------------------------------------------------------------------


def wrong_strides(fmt: Format, raw: NDArray[np.uint8], columns: Index) -> Misread:
    """Rows of ``raw`` [N, bytes] read at n times a wrong stride, or with blocks at a wrong distance."""
    size, row = fmt.dtype.itemsize, raw.shape[1]
    blocks = row // size
    flat = raw.reshape(-1)
    if len(raw) < 2:
        return
    for stride, name in _strides(fmt, blocks, row).items():
        addresses = (columns * stride)[:, None] + np.arange(row)
        yield _read_at(fmt, flat, addresses, f"row n read at n·{stride} bytes ({name}); rows have {row}")
    for step in (*range(-4, 0), *range(1, 5)):  # a wrong block size: the error grows along the row
        block = (columns[:, None] * blocks + np.arange(blocks)) * (size + step)
        addresses = (block[..., None] + np.arange(size)).reshape(len(columns), row)
        yield _read_at(fmt, flat, addresses, f"blocks read {size + step} bytes apart, they have {size}")


def _read_at(fmt: Format, flat: NDArray[np.uint8], addresses: Index, name: str) -> Mistake[Operand]:
    inside = np.asarray(((addresses >= 0) & (addresses < flat.size)).all(axis=1))
    raw = np.ascontiguousarray(flat[addresses % flat.size])
    return Mistake("row-stride", name, operand(fmt, raw.view(fmt.dtype)), columns=inside)


def _strides(fmt: Format, blocks: int, row: int) -> dict[int, str]:
    """Each wrong stride in bytes, with the text that names its cause: the first of several."""
    size, k = fmt.dtype.itemsize, blocks * fmt.block_size
    strides = [(0, "no stride at all")]
    for step in (*range(1, 17), 32, 64):
        for sign, much in ((1, "many"), (-1, "few")):
            if blocks + sign * step > 0:
                strides.append((row + sign * step * size, f"{step} blocks too {much}"))
    for to in (64, 128, 256, 512, 1024, 2048):
        padded = -(-k // to) * to
        if padded % fmt.block_size == 0:
            strides.append((fmt.row_bytes(padded), f"K padded to a multiple of {to}"))
    for to in (4, 8, 16, 32, 64, 128, 256):
        strides.append((-(-row // to) * to, f"padded to a multiple of {to} bytes"))
        strides.append((row // to * to, f"cut to a multiple of {to} bytes"))
    for step in (1, 2, 4):
        strides += [(row + step, f"{step} bytes too many"), (row - step, f"{step} bytes too few")]
    strides += [
        (2 * row, "twice the row"), (row // 2, "half the row"), (k, "K bytes"), (k // 2, "K / 2 bytes"),
        (2 * k, "2·K bytes"), (blocks, "blocks taken for bytes"), (size, "one block"),
        (3 * row, "three rows"), (4 * row, "four rows"),
    ]  # fmt: skip
    for other in FORMATS.values():
        if k % other.block_size == 0:
            strides.append((other.row_bytes(k), f"rows of {other.name}"))
    first: dict[int, str] = {}
    for stride, name in strides:
        if stride >= 0 and stride != row:
            first.setdefault(stride, name)
    return first


def short_rows(right: Operand, k: int) -> Misread:
    """The end of K left out: once with its constant terms left out too, and once with them kept."""
    lengths = {k - end: f"the last {end} of K" for end in (16, 32, 64, 96, 128, 160, 192, 224, 256, 512)}
    for tile in (32, 64, 128, 256, 512, 1024):
        lengths[k // tile * tile] = f"what is left of K after tiles of {tile}"
    for length in sorted(length for length in lengths if 0 <= length < k):
        name, where = f"{lengths[length]} dropped", {"K-blocks": {"missing": [(length, k)]}}
        if right.values is not None or length % right.group:
            values = right.dense.copy()
            values[:, length:] = 0
            yield Mistake("k-tail-dropped", name, right.but(values=values), where=where)
            continue
        stored, scale, offset = right.stored.copy(), right.scale.copy(), right.offset.copy()
        stored[:, length:] = 0
        scale[:, length // right.group :] = 0
        offset[:, length // right.group :] = 0
        short = right.but(stored=stored, scale=scale, offset=offset)
        yield Mistake("k-tail-dropped", name, short, where=where)
        if np.any(right.constant):
            constants = right.but(stored=stored)
            yield Mistake("k-tail-dropped", f"{name}, its constants kept", constants, where=where)
