"""Small parts of a step, each in one launch: norms, RoPE, rows in order, Hadamard transforms, gates, tokens.

CuPy takes a launch for each sum, root and product, and between two launches a GPU does nothing for some
microseconds, which is what a step of one token consists of. In float32 throughout; exponentials are the GPU's
own, off by two units in the last place, and a little more where their argument is large.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..driver.device import cupy
from ..driver.launch import Kernel, array, family
from ..intrinsics import hopper, ptx
from ..intrinsics.assembly import f32, instruction
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, four_into, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..layouts.floats import aligned_floats

THREADS = 256
ROWS, VECTOR = array(float32, 2), array(float32, 1)  # types of parameters
LOG2_E = 1 / math.log(2)


@instruction("sqrt.rn.f32 $0, $1;", f32, f32)
def square_root(a: Any) -> Any:
    """The square root, rounded once."""
    return np.sqrt(np.float32(a))


@instruction("ex2.approx.f32 $0, $1;", f32, f32)
def power_of_two(a: Any) -> Any:
    """Two to the power of a, off by two units in the last place at most."""
    with np.errstate(over="ignore", under="ignore"):
        return np.exp2(np.float32(a))


# --- norms ------------------------------------------------------------------------------------
#
# A row is loaded at once, 16 bytes a load, and stays in registers. So a block waits for memory once, and for
# its weights while the previous kernel ends.

VECTORS = 4  # of four columns, of a thread
NORM_THREADS = 128, 512, 1024  # of a block, which has a row
MOST_COLUMNS = tuple(count * threads for count, threads in zip((4, 16, 16), NORM_THREADS, strict=True))


@family((summed, threads) for summed in (False, True) for threads in NORM_THREADS)
def normer(summed: bool, threads: int) -> Kernel:
    """The kernel that divides rows by the root of their mean square, or with ``summed`` the sums of rows."""
    warps, count = threads // 32, 4 * VECTORS

    def kernel(
        x: Any,  # address of float32 [rows, columns]
        y: Any,
        weights: Any,  # address of float32 [columns]
        sums: Any,  # address of float32 [rows, columns]
        out: Any,
        columns: Any,
        epsilon: Any,  # bits of a float
    ) -> None:
        hopper.let_successor_start()
        thread = uint32(cuda.threadIdx.x)
        w, v = cuda.local.array(count, float32), cuda.local.array(count, float32)
        squares = cuda.shared.array(warps, float32)
        for i in range(VECTORS):
            at = uint32(uint32(thread + uint32(i * threads)) << 2)
            if at < columns:
                four_into(w, 4 * i, ptx.load_floats(weights + uint64(at) * 4))
        hopper.wait_for_predecessor()
        first, total = uint64(cuda.blockIdx.x) * uint64(columns), float32(0)
        for i in range(VECTORS):
            at = uint32(uint32(thread + uint32(i * threads)) << 2)
            for j in range(4):
                v[4 * i + j] = float32(0)
            if at < columns:
                four_into(v, 4 * i, ptx.load_floats(x + (first + uint64(at)) * 4))
                if summed:
                    a, b, c, d = ptx.load_floats(y + (first + uint64(at)) * 4)
                    v[4 * i], v[4 * i + 1] = ptx.add(v[4 * i], a), ptx.add(v[4 * i + 1], b)
                    v[4 * i + 2], v[4 * i + 3] = ptx.add(v[4 * i + 2], c), ptx.add(v[4 * i + 3], d)
        for i in range(count):
            total = ptx.fma(v[i], v[i], total)
        for step in (16, 8, 4, 2, 1):
            total = ptx.add(total, cuda.shfl_xor_sync(ALL_LANES, total, step))
        warp, lane = warp_and_lane()
        if lane == 0:
            squares[warp] = total
        cuda.syncthreads()  # sums of other warps are read next
        total = float32(0)
        for i in range(warps):
            total = ptx.add(total, squares[i])
        mean = ptx.div(total, float32(columns))
        factor = ptx.div(float32(1), square_root(ptx.add(mean, ptx.float_of(epsilon))))
        for i in range(VECTORS):
            at = uint32(uint32(thread + uint32(i * threads)) << 2)
            if at < columns:
                to = (first + uint64(at)) * 4
                if summed:
                    store_four(sums + to, v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3])
                for j in range(4):
                    v[4 * i + j] = ptx.mul(ptx.mul(v[4 * i + j], factor), w[4 * i + j])
                store_four(out + to, v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3])

    name = f"{'sum and ' if summed else ''}norm by {threads}"
    return Kernel(name, kernel, *(uint64,) * 5, uint32, uint32, threads=threads, early=True)


@inlined
def store_four(to: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """Store four floats at a multiple of 16."""
    ptx.store16(to, ptx.bits_of(a), ptx.bits_of(b), ptx.bits_of(c), ptx.bits_of(d))


def normed(x: Any, weights: Any, epsilon: float) -> Any:
    """Rows [..., columns] divided by the root of their mean square, times the weights."""
    out = cupy().empty(x.shape, np.float32)
    _norm(x, None, weights, None, out, epsilon)
    return out


def normed_sum(x: Any, y: Any, weights: Any, epsilon: float) -> tuple[Any, Any]:
    """Rows x + y, and these divided by the root of their mean square, times the weights."""
    sums, out = (cupy().empty((x.size // x.shape[-1], x.shape[-1]), np.float32) for _ in range(2))
    _norm(x, y, weights, sums, out, epsilon)
    return sums, out


def _norm(x: Any, y: Any, weights: Any, sums: Any, out: Any, epsilon: float) -> None:
    """Launch the kernel of norms, of rows x or of sums of rows."""
    columns, bits = x.shape[-1], int(np.float32(epsilon).view(np.uint32))
    if columns % 4 or columns > MOST_COLUMNS[-1]:
        raise UnsupportedError(
            f"the norm of rows of {columns:,} columns: on a GPU these are a multiple of 4, up to "
            f"{MOST_COLUMNS[-1]:,}; run the model with device='cpu'"
        )
    threads = NORM_THREADS[bisect_left(MOST_COLUMNS, columns)]
    loaded = (0 if part is None else aligned_floats(part) for part in (x, y, weights))
    operands = *loaded, 0 if sums is None else sums, out
    normer(y is not None, threads)((x.size // columns,), (threads,), *operands, columns, bits)


# --- RoPE: pairs of columns are rotated by the angles of their positions ------------------------


@cache
def rope_of(halves: bool) -> Any:
    """The device function for a column of a head with RoPE; ``halves``: pairs are half of them apart.

    ``start``: the head's first column in its row of x; ``cos``, ``sin`` [T, pairs]. Columns behind the pairs
    stay.
    """

    @inlined
    def rope(
        x: Any, row: Any, start: Any, column: Any, cos: Any, sin: Any, token: Any, pairs: Any
    ) -> Any:  # fmt: skip
        value = x[row, start + column]
        if column < pairs + pairs:
            if halves:
                first = column < pairs
                pair = column if first else column - pairs
                other = column + pairs if first else column - pairs
            else:
                first = (column & 1) == 0
                pair, other = column >> 1, column ^ 1
            away = ptx.mul(x[row, start + other], sin[token, pair])
            value = ptx.fma(value, cos[token, pair], -away if first else away)
        return value

    return rope


@family([(False,), (True,)])
def rope_kernel(halves: bool) -> Kernel:
    """The kernel that applies RoPE to heads; ``halves``: pairs are half of them apart."""
    rope = rope_of(halves)

    def kernel(
        x: Any,  # float32 [T · H, D]
        cos: Any,  # float32 [T, dims / 2]
        sin: Any,
        out: Any,  # float32 [T · H, D]
        heads: Any,
        columns: Any,
        pairs: Any,
        count: Any,  # T · H · D
    ) -> None:
        hopper.take_turn()
        i = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        if i < count:
            row = i // columns
            column = i - row * columns
            token = row // heads
            out[row, column] = rope(x, row, 0, column, cos, sin, token, pairs)

    name = f"RoPE of {'halves' if halves else 'neighbours'}"
    parameters = ROWS, ROWS, ROWS, ROWS, uint32, uint32, uint32, uint32
    return Kernel(name, kernel, *parameters, threads=THREADS, early=True)


def apply_rope(x: Any, halves: bool, cos: Any, sin: Any) -> Any:
    """RoPE of heads [T, H, D] by cosines and sines [T, dims / 2]; columns beyond them stay."""
    xp, (_, heads, columns) = cupy(), x.shape
    rows = xp.ascontiguousarray(x).reshape(-1, columns)
    out, blocks = xp.empty(rows.shape, np.float32), (-(-x.size // THREADS),)
    cos, sin = xp.ascontiguousarray(cos), xp.ascontiguousarray(sin)
    rope_kernel(halves)(blocks, (THREADS,), rows, cos, sin, out, heads, columns, cos.shape[-1], x.size)
    return out.reshape(x.shape)


# --- rows of sequences, packed or in the order of queries ----------------------------------------


@family([(False,), (True,)])
def picker(back: bool) -> Kernel:
    """The kernel that brings rows [T, H, D] into the order of queries [B, H, Q, D], or ``back``.

    Without ``places`` rows have the order of queries.
    """

    def kernel(
        x: Any,  # address of float32
        places: Any,  # address of int64, or 0: the row of each query [B, Q], or the query of each row [T]
        out: Any,  # address of float32
        heads: Any,
        each: Any,  # Q
        chunks: Any,  # of four columns
        apart: Any,  # chunks from a row to the next
        count: Any,  # of all rows
    ) -> None:
        hopper.take_turn()
        i = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        if i < count:
            row = uint32(i // chunks)
            chunk = uint32(i - uint32(row * chunks))
            if back:
                token = place = uint32(row // heads)
                if places != 0:
                    place = ptx.load4(places + uint64(token) * 8)
                sequence = uint32(place // each)
                query, head = uint32(place - uint32(sequence * each)), uint32(row - uint32(token * heads))
                source = uint64(uint32(uint32(uint32(sequence * heads) + head) * each + query)) * uint64(
                    chunks
                )
            else:
                line = uint32(row // each)
                sequence, query = uint32(line // heads), uint32(row - uint32(line * each))
                head = uint32(line - uint32(sequence * heads))
                place = uint32(uint32(sequence * each) + query)
                if places != 0:
                    place = ptx.load4(places + uint64(place) * 8)
                source = uint64(place) * uint64(apart) + uint64(uint32(head * chunks))
            w = ptx.load_words(x + (source + uint64(chunk)) * 16)
            ptx.store16(out + uint64(i) * 16, w[0], w[1], w[2], w[3])

    name = f"rows {'from' if back else 'in'} the order of queries"
    return Kernel(name, kernel, *(uint64,) * 3, *(uint32,) * 5, threads=THREADS, early=True)


def by_queries(x: Any, places: Any, batch: int, each: int) -> Any:
    """Rows [T, H, D] in the order of queries [B, H, Q, D]; ``places`` [B, Q]: rows of T, or None."""
    _, heads, width = x.shape
    return _picked(False, x, places, (batch, heads, each, width), heads, each)


def by_rows(x: Any, places: Any) -> Any:
    """Results of queries [B, H, Q, D] as rows [T, H, D]; ``places`` [T]: queries of all B · Q, or None."""
    batch, heads, each, width = x.shape
    count = batch * each if places is None else len(places)
    return _picked(True, x, places, (count, heads, width), heads, each)


def _picked(back: bool, x: Any, places: Any, shape: tuple[int, ...], heads: int, each: int) -> Any:
    if shape[-1] % 4:
        raise UnsupportedError(
            f"a step of several tokens, whose heads have {shape[-1]} columns: its kernel moves four at a "
            "time; such steps are not recorded, and take longer"
        )
    size, at = x.itemsize, 0 if places is None else places
    if back or x.strides[1:] != (shape[-1] * size, size) or x.data.ptr % 16 or x.strides[0] % 16:
        x = aligned_floats(x)  # rows may be columns of longer ones
    out, chunks, apart = cupy().empty(shape, np.float32), shape[-1] // 4, x.strides[0] // 16
    count = out.size // 4
    picker(back)((-(-count // THREADS),), (THREADS,), x, at, out, heads, each, chunks, apart, count)
    return out


# --- Hadamard transforms ------------------------------------------------------------------------

HADAMARD_COLUMNS = (32, 64, 128, 256, 512, 1024)  # columns that are usually transformed together
MIN_HADAMARD_THREADS = 128
NO_SIGNS, BEFORE, BEHIND = 0, 1, 2  # where numbers get their columns' signs


@family((columns,) for columns in HADAMARD_COLUMNS)
def hadamard_kernel(columns: int) -> Kernel:
    """The kernel of the orthogonal Hadamard transform of runs of columns, a power of two of them."""
    steps, threads = columns.bit_length() - 1, max(columns, MIN_HADAMARD_THREADS)
    within = min(steps, 5)  # steps within a warp
    factor, before, behind = float32(1 / math.sqrt(columns)), BEFORE, BEHIND

    def kernel(
        x: Any,  # float32 [count]
        signs: Any,  # float32 [width]
        out: Any,  # float32 [count]
        count: Any,
        width: Any,
        how: Any,
    ) -> None:
        hopper.take_turn()
        both = cuda.shared.array(threads, float32)
        i = uint32(cuda.threadIdx.x)
        at = uint32(cuda.blockIdx.x) * threads + i
        value, sign = float32(0), float32(1)
        if at < count:
            value = x[at]
            if how != 0:
                sign = signs[at % width]
        if how == before:
            value = ptx.mul(value, sign)
        for step in range(within):
            other = cuda.shfl_xor_sync(ALL_LANES, value, 1 << step)
            value = ptx.sub(other, value) if i >> uint32(step) & 1 else ptx.add(value, other)
        for step in range(within, steps):
            both[i] = value
            cuda.syncthreads()  # the values of other warps are read next
            other = both[i ^ 1 << uint32(step)]
            cuda.syncthreads()  # all have read, before the next step writes
            value = ptx.sub(other, value) if i >> uint32(step) & 1 else ptx.add(value, other)
        value = ptx.mul(value, factor)
        if how == behind:
            value = ptx.mul(value, sign)
        if at < count:
            out[at] = value

    parameters = VECTOR, VECTOR, VECTOR, uint32, uint32, uint32
    return Kernel(f"Hadamard transform of {columns}", kernel, *parameters, threads=threads, early=True)


def hadamard(x: Any, columns: int = 0, signs: Any = None, back: bool = False) -> Any:
    """Rows [..., width] times the Hadamard matrix, in the order of ``rotation.hadamard``.

    ``columns``: only so many are transformed together, a power of two that divides the width; 0 for all.
    ``signs`` [width or more]: numbers are multiplied with their column's sign before; ``back``: behind.
    """
    x = aligned_floats(x)
    out, width = cupy().empty(x.shape, np.float32), x.shape[-1]
    columns = columns or width
    how = NO_SIGNS if signs is None else BEHIND if back else BEFORE
    flat, threads = x.reshape(-1), max(columns, MIN_HADAMARD_THREADS)
    grid = (-(-x.size // threads),)
    hadamard_kernel(columns)(
        grid, (threads,), flat, flat if signs is None else signs, out.reshape(-1), x.size, width, how
    )
    return out


# --- gates ------------------------------------------------------------------------------------


@inlined
def sigmoid_product(value: Any, exponent: Any) -> Any:
    """``value / (1 + exp(-exponent))``, 0 where the exponential is infinite."""
    power = power_of_two(ptx.mul(exponent, float32(-LOG2_E)))
    return ptx.div(value, ptx.add(float32(1), power))


SLOPE, CUBE = math.sqrt(8 / math.pi), 0.044715 * math.sqrt(8 / math.pi)  # of the argument of gelu


@inlined
def silu(g: Any, u: Any) -> Any:
    """``silu(g) · u``."""
    return ptx.mul(sigmoid_product(g, g), u)


@inlined
def gelu(g: Any, u: Any) -> Any:
    """``gelu(g) · u``, by the hyperbolic tangent."""
    cubic = ptx.mul(g, ptx.fma(ptx.mul(g, g), float32(CUBE), float32(SLOPE)))
    return ptx.mul(sigmoid_product(g, cubic), u)


@inlined
def swiglu_oai(g: Any, u: Any) -> Any:
    """The gate of gpt-oss: both are clamped, and 1 is added to u."""
    g = ptx.smaller(g, float32(7))
    u = ptx.larger(ptx.smaller(u, float32(7)), float32(-7))
    return ptx.mul(sigmoid_product(g, ptx.mul(g, float32(1.702))), ptx.add(u, float32(1)))


ACTIVATIONS = {"silu": silu, "gelu": gelu, "swiglu_oai": swiglu_oai}  # act(gate) · up
GATES = tuple(ACTIVATIONS)


@inlined
def numbered_gate(which: Any, g: Any, u: Any) -> Any:
    """``act(gate) · up`` by the activation's place in GATES."""
    value = float32(0)
    if which == 0:
        value = silu(g, u)
    elif which == 1:
        value = gelu(g, u)
    else:
        value = swiglu_oai(g, u)
    return value


@family((name,) for name in GATES)
def pair_gater(name: str) -> Kernel:
    """The kernel of a gate and what it lets through, which are the halves of a row."""
    act = ACTIVATIONS[name]

    def kernel(
        both: Any,  # float32 [rows, 2 · columns]
        out: Any,  # float32 [rows, columns]
        columns: Any,
        count: Any,  # rows · columns
    ) -> None:
        hopper.take_turn()
        i = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        if i < count:
            row = i // columns
            column = i - row * columns
            out[row, column] = act(both[row, column], both[row, column + columns])

    return Kernel(f"gate {name} of a pair", kernel, ROWS, ROWS, uint32, uint32, threads=THREADS, early=True)


def gated_pair(name: str, both: Any) -> Any:
    """``act(gate) · up`` by the activation's name, for rows [..., 2 · columns] that have both."""
    xp, columns = cupy(), both.shape[-1] // 2
    rows = xp.ascontiguousarray(both).reshape(-1, 2 * columns)
    out = xp.empty((len(rows), columns), np.float32)
    pair_gater(name)((-(-out.size // THREADS),), (THREADS,), rows, out, columns, out.size)
    return out.reshape(*both.shape[:-1], columns)


# --- the best column of each row --------------------------------------------------------------------
#
# A *key* orders numbers and their columns at once: the bits of a number that sort like it, then the column
# from the last one on, so that of equal numbers the first wins. NaN is above all numbers.

PART = 2048  # columns of a block
PART_KEYS, KEYS = array(uint64, 2), array(uint64, 1)


@inlined
def key_of(value: Any, column: Any) -> Any:
    """The key of a number."""
    bits = ptx.bits_of(ptx.add(value, float32(0)))  # -0 becomes 0, which it is equal to
    if bits & 0x7FFFFFFF > 0x7F800000:
        bits = uint32(0xFFFFFFFF)
    elif bits & 0x80000000:
        bits = uint32(bits ^ 0xFFFFFFFF)
    else:
        bits = uint32(bits | 0x80000000)
    return uint64(bits) << uint64(32) | uint64(uint32(0xFFFFFFFF - column))


@inlined
def largest_key(key: Any) -> Any:
    """The largest of the keys of a block's threads."""
    keys, thread = cuda.shared.array(THREADS, uint64), uint32(cuda.threadIdx.x)
    keys[thread] = key
    half = uint32(THREADS // 2)
    while half > 0:
        cuda.syncthreads()  # keys of other threads are read next
        if thread < half:
            keys[thread] = max(keys[thread], keys[thread + half])
        half = uint32(half >> 1)
    return keys[0]  # which this thread may only use if it is the first


@family()
def part_finder() -> Kernel:
    """The kernel for the largest key of each PART columns of a row; block (part, row)."""

    def kernel(
        x: Any,  # float32 [rows, columns]
        keys: Any,  # uint64 [rows, parts]
        columns: Any,
    ) -> None:
        hopper.take_turn()
        row, best = uint32(cuda.blockIdx.y), uint64(0)
        first = uint32(cuda.blockIdx.x) * PART + uint32(cuda.threadIdx.x)
        for i in range(PART // THREADS):
            column = uint32(first + uint32(i * THREADS))
            if column < columns:
                best = max(best, key_of(x[row, column], column))
        best = largest_key(best)
        if uint32(cuda.threadIdx.x) == 0:
            keys[row, uint32(cuda.blockIdx.x)] = best

    return Kernel("best of parts of rows", kernel, ROWS, PART_KEYS, uint32, threads=THREADS, early=True)


@family()
def best_finder() -> Kernel:
    """The kernel for the column of the largest key of a row; a block a row."""

    def kernel(
        keys: Any,  # uint64 [rows, parts]
        ids: Any,  # uint64 [rows]
        parts: Any,
    ) -> None:
        hopper.take_turn()
        row, best, at = uint32(cuda.blockIdx.x), uint64(0), uint32(cuda.threadIdx.x)
        while at < parts:
            best = max(best, keys[row, at])
            at = uint32(at + THREADS)
        best = largest_key(best)
        if uint32(cuda.threadIdx.x) == 0:
            ids[row] = uint64(0xFFFFFFFF) - (best & uint64(0xFFFFFFFF))

    return Kernel("best of rows", kernel, PART_KEYS, KEYS, uint32, threads=THREADS, early=True)


def best(x: Any) -> Any:
    """The first of the largest columns of each row, int64 [rows]; NaN is the largest."""
    x, xp = cupy().ascontiguousarray(x, np.float32), cupy()
    (rows, columns), parts = x.shape, -(-x.shape[1] // PART)
    keys, ids = xp.empty((rows, parts), np.uint64), xp.empty(rows, np.uint64)
    part_finder()((parts, rows), (THREADS,), x, keys, columns)
    best_finder()((rows,), (THREADS,), keys, ids, parts)
    return ids.view(np.int64)
