"""Conversions of arrays of floats for kernels: other kinds of floats, and the order of columns of ``wgmma``.

They keep subnormal numbers, which CuPy's kernels flush to zero.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ...base.slots import Slot, following, rows_of
from ..driver.device import cupy
from ..driver.launch import Kernel, Launch, array, family
from ..driver.recorded import RecordedLaunches, X, Y, between
from ..intrinsics import bf16x2, codes8, hopper, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import DTYPES, KINDS, LEAST, storing
from ..intrinsics.lane import address, four_into
from ..intrinsics.language import cuda, float32, float64, uint32, uint64

# Conversions of activations and results between float32, float16 and bfloat16, each in one launch.
#
# CuPy knows no bfloat16, so its bits are uint16. Conversions by CuPy cannot be part of a prepared launch
# (driver/recorded.py).

CHANGE_THREADS, THREAD_VALUES = 256, 8  # of a block; values of a thread
NAMES = {"f": "float32", "e": "float16", "H": "bfloat16"}  # by NumPy's letters


def kind_of(x: Any) -> str | None:
    """The kind of floats of an array, None if it must be copied before kernels can read it.

    They read arrays that are contiguous and begin at a multiple of 16 bytes.
    """
    if not x.flags.c_contiguous or x.data.ptr % 16:
        return None
    return NAMES.get(x.dtype.char)


@cache
def eight_loader(kind: str) -> Any:
    """The device function that loads eight values of a kind as float32."""
    load_floats, float_of, bits_of, half = ptx.load_floats, ptx.float_of, ptx.bits_of, ptx.half_value
    bfloat = kind == "bfloat16"

    @inlined
    def load(at: Any, v: Any) -> None:
        for first in (0, 4):
            four_into(v, first, load_floats(at + uint64(4 * first)))

    @inlined
    def load_sixteen(at: Any, v: Any) -> None:
        words = load_floats(at)
        for i in range(4):
            word = bits_of(words[i])
            if bfloat:
                v[2 * i], v[2 * i + 1] = float_of(word << 16), float_of(word & 0xFFFF0000)
            else:
                v[2 * i], v[2 * i + 1] = half(word & 0xFFFF), half(word >> 16)

    return load if kind == "float32" else load_sixteen


@family([
    ("float32", "float16"), ("float32", "bfloat16"), ("float16", "bfloat16"), ("float16", "float32"),
    ("bfloat16", "float32"),
])  # fmt: skip
def changer(source: str, target: str) -> Kernel:
    """The kernel from one kind of floats to another, eight values a thread."""
    load, store, take_turn = eight_loader(source), storing(target), hopper.take_turn
    source_size, size = KINDS[source], KINDS[target]

    def change(
        x: Any,  # of the source [count, 8]
        y: Any,  # of the target [count, 8]
        count: Any,
    ) -> None:
        take_turn()
        i = uint32(cuda.blockIdx.x) * CHANGE_THREADS + uint32(cuda.threadIdx.x)
        if i < count:
            v = cuda.local.array(THREAD_VALUES, float32)
            load(address(x, i, THREAD_VALUES, 0, source_size), v)
            for at in range(0, THREAD_VALUES, 16 // size):
                store(address(y, i, THREAD_VALUES, at, size), v, at)

    parameters = (uint64, uint64, uint32)
    least = LEAST[target]
    return Kernel(
        f"{source} to {target}", change, *parameters, threads=CHANGE_THREADS, least=least, early=True
    )


def changed(x: Any, target: str) -> Any:
    """A copy of x in another kind of floats; x has a multiple of eight values, and a :func:`kind_of`."""
    source = kind_of(x)
    assert source is not None
    rows, length = rows_of(x), math.prod(x.shape[1:])
    count = following(rows, lambda rows: rows * length // THREAD_VALUES)
    blocks = following(count, lambda count: -(-count // CHANGE_THREADS))
    y = between((rows, *x.shape[1:]), DTYPES[target])
    changer(source, target)((blocks,), (CHANGE_THREADS,), x, y, count)
    return y


THREADS = 256
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@family([(True,), (False,)])
def kernel(widen: bool) -> Kernel:
    """The kernel from float32 to float64, or back."""
    source, target = (float32, float64) if widen else (float64, float32)

    def convert(
        x: Any,  # of the source [n]
        y: Any,  # of the target [n]
    ) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] = target(x[i])

    name = "float32 to float64" if widen else "float64 to float32"
    return Kernel(name, convert, array(source, 1), array(target, 1), threads=THREADS)


def halving(size: int) -> RecordedLaunches:
    """The prepared launch that makes halves of ``size`` floats, a multiple of eight."""
    count, change = size // THREAD_VALUES, changer("float32", "float16")
    grid = (-(-count // THREADS),)
    return RecordedLaunches.of([Launch(change, grid, (THREADS,), (Slot(X), Slot(Y), count))])


def narrowed(x: Any, kind: str) -> Any:
    """Rows of floats, a multiple of eight in all, as halves or bfloat16 on the current device."""
    if x.dtype == DTYPES[kind]:
        return cupy().ascontiguousarray(x)
    if kind == "bfloat16" and x.dtype.char == "e" and kind_of(x) and not x.size % THREAD_VALUES:
        return changed(x, kind)
    return changed(aligned_floats(x), kind)


@cache
def sixteen_loader(kind: str = "float32") -> Any:
    """The device function that loads 16 values as bfloat16 in the order of ``wgmma``, in two pieces.

    The first piece has the pairs 0, 2, 4, 6, the second the others: so a lane's four columns of weights
    meet the same four columns here. ``kind``: float32, float16, or bfloat16, which only changes places.
    """
    load_floats, narrow, bits_of, half = ptx.load_floats, bf16x2.narrowed, ptx.bits_of, ptx.half_value

    @inlined
    def load(at: Any, first: Any, second: Any) -> None:
        for t in range(4):
            v = load_floats(at + uint64(16 * t))
            first[t], second[t] = narrow(v[0], v[1]), narrow(v[2], v[3])

    @inlined
    def load_halves(at: Any, first: Any, second: Any) -> None:
        for i in range(2):
            v = load_floats(at + uint64(16 * i))
            for j in range(2):
                a, b = bits_of(v[2 * j]), bits_of(v[2 * j + 1])
                t, low = 2 * i + j, uint32(0xFFFF)
                first[t] = narrow(half(a & low), half(a >> 16))
                second[t] = narrow(half(b & low), half(b >> 16))

    @inlined
    def load_bfloats(at: Any, first: Any, second: Any) -> None:
        for i in range(2):
            v = load_floats(at + uint64(16 * i))
            for j in range(2):
                first[2 * i + j], second[2 * i + j] = bits_of(v[2 * j]), bits_of(v[2 * j + 1])

    return {"float32": load, "float16": load_halves, "bfloat16": load_bfloats}[kind]


def converted(x: Any, dtype: np.dtype[Any]) -> Any:
    """A device array in another type of floats, C-contiguous."""
    cp = cupy()
    if {x.dtype, dtype} != {FLOAT32, FLOAT64}:
        return cp.ascontiguousarray(x, dtype)
    y = between(x.shape, dtype)
    flat = cp.ascontiguousarray(x).reshape(-1)
    kernel(x.dtype == np.float32)((-(-x.size // THREADS),), (THREADS,), flat, y.reshape(-1))
    return y


def aligned_floats(x: Any) -> Any:
    """A device array as contiguous float32 that can be loaded 16 bytes at a time."""
    if x.dtype.char in "eH" and kind_of(x) and not x.size % THREAD_VALUES:
        return changed(x, "float32")
    if x.dtype.char != "f" or not x.flags.c_contiguous:
        x = converted(x, FLOAT32)
    return x.copy() if x.data.ptr % 16 else x


@cache
def four_loader(kind: str) -> Any:
    """The device function that loads four values of a kind as float32."""
    load_floats, load8, half_values, float_of = ptx.load_floats, ptx.load8, codes8.half_values, ptx.float_of
    upper = 0xFFFF0000

    @inlined
    def load(at: Any) -> Any:
        return load_floats(at)

    @inlined
    def load_halves(at: Any) -> Any:
        pairs = load8(at)
        a, b = half_values(pairs[0]), half_values(pairs[1])
        return a[0], a[1], b[0], b[1]

    @inlined
    def load_bfloats(at: Any) -> Any:
        pairs = load8(at)
        a, b = pairs[0], pairs[1]
        return (
            float_of(uint32(a << 16)), float_of(uint32(a & upper)),
            float_of(uint32(b << 16)), float_of(uint32(b & upper)),
        )  # fmt: skip

    return {"float32": load, "float16": load_halves, "bfloat16": load_bfloats}[kind]
