"""The driver of the kernels of layers: from arrays to their tables of arguments.

Arrays are float32 rows [..., width], each row contiguous; rows of a token may lie apart, as the columns of a
product with several matrices do. Results are memory of :func:`workers.scratch`, so a step is recorded.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import FORMATS, BlockFormat, Format
from ...formats._program import Packer
from ..attention.drive import CacheRows, Sequence
from ..machine.kernels import kernel
from ..machine.tables import Address, address
from ..machine.workers import scratch, share_kernel

Floats = NDArray[np.float32]
NUMBERS = 1 << 13  # of a part, at least: some microseconds of any of these kernels
STORED = ("f16", "bf16", "f32")  # types of a cache whose rows RoPE writes itself


class Rows(NamedTuple):
    """Rows in memory: row r lies at token r // each · pitch + r % each · width, in floats."""

    at: int
    pitch: int
    each: int
    rows: int
    width: int


def rows_of(x: Floats) -> Rows:
    """The rows of an array [T, width] or [T, H, width]."""
    each, width = math.prod(x.shape[1:-1]), x.shape[-1]
    assert x.dtype == np.float32, "rows are float32"
    assert x.strides[-1] == 4, "the columns of a row lie side by side"
    assert x.ndim < 3 or x.strides[1] == 4 * width, "the rows of a token lie side by side"
    return Rows(address(x), x.strides[0] // 4, each, len(x) * each, width)


def float_bits(number: float) -> int:
    """The bits of a float32, for a word of a table."""
    return int(np.float32(number).view(np.uint32))


def _share(name: str, case: tuple[Any, ...], arguments: tuple[int, ...], rows: int, width: int) -> None:
    share_kernel(kernel(f"layers.{name}", *case), arguments, rows, max(1, NUMBERS // max(width, 1)))


# --- norms --------------------------------------------------------------------------------------


class Norm(NamedTuple):
    """Arguments of ``norm.normed``."""

    x: Address  # rows [count, width], see ``Rows``
    pitch: int
    each: int
    y: Address  # rows [count, width] that are added before, or 0
    total: Address  # receives the sums where there is y
    weights: Address  # [width]
    out: Address
    width: int
    epsilon: int  # bits of a float32


def normed(x: Floats, weights: Floats, epsilon: float, y: Floats | None = None) -> tuple[Any, Floats]:
    """The sum x + y, where there is y, and its norm times the weights."""
    rows = rows_of(x)
    out: Floats = scratch(x.shape, np.float32)
    total = None if y is None else scratch(x.shape, np.float32)
    more = (0, 0)
    if y is not None:
        assert y.flags.c_contiguous
        more = address(y), address(total)
    arguments = Norm(
        rows.at, rows.pitch, rows.each, *more, address(weights), address(out), rows.width,
        float_bits(epsilon),
    )  # fmt: skip
    _share("norm.normed", (), arguments, rows.rows, rows.width)
    return total, out


# --- gates --------------------------------------------------------------------------------------


class Gate(NamedTuple):
    """Arguments of ``gate.gated``: rows of gate and up, which may lie apart."""

    gate: Address
    gate_pitch: int  # floats from one row to the next
    up: Address
    up_pitch: int
    out: Address  # [rows, width]
    width: int
    grain: int  # columns of a part of a row


COLUMNS = 1 << 10  # of a row that a part has: a multiple of any vector


def gated(activation: str, gate: Floats, up: Floats) -> Floats:
    """act(gate) · up, by the activation's name."""
    a, b = rows_of(gate), rows_of(up)
    assert gate.shape == up.shape
    out: Floats = scratch(gate.shape, np.float32)
    parts = -(-a.width // COLUMNS)
    arguments = Gate(a.at, a.pitch, b.at, b.pitch, address(out), a.width, COLUMNS)
    _share("gate.gated", (activation,), arguments, a.rows * parts, COLUMNS)
    return out


class Share(NamedTuple):
    """Arguments of ``gate.shared``: rows, and a share of others, the sigmoid of a number for each."""

    x: Address  # [rows, width]
    y: Address
    gate: Address  # [rows]
    out: Address
    width: int


def plus_share(x: Floats, y: Floats, gate: Floats) -> Floats:
    """Rows x [T, C] and a share of rows y, the sigmoid of a number [T, 1]."""
    assert x.flags.c_contiguous
    assert y.flags.c_contiguous
    assert gate.flags.c_contiguous
    out: Floats = scratch(x.shape, np.float32)
    arguments = Share(address(x), address(y), address(gate), address(out), x.shape[1])
    _share("gate.shared", (), arguments, len(x), x.shape[1])
    return out


# --- RoPE ---------------------------------------------------------------------------------------


class RopeAppend(NamedTuple):
    """Arguments of ``rope_append.append``: queries of T tokens go out, keys and values to a cache."""

    q: Address  # [T, heads, width], floats from token to token: q_pitch
    q_pitch: int
    k: Address
    k_pitch: int
    v: Address
    v_pitch: int
    cos: Address  # float32 [T, pairs]
    sin: Address
    out: Address  # [heads, T, width]
    k_rows: Address  # [kv_heads, positions]
    k_head: int  # strides in bytes
    k_row: int
    v_rows: Address
    v_head: int
    v_row: int
    k_end: Address  # int64: the positions that there are with the new ones; 0: rows have these alone
    v_end: Address
    tokens: int
    heads: int
    kv_heads: int
    width: int
    width_v: int
    pairs: int  # columns that rotate are twice as many
    k_spread: int  # columns of queries and keys that are spread together, 0 for none
    v_spread: int


class Store(NamedTuple):
    """Arguments of ``rope_append.store``: rows of float32 that become rows of a cache in blocks."""

    values: Address  # [kv_heads, tokens, width]
    width: int
    tokens: int
    rows: Address  # of the cache
    head: int  # strides in bytes
    row: int
    end: Address  # int64: the positions that there are with the new ones


def rope_append(
    heads: tuple[Floats, Floats, Floats], neox: bool, cos: Floats, sin: Floats, sequence: Sequence,
    columns: tuple[int, int] = (0, 0),
) -> Floats:  # fmt: skip
    """Queries [H, T, D] with RoPE; keys with RoPE, and values, become the last rows of a cache.

    Without keys and values, None, the cache stays. ``columns``: of queries and keys, and of values, that a
    Hadamard transform spreads together, 0 for none.
    """
    q = rows_of(heads[0])
    k, v = (q._replace(each=0) if x is None else rows_of(x) for x in heads[1:])
    tokens, count, width = heads[0].shape
    out: Floats = scratch((count, tokens, width), np.float32)
    rows, places, ends = list[Any](), list[CacheRows](), list[int]()
    for side, one in ((sequence.k, k), (sequence.v, v)):
        at_once = side.format.name in STORED
        if at_once or not one.each:
            rows.append(None)
            places.append(side if at_once else side._replace(format=FORMATS["f32"]))
            ends.append(address(sequence.end))
        else:
            memory = scratch((one.each, tokens, one.width), np.float32)
            rows.append(memory)
            places.append(CacheRows(FORMATS["f32"], address(memory), *memory.strides[:2]))
            ends.append(0)
    arguments = RopeAppend._make((
        q.at, q.pitch, k.at, k.pitch, v.at, v.pitch, address(cos), address(sin), address(out),
        *places[0][1:], *places[1][1:], *ends, tokens, q.each, k.each, q.width, v.width, cos.shape[1],
        *columns,
    ))  # fmt: skip
    case = neox, places[0].format, places[1].format
    _share("rope_append.append", case, arguments, tokens * (q.each + k.each + v.each), q.width)
    for side, memory in zip((sequence.k, sequence.v), rows, strict=True):
        if memory is not None:
            stored = Store(address(memory), memory.shape[2], tokens, *side[1:], address(sequence.end))
            _share("rope_append.store", (side.format,), stored, memory.shape[0] * tokens, memory.shape[2])
    return out


class Spread(NamedTuple):
    """Arguments of ``rope_append.spread``."""

    x: Address  # [rows, width]
    out: Address
    width: int
    columns: int


def spread(x: Floats, columns: int) -> Floats:
    """Rows [..., width] whose runs of columns are spread, or spread back, which is the same."""
    assert x.dtype == np.float32, "rows are float32"
    assert x.flags.c_contiguous
    out: Floats = scratch(x.shape, np.float32)
    width = x.shape[-1]
    arguments = Spread(address(x), address(out), width, columns)
    _share("rope_append.spread", (), arguments, x.size // width, width)
    return out


# --- attention over short vectors ----------------------------------------------------------------


class Columns(NamedTuple):
    """Arguments of ``latent.some_columns``."""

    x: Address  # floats from row to row: pitch
    pitch: int
    out: Address  # [rows, width]
    width: int


def some_columns(x: Floats, first: int, count: int) -> Floats:
    """So many columns of rows [..., width] from one on, contiguous."""
    assert x.flags.c_contiguous
    out: Floats = scratch((*x.shape[:-1], count), np.float32)
    arguments = Columns(address(x) + 4 * first, x.shape[-1], address(out), count)
    _share("latent.some_columns", (), arguments, x.size // x.shape[-1], count)
    return out


class LatentAppend(NamedTuple):
    """Arguments of ``latent.append``."""

    q: Address  # [tokens, heads, q_width], of which the last columns, ``width``, get RoPE
    q_width: int
    inside: Address  # [tokens, heads, latent]
    keys: Address  # floats from token to token: key_pitch; ``width`` columns behind ``latent``
    key_pitch: int
    short: Address  # [tokens, latent]
    cos: Address  # float32 [tokens, pairs]
    sin: Address
    out: Address  # [heads, tokens, latent + width]
    rows: Address  # of the cache
    row: int  # bytes from position to position
    end: Address  # int64: the positions that there are with the new ones
    tokens: int
    heads: int
    latent: int
    width: int
    pairs: int


def latent_append(
    parts: tuple[Floats, Floats, Floats, Floats], neox: bool, cos: Floats, sin: Floats, sequence: Sequence
) -> Floats:
    """Queries [H, T, latent + width]; keys become the last rows of a cache.

    ``parts``: queries [T, H, D], what heads make of their first columns [T, H, latent], keys [T, latent +
    width] as a product gives them, and their short vectors [T, latent].
    """
    q, inside, keys, short = map(rows_of, parts)
    tokens, heads, latent = parts[1].shape
    assert (q.pitch, inside.pitch, short.pitch) == (heads * q.width, heads * latent, latent)
    pairs = cos.shape[1]
    out: Floats = scratch((heads, tokens, latent + 2 * pairs), np.float32)
    arguments = LatentAppend(
        q.at, q.width, inside.at, keys.at, keys.pitch, short.at, address(cos), address(sin), address(out),
        sequence.k.at, sequence.k.row, address(sequence.end), tokens, heads, latent, 2 * pairs, pairs,
    )  # fmt: skip
    _share("latent.append", (neox, sequence.k.format), arguments, tokens * (heads + 1), latent + 2 * pairs)
    return out


# --- rows of an embedding, sums, factors, caps ----------------------------------------------------


class Embedding(NamedTuple):
    """Arguments of ``rows.decoded``."""

    raw: Address  # uint8 [rows, row_bytes]
    row_bytes: int
    ids: Address  # int64 [count]
    out: Address  # [count, width]
    width: int


def embedded(fmt: Format, raw: Any, width: int, ids: NDArray[np.int64]) -> Floats:
    """Rows ``ids`` of an embedding."""
    out: Floats = scratch((len(ids), width), np.float32)
    arguments = Embedding(address(raw), raw.strides[0], address(ids), address(out), width)
    _share("rows.decoded", (fmt,), arguments, len(ids), width)
    return out


class Sum(NamedTuple):
    """Arguments of ``sums.added``."""

    x: Address  # [rows, width]
    y: Address  # floats from row to row: pitch, 0 where all have the same
    pitch: int
    ids: Address  # int64 [rows]: the row of y that each takes; 0: they follow each other
    out: Address
    width: int


def added(x: Floats, y: Floats, ids: NDArray[np.int64] | None = None) -> Floats:
    """The sum of rows, or of rows and a bias [width]; ``ids``: the rows of y that they take."""
    assert x.flags.c_contiguous
    assert y.flags.c_contiguous
    out: Floats = scratch(x.shape, np.float32)
    width = x.shape[-1]
    places = 0 if ids is None else address(ids)
    arguments = Sum(address(x), address(y), width if y.ndim > 1 else 0, places, address(out), width)
    _share("sums.added", (), arguments, x.size // width, width)
    return out


class Number(NamedTuple):
    """Arguments of ``sums.times`` and ``sums.capped``: numbers, and one for all of them."""

    x: Address
    out: Address
    number: int  # bits of a float32


def times(x: Floats, factor: float) -> Floats:
    """Numbers times a factor."""
    return _with_number("times", x, factor)


def capped(x: Floats, cap: float) -> Floats:
    """Numbers bent below a cap by a hyperbolic tangent."""
    return _with_number("capped", x, cap)


def _with_number(name: str, x: Floats, number: float) -> Floats:
    assert x.flags.c_contiguous
    out: Floats = scratch(x.shape, np.float32)
    arguments = Number(address(x), address(out), float_bits(number))
    share_kernel(kernel(f"layers.sums.{name}"), arguments, x.size, NUMBERS)
    return out


# --- a mixture of experts -------------------------------------------------------------------------


class Route(NamedTuple):
    """Arguments of ``route.routed``."""

    logits: Address  # [tokens, experts]
    bias: Address  # [experts]: added to shares for the choice alone; or 0
    ids: Address  # int64 [tokens, used]
    weights: Address  # [tokens, used]
    experts: int
    used: int
    groups: int
    used_groups: int
    after: int  # 1 or 0, as the next two: see ``Routing``
    sigmoid: int
    of_one: int
    scale: int  # bits of a float32


def routed(
    logits: Floats, bias: Floats | None, used: int, groups: tuple[int, int], shares: tuple[bool, bool, bool],
    scale: float,
) -> tuple[NDArray[np.int64], Floats]:  # fmt: skip
    """The experts [T, U] of the largest shares and their weights, as ``Routing`` in the model's room says.

    ``groups``: how many there are, and how many are used. ``shares``: after, sigmoid, of_one.
    """
    assert logits.flags.c_contiguous
    tokens, experts = logits.shape
    ids, weights = scratch((tokens, used), np.int64), scratch((tokens, used), np.float32)
    arguments = Route._make((
        address(logits), 0 if bias is None else address(bias), address(ids), address(weights), experts, used,
        *groups, *map(int, shares), float_bits(scale),
    ))  # fmt: skip
    _share("route.routed", (), arguments, tokens, experts)
    return ids, weights


class Mix(NamedTuple):
    """Arguments of ``mix.mixed``."""

    y: Address  # [tokens, used, width]
    weights: Address  # [tokens, used]
    out: Address  # [tokens, width]
    used: int
    width: int
    grain: int  # columns of a part of a row


def mixed(y: Floats, weights: Floats) -> Floats:
    """Results of experts [T, U, N] added up by weights [T, U], one after the other."""
    assert y.flags.c_contiguous
    assert weights.flags.c_contiguous
    tokens, used, width = y.shape
    out: Floats = scratch((tokens, width), np.float32)
    arguments = Mix(address(y), address(weights), address(out), used, width, COLUMNS)
    _share("mix.mixed", (), arguments, tokens * -(-width // COLUMNS), used * COLUMNS)
    return out


@cache
def stores(fmt: Format) -> bool:
    """True for a type of cache whose rows are written with RoPE."""
    return fmt.name in STORED or (isinstance(fmt, BlockFormat) and isinstance(fmt.pack, Packer))
