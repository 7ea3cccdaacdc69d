"""Conversions of activations and results between float32, float16 and bfloat16, each in one launch.

CuPy knows no bfloat16, so its bits are uint16. Conversions by CuPy cannot be part of a prepared launch
(machine/recorded.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import DTYPES, KINDS, LEAST, storing
from ..intrinsics.lane import four_into
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.launch import Kernel, family
from ..machine.recorded import between

THREADS, THREAD_VALUES = 256, 8  # of a block; values of a thread
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
                v[2 * i], v[2 * i + 1] = float_of(word << uint32(16)), float_of(word & uint32(0xFFFF0000))
            else:
                v[2 * i], v[2 * i + 1] = half(word & uint32(0xFFFF)), half(word >> uint32(16))

    return load if kind == "float32" else load_sixteen


@family([
    ("float32", "float16"), ("float32", "bfloat16"), ("float16", "bfloat16"), ("float16", "float32"),
    ("bfloat16", "float32"),
])  # fmt: skip
def changer(source: str, target: str) -> Kernel:
    """The kernel from one kind of floats to another, eight values a thread."""
    load, store, take_turn = eight_loader(source), storing(target), dependent_launch.take_turn
    source_size, size = KINDS[source], KINDS[target]

    def change(
        x: Any,  # of the source [count, 8]
        y: Any,  # of the target [count, 8]
        count: Any,
    ) -> None:
        take_turn()
        i = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        if i < count:
            v = cuda.local.array(THREAD_VALUES, float32)
            load(address(x, i, THREAD_VALUES, 0, source_size), v)
            for at in range(0, THREAD_VALUES, 16 // size):
                store(address(y, i, THREAD_VALUES, at, size), v, at)

    parameters = (uint64, uint64, uint32)
    least = LEAST[target]
    return Kernel(f"{source} to {target}", change, *parameters, threads=THREADS, least=least, early=True)


def changed(x: Any, target: str) -> Any:
    """A copy of x in another kind of floats; x has a multiple of eight values, and a :func:`kind_of`."""
    source = kind_of(x)
    assert source is not None
    y, count = between(x.shape, DTYPES[target]), x.size // THREAD_VALUES
    changer(source, target)((-(-count // THREADS),), (THREADS,), x, y, count)
    return y
