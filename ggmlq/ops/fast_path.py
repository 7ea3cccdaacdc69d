"""The ordinary product: floats beside their weights, on the current device, or few of them on the host.

What :func:`ggmlq.linear` checks with words is looked at here without, in a few microseconds;
whatever is not ordinary goes back there. Only which kernel serves a problem is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.buffers import address_of
from ..arrays.scaled import ScaledArray
from ..base.devices import cuda_driver, cuda_module
from ..dispatch import ladder
from ..dispatch.checks import FLOAT32, takes_sums
from ..dispatch.problems import Linear

MOST_NUMBERS = 1 << 16  # of activations with scales in a plan: quantized once more where it is made
FLOAT16 = np.dtype(np.float16)
NO_PLAN = object()  # kept where one was looked for in vain


def linear(
    x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any, kinds: str = "fe"
) -> Any | None:  # fmt: skip
    """``x @ q.T + bias`` for a CuPy array, or None where there is something to check or to convert.

    ``kinds``: of x, by the letters of their dtypes; with "H", uint16, it holds the bits of bfloat16.
    """
    if type(q) is not QuantArray or type(memory := q.memory) is not type(x):
        return None
    if type(kernel) is not str or not (arithmetic is None or type(arithmetic) is str):
        return None
    if dtype is not np.float32 and dtype is not np.float16:
        return None
    gpu, shape, size = cuda_driver(), x.shape, q.shape
    index = gpu.device()
    if not (x.data.device_id == memory.data.device_id == index and (kind := x.dtype.char) in kinds):
        return None
    if not shape or len(size) != 2 or shape[-1] != size[1]:
        return None
    stream = gpu.stream(index)
    recording = bool(stream.ptr) and stream.is_capturing()
    if recording and kinds == "fe":  # whose bytes CuPy's pool would give to others
        return None
    n, k = size
    result = (*shape[:-1], n)
    if bias is not None and not _fits(bias, (n,), x, index):
        return None
    if out is None:
        y = gpu.array(result, FLOAT32)
    elif _fits(out, result, x, index) and takes_sums(gpu.share, out, x, memory, bias):
        y = out
    else:
        return None
    flat = len(shape) == 2
    m = shape[0] if flat else math.prod(shape[:-1])
    address = x.data.ptr
    plain = not address % 16 and x.flags.c_contiguous
    key = key_of(m, kernel, arithmetic, kind)
    if plain and not recording and (plan := q.plan(key)) is not None:
        plan(address, y.data.ptr, stream.ptr)
        return _ended(gpu, q, m, y, bias, stream.ptr, out is None and dtype is np.float16)
    rows, to = (x, y) if flat else (x.reshape(m, k), y.reshape(m, n))
    rung = ladder.chosen(Linear, "cuda", gpu.card(index), kernel, arithmetic, q.format, m, n, k).rung
    repeats = plain and rung.repeats and m and n and k
    if kind == "H" and not repeats:
        return None
    if repeats and not recording:
        if (made := cuda_module("machine.recorded").recorded_product(rung.launch, rows, q, to)) is not None:
            q.keep_plan(key, made)
    else:
        rung.launch(rows, q, to)
    if bias is not None:
        y += bias
    return y if out is not None or dtype is np.float32 else y.astype(dtype)


def _ended(gpu: Any, q: Any, m: int, y: Any, bias: Any, stream: int, halves: bool) -> Any:
    """What comes after a plan, by kernels of ours as by CuPy's: a bias, results as halves."""
    if bias is not None:
        if bias.dtype.char != "d" and bias.flags.c_contiguous:
            adder(q, m, bias.dtype.char)(bias.data.ptr, y.data.ptr, stream)
        else:
            y += bias
    if not halves:
        return y
    if y.size % 8:
        return y.astype(np.float16)
    found = gpu.array(y.shape, FLOAT16)
    plan = _kept(q, ("halves", y.size), lambda: cuda_module("activations.floats").halving(y.size))
    plan(y.data.ptr, found.data.ptr, stream)
    return found


def key_of(m: int, kernel: str, arithmetic: str | None, kind: str) -> tuple[Any, ...]:
    """What a plan for so many rows of a kind is found by; kinds have the letters of their dtypes."""
    return (m, kernel, arithmetic) if kind == "f" else (m, kernel, arithmetic, kind)


def adder(q: Any, m: int, kind: str) -> Any:
    """What adds a bias of a kind to so many rows of results, without CuPy, as it would."""
    return _kept(q, ("bias", m, kind), lambda: cuda_module("epilogue.bias").plan(m, q.shape[0], kind))


def _kept(q: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """A plan that no product has to be run for."""
    plan = q.plan(key)
    if plan is None:
        q.keep_plan(key, plan := make())
    return plan


def on_host(x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any) -> Any | None:
    """A product of few rows of NumPy's floats that was done before; None for all others."""
    if (
        type(q) is not QuantArray
        or dtype is not np.float32
        or x.dtype is not FLOAT32
        or not _ordinary(bias, q)
    ):
        return None
    try:
        plan = q.plan((x.shape, kernel, arithmetic))
    except TypeError:  # what cannot be a key is nothing that it takes either
        return None
    if plan is None or not x.flags.c_contiguous or not q.lasting:
        return None
    shape = (*x.shape[:-1], q.shape[0])
    if out is None:
        out = np.empty(shape, FLOAT32)
    elif not takes(out, shape, x, q.memory, bias):
        return None
    plan(address_of(x), address_of(out))
    return out if bias is None else _with(out, bias)


def _ordinary(bias: Any, weights: Any) -> bool:
    """Whether it can be added as it is, or there is none."""
    if bias is None:
        return True
    return type(bias) is np.ndarray and bias.dtype is FLOAT32 and bias.shape == weights.shape[:1]


def _with(y: Any, bias: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
        y += bias
    return y


def scaled_on_host(
    x: Any, w: Any, activations: Any, kernel: Any, accumulate: Any, out: Any, bias: Any, dtype: Any
) -> Any | None:
    """The same with weights that have scales: of NumPy's floats, or of codes on the host."""
    if type(w) is not ScaledArray or type(w.codes) is not np.ndarray or dtype is not np.float32:
        return None
    if not _ordinary(bias, w):
        return None
    key = _layout(x, activations, kernel, accumulate)
    if key is None or (plan := w.plan(key)) is None or plan is NO_PLAN or not w.lasting:
        return None
    shape, operands = (*x.shape[:-1], w.codes.shape[0]), _operands(x)
    if out is None:
        out = np.empty(shape, FLOAT32)
    elif not takes(out, shape, *operands, *w.parts(), bias):
        return None
    plan(*map(address_of, operands), address_of(out))
    return out if bias is None else _with(out, bias)


def _layout(x: Any, activations: Any, kernel: Any, accumulate: Any) -> Any:
    """What a plan for x is found by; None where it is nothing that plans are for.

    All of it compares as it is meant: 1.0 and True, which are equal to 1, are no lengths of tiles.
    """
    if type(kernel) is not str or not (accumulate is None or type(accumulate) is str):
        return None
    if type(x) is np.ndarray:
        if x.dtype is not FLOAT32 or not x.flags.c_contiguous or not _plain(activations):
            return None
        return x.shape, activations, kernel, accumulate
    if type(x) is not ScaledArray or activations is not None:
        return None
    parts = tuple((type(part), part.dtype, part.shape, part.strides) for part in x.parts())
    return parts, x.code.name, x.tile, kernel, accumulate


def _plain(activations: Any) -> bool:
    """Whether it is said with a name and a pair of integers how floats are quantized, or not at all."""
    if activations is None:
        return True
    if type(activations) is not tuple or len(activations) != 2:
        return False
    code, tile = activations
    return type(code) is str and type(tile) is tuple and all(n is None or type(n) is int for n in tile)


def _operands(x: Any) -> tuple[Any, ...]:
    """Arrays that a product looks at."""
    return (x,) if type(x) is np.ndarray else x.parts()


def keep_scaled_on_host(
    rung: Any, x: Any, quantize: Callable[[], ScaledArray], w: ScaledArray, y: Any, activations: Any,
    kernel: str, accumulate: str | None,
) -> bool:  # fmt: skip
    """Run a rung and keep how, where that pays; False, and nothing done, where it does not.

    ``quantize()``: x as the rung takes it.
    """
    if not rung.repeats or type(w.codes) is not np.ndarray or not w.lasting:
        return False
    key = _layout(x, activations, kernel, accumulate)
    if key is None or x.size > MOST_NUMBERS or (plan := w.plan(key)) is NO_PLAN:
        return False
    if plan is not None:  # something else of the call is not ordinary, such as a bias
        plan(*map(address_of, _operands(x)), address_of(y))
        return True
    plan = _plans().planned(
        lambda: rung.launch(quantize(), w, y), _operands(x), y,
        lambda: (w.parts(), w.all_kept()), y.size * w.shape[1],
    )  # fmt: skip
    w.keep_plan(key, plan or NO_PLAN)
    return True


def takes(out: Any, shape: tuple[int, ...], *operands: Any) -> bool:
    """Whether sums can be written there as they come."""
    if type(out) is not np.ndarray or out.shape != shape or not out.flags.carray:
        return False
    return takes_sums(np.may_share_memory, out, *operands)


def keep_on_host(rung: Any, x: Any, rows: Any, q: Any, y: Any, kernel: str, arithmetic: str | None) -> bool:
    """Run a rung and keep how, where that pays; False, and nothing done, where it does not."""
    if type(x) is not np.ndarray or not rung.repeats or rows.dtype is not FLOAT32 or not q.lasting:
        return False
    if not rows.flags.c_contiguous:
        return False
    key = x.shape, kernel, arithmetic
    if (plan := q.plan(key)) is not None and x.flags.c_contiguous:
        plan(address_of(x), address_of(y))  # something else of the call is not ordinary, such as a bias
        return True
    plan = _plans().planned(
        lambda: rung.launch(rows, q, y), (x,), y, lambda: (q.raw, q.all_kept()), y.size * q.shape[1]
    )
    if plan is not None:
        q.keep_plan(key, plan)
    return True


@cache
def _plans() -> Any:
    return import_module("ggmlq.cpu.machine.plans")


def _fits(array: Any, shape: tuple[int, ...], x: Any, index: int) -> bool:
    """Whether it is an array of floats like x, of this shape and on this device."""
    if type(array) is not type(x) or array.shape != shape:
        return False
    return array.data.device_id == index and array.dtype.char in "fed"
