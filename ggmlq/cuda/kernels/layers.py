"""Small parts of a layer, each in one launch: norms, RoPE, Hadamard transforms, gates.

CuPy takes a launch for each sum, root and product, and between two launches a GPU does nothing for some
microseconds, which is what a step of one token consists of. In float32 throughout; exponentials are the GPU's
own, off by two units in the last place, and a little more where their argument is large.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..driver.device import cupy
from ..driver.launch import Kernel, array, family
from ..intrinsics import hopper, ptx
from ..intrinsics.assembly import f32, instruction, only_on_a_gpu, u64
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, four_into, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..layouts.floats import aligned_floats

THREADS = 256
FLOATS_OF_A_LINE = 32  # of memory
MIN_COLUMNS_OF_LARGE_BLOCKS = 512  # of a row, whose block then has 1,024 threads
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


@instruction("prefetch.global.L2 [$0];", None, u64, effect=True)
def prefetch_line(address: Any) -> Any:
    """Prefetch the line of memory at an address into the L2 cache."""
    only_on_a_gpu()


@inlined
def start_norm(weights: Any, columns: Any) -> None:
    """Prefetch a norm's weights, which nothing changes, while the previous kernel ends, and wait for it."""
    hopper.let_successor_start()
    at = uint32(cuda.threadIdx.x) * FLOATS_OF_A_LINE
    if at < columns:
        prefetch_line(weights + at * 4)
    hopper.wait_for_predecessor()


@cache
def norm_writer(threads: int) -> Any:
    """The device function that writes a row of ``x``, divided by its root mean square, times the weights.

    A block has a row. ``total``: the sum of the squares of a thread's columns; ``epsilon``: bits of a float.
    """
    warps = threads // 32

    @inlined
    def write(x: Any, row: Any, total: Any, weights: Any, out: Any, columns: Any, epsilon: Any) -> None:
        for step in (16, 8, 4, 2, 1):
            total = ptx.add(total, cuda.shfl_xor_sync(ALL_LANES, total, step))
        squares = cuda.shared.array(warps, float32)
        warp, lane = warp_and_lane()
        if lane == 0:
            squares[warp] = total
        cuda.syncthreads()  # sums of other warps are read next
        total = float32(0)
        for i in range(warps):
            total = ptx.add(total, squares[i])
        mean = ptx.div(total, float32(columns))
        factor = ptx.div(float32(1), square_root(ptx.add(mean, ptx.float_of(epsilon))))
        at = uint32(cuda.threadIdx.x)
        while at < columns:
            value = ptx.mul(x[row, at], factor)
            out[row, at] = ptx.mul(value, ptx.load_float(weights + uint64(at) * 4))
            at = uint32(at + threads)

    return write


@family([(128,), (1024,)])
def normer(threads: int) -> Kernel:
    """The kernel that divides rows by the root of their mean square; a block of threads a row."""
    write = norm_writer(threads)

    def kernel(
        x: Any,  # float32 [rows, columns]
        weights: Any,  # address of float32 [columns]
        out: Any,  # float32 [rows, columns]
        columns: Any,
        epsilon: Any,  # bits of a float
    ) -> None:
        start_norm(weights, columns)
        row, total, at = uint32(cuda.blockIdx.x), float32(0), uint32(cuda.threadIdx.x)
        while at < columns:
            value = x[row, at]
            total = ptx.fma(value, value, total)
            at = uint32(at + threads)
        write(x, row, total, weights, out, columns, epsilon)

    parameters = ROWS, uint64, ROWS, uint32, uint32
    return Kernel(f"norm by {threads}", kernel, *parameters, threads=threads, early=True)


@family([(128,), (1024,)])
def sum_normer(threads: int) -> Kernel:
    """The kernel that adds rows and divides the sums by the root of their mean square."""
    write = norm_writer(threads)

    def kernel(
        x: Any,  # float32 [rows, columns]
        y: Any,
        weights: Any,  # address of float32 [columns]
        sums: Any,  # float32 [rows, columns]
        out: Any,
        columns: Any,
        epsilon: Any,  # bits of a float
    ) -> None:
        start_norm(weights, columns)
        row, total, at = uint32(cuda.blockIdx.x), float32(0), uint32(cuda.threadIdx.x)
        while at < columns:
            value = ptx.add(x[row, at], y[row, at])
            sums[row, at] = value
            total = ptx.fma(value, value, total)
            at = uint32(at + threads)
        write(sums, row, total, weights, out, columns, epsilon)  # a thread reads the sums that it wrote

    parameters = ROWS, ROWS, uint64, ROWS, ROWS, uint32, uint32
    return Kernel(f"sum and norm by {threads}", kernel, *parameters, threads=threads, early=True)


# A row of up to MOST_VECTORED columns is loaded at once, 16 bytes a load, and stays in registers. So a block
# waits for memory once, and for its weights while the previous kernel ends.

VECTOR_THREADS, VECTORS = 512, 4
MOST_VECTORED = 4 * VECTORS * VECTOR_THREADS


@family([(False,), (True,)])
def vector_normer(summed: bool) -> Kernel:
    """The kernel that divides rows by the root of their mean square, or with ``summed`` the sums of rows."""
    warps, count = VECTOR_THREADS // 32, 4 * VECTORS

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
            at = uint32(uint32(thread + uint32(i * VECTOR_THREADS)) << 2)
            if at < columns:
                four_into(w, 4 * i, ptx.load_floats(weights + uint64(at) * 4))
        hopper.wait_for_predecessor()
        first, total = uint64(cuda.blockIdx.x) * uint64(columns), float32(0)
        for i in range(VECTORS):
            at = uint32(uint32(thread + uint32(i * VECTOR_THREADS)) << 2)
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
            at = uint32(uint32(thread + uint32(i * VECTOR_THREADS)) << 2)
            if at < columns:
                to = (first + uint64(at)) * 4
                if summed:
                    store_four(sums + to, v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3])
                for j in range(4):
                    v[4 * i + j] = ptx.mul(ptx.mul(v[4 * i + j], factor), w[4 * i + j])
                store_four(out + to, v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3])

    name = f"{'sum and ' if summed else ''}norm of rows in registers"
    return Kernel(name, kernel, *(uint64,) * 5, uint32, uint32, threads=VECTOR_THREADS, early=True)


@inlined
def store_four(to: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """Store four floats at a multiple of 16."""
    ptx.store16(to, ptx.bits_of(a), ptx.bits_of(b), ptx.bits_of(c), ptx.bits_of(d))


def normed(x: Any, weights: Any, epsilon: float) -> Any:
    """Rows [..., columns] divided by the root of their mean square, times the weights."""
    rows = cupy().ascontiguousarray(x).reshape(-1, x.shape[-1])
    out = cupy().empty(rows.shape, np.float32)
    if not _norm_in_registers(rows, None, weights, None, out, epsilon):
        _norm(normer, (rows, weights, out), epsilon)
    return out.reshape(x.shape)


def normed_sum(x: Any, y: Any, weights: Any, epsilon: float) -> tuple[Any, Any]:
    """Rows x + y, and these divided by the root of their mean square, times the weights."""
    xp, columns = cupy(), x.shape[-1]
    x, y = (xp.ascontiguousarray(rows).reshape(-1, columns) for rows in (x, y))
    sums, out = xp.empty(x.shape, np.float32), xp.empty(x.shape, np.float32)
    if not _norm_in_registers(x, y, weights, sums, out, epsilon):
        _norm(sum_normer, (x, y, weights, sums, out), epsilon)
    return sums, out


def _norm_in_registers(x: Any, y: Any, weights: Any, sums: Any, out: Any, epsilon: float) -> bool:
    """Launch the kernel whose blocks load their rows at once; False, and nothing done, for other rows."""
    rows, columns = x.shape
    there = [part for part in (x, y, weights, sums, out) if part is not None]
    fits = MIN_COLUMNS_OF_LARGE_BLOCKS <= columns <= MOST_VECTORED and columns % 4 == 0
    if fits := fits and not any(part.data.ptr % 16 for part in there):
        operands = (0 if part is None else part for part in (x, y, weights, sums, out))
        vector_normer(y is not None)((rows,), (VECTOR_THREADS,), *operands, columns, _bits(epsilon))
    return fits


def _norm(kernel: Any, operands: tuple[Any, ...], epsilon: float) -> None:
    """Launch a kernel of norms; many columns have more threads."""
    rows, columns = operands[0].shape
    threads = 1024 if columns >= MIN_COLUMNS_OF_LARGE_BLOCKS else 128
    kernel(threads)((rows,), (threads,), *operands, columns, _bits(epsilon))


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


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
    """The kernel that brings rows [T, H, D] into the order of queries [B, H, Q, D], or ``back``."""

    def kernel(
        x: Any,  # address of float32
        places: Any,  # address of int64: the row of each query [B, Q], or the query of each row [T]
        out: Any,  # address of float32
        heads: Any,
        each: Any,  # Q
        chunks: Any,  # of four columns
        count: Any,  # chunks of all rows
    ) -> None:
        hopper.take_turn()
        i = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        if i < count:
            row = uint32(i // chunks)
            chunk = uint32(i - uint32(row * chunks))
            if back:
                token = uint32(row // heads)
                place = ptx.load4(places + uint64(token) * 8)
                sequence = uint32(place // each)
                query, head = uint32(place - uint32(sequence * each)), uint32(row - uint32(token * heads))
                source = uint32(uint32(uint32(sequence * heads) + head) * each + query)
            else:
                line = uint32(row // each)
                sequence, query = uint32(line // heads), uint32(row - uint32(line * each))
                head = uint32(line - uint32(sequence * heads))
                place = ptx.load4(places + uint64(uint32(sequence * each) + query) * 8)
                source = uint32(uint32(place * heads) + head)
            w = ptx.load_words(x + (uint64(source) * uint64(chunks) + uint64(chunk)) * 16)
            ptx.store16(out + uint64(i) * 16, w[0], w[1], w[2], w[3])

    name = f"rows {'from' if back else 'in'} the order of queries"
    return Kernel(name, kernel, *(uint64,) * 3, *(uint32,) * 4, threads=THREADS, early=True)


def by_queries(x: Any, places: Any) -> Any:
    """Rows [T, H, D] in the order of queries [B, H, Q, D]; ``places`` [B, Q]: rows of T."""
    (_, heads, width), (batch, each) = x.shape, places.shape
    return _picked(False, x, places, (batch, heads, each, width), heads, each)


def by_rows(x: Any, places: Any) -> Any:
    """Results of queries [B, H, Q, D] as rows [T, H, D]; ``places`` [T]: queries of all B · Q."""
    _, heads, each, width = x.shape
    return _picked(True, x, places, (len(places), heads, width), heads, each)


def _picked(back: bool, x: Any, places: Any, shape: tuple[int, ...], heads: int, each: int) -> Any:
    if shape[-1] % 4:
        raise UnsupportedError(
            f"a step of several sequences, whose heads have {shape[-1]} columns: its kernel moves four at a "
            "time; such steps are not recorded, and sequences one after the other are"
        )
    x, out = aligned_floats(x), cupy().empty(shape, np.float32)
    count = out.size // 4
    picker(back)((-(-count // THREADS),), (THREADS,), x, places, out, heads, each, shape[-1] // 4, count)
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
