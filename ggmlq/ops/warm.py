"""Warm calls: products that repeat launches recorded by an earlier call of the same shape, with few checks.

The recordings live with the weights, under a key of the call's facts.

The first call (call.py) checks its operands, chooses a rung and records its launches. A warm call looks its
recording up and only makes sure that operands are ordinary: floats of the recorded kind, contiguous, on the
device of the weights. For all other operands a function here gives None, and the operation checks them and
explains errors. Where launches cannot be recorded, or differ from call to call, the rung is kept instead.

    linear on the host      key (shape of x, kernel, arithmetic)            recorded launches
    scaled_linear           key of the layout of x and of the options       recorded launches
    expert_linear           key (shapes of x and ids, kernel, arithmetic)   the rung
    linear on a GPU         key_of(rows, kernel, arithmetic, kind)          recorded launches, or the rung
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.buffers import address_of
from ..arrays.scaled import ScaledArray
from ..base.devices import cuda_device, cuda_driver, cuda_module, is_host
from ..dispatch.checks import FLOAT32, takes_sums
from ..dispatch.ladder import Rung

FLOAT16 = np.dtype(np.float16)
MOST_NUMBERS = 1 << 16  # activations of a recorded call: they are quantized once more while it is recorded
MOST_USES = 256  # with more uses of experts, what a call costs beside its kernels does not matter


class Key(NamedTuple):
    """The key of a call under which weights keep its recording, and the arrays that it reads."""

    key: Any
    arrays: tuple[Any, ...] = ()  # whose addresses launches take; () where the rung itself is kept


# --- on the host ------------------------------------------------------------------------------


def linear_key(x: Any, m: int, kernel: Any, arithmetic: Any) -> Key | None:
    """The key of a product of m rows x, floats or bits of bfloat16, with blocks; None for other arrays."""
    if type(x) is np.ndarray:
        plain = x.dtype is FLOAT32 and x.flags.c_contiguous
        return Key((x.shape, kernel, arithmetic), (x,)) if plain else None
    return Key(key_of(m, kernel, arithmetic, x.dtype.char)) if x.dtype.char in "feH" else None


def repeated(
    weights: Any, key: Hashable, arrays: tuple[Any, ...], out: Any, bias: Any, dtype: Any
) -> Any | None:  # fmt: skip
    """The product of these arrays by recorded launches; None if there are none, or out or bias is unusual."""
    try:
        launches = weights.recording(key)
    except TypeError:  # a key that cannot be hashed names no kernel
        return None
    if launches is None or type(launches) is Rung or dtype is not np.float32 or not weights.immutable:
        return None
    n = weights.shape[0]
    if bias is not None and (
        type(bias) is not np.ndarray or bias.dtype is not FLOAT32 or bias.shape != (n,)
    ):  # fmt: skip
        return None
    shape = (*arrays[0].shape[:-1], n)
    if out is None:
        out = np.empty(shape, FLOAT32)
    elif not _takes(out, shape, *arrays, bias):  # nobody can write to lasting weights
        return None
    if len(arrays) == 1:
        launches(address_of(arrays[0]), address_of(out))
    else:
        launches(*map(address_of, arrays), address_of(out))
    if bias is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
            out += bias
    return out


def _takes(out: Any, shape: tuple[int, ...], *operands: Any) -> bool:
    """True if a kernel can write its float32 sums straight into ``out``."""
    if type(out) is not np.ndarray or out.shape != shape or not out.flags.carray:
        return False
    return takes_sums(np.may_share_memory, out, *operands)


def scaled_key(x: Any, w: Any, activations: Any, kernel: Any, accumulate: Any) -> Key | None:
    """The key of a product with scaled weights; None where x or the way to quantize it is not ordinary.

    Its parts compare as they are meant: 1.0 and True, which are equal to 1, are no lengths of tiles.
    """
    if type(w) is not ScaledArray or type(kernel) is not str:
        return None
    if type(w.codes) is not np.ndarray or not (accumulate is None or type(accumulate) is str):
        return None
    if type(x) is np.ndarray:
        if x.dtype is not FLOAT32 or not x.flags.c_contiguous or not _is_plain(activations):
            return None
        return Key((x.shape, activations, kernel, accumulate), (x,))
    if type(x) is not ScaledArray or type(x.codes) is not np.ndarray or activations is not None:
        return None
    parts = x.parts()
    layout = tuple((type(part), part.dtype, part.shape, part.strides) for part in parts)
    return Key((layout, x.code.name, x.tile, kernel, accumulate), parts)


def _is_plain(activations: Any) -> bool:
    """True for None, and for (the name of a code, a pair of integers or None)."""
    if activations is None:
        return True
    if type(activations) is not tuple or len(activations) != 2:
        return False
    code, tile = activations
    return type(code) is str and type(tile) is tuple and all(n is None or type(n) is int for n in tile)


def experts_on_host(
    x: Any, q: Any, ids: Any, kernel: Any, arithmetic: Any, out: Any, dtype: Any, check: Any
) -> Any | None:
    """A warm product of NumPy's floats with experts, or None; ids differ in each call, so all are checked."""
    if type(x) is not np.ndarray or type(ids) is not np.ndarray or type(q) is not QuantArray:
        return None
    if dtype is not np.float32 or x.dtype is not FLOAT32 or ids.dtype.kind not in "iu":
        return None
    try:
        rung = q.recording((x.shape, ids.shape, kernel, arithmetic))
    except TypeError:  # a key that cannot be hashed names no kernel
        return None
    if rung is None or not (x.flags.c_contiguous and (_are_experts(ids, q) or check is False)):
        return None
    shape = (*ids.shape, q.shape[1])
    if out is None:
        out = np.empty(shape, FLOAT32)
    elif not _takes(out, shape, x, q.memory, ids):
        return None
    uses = ids.astype(np.int64, order="C", copy=False)
    rung.launch(x.reshape(-1, x.shape[-1]), q, uses, out)
    return out


def experts_key(x: Any, ids: Any, kernel: Any, arithmetic: Any) -> Key | None:
    """The key of a small product of NumPy's arrays with experts; None for others."""
    if type(x) is not np.ndarray or type(ids) is not np.ndarray or ids.size > MOST_USES:
        return None
    return Key((x.shape, ids.shape, kernel, arithmetic))


def _are_experts(ids: Any, q: Any) -> bool:
    """True if each id is the number of an expert."""
    numbers: list[int] = ids.reshape(-1).tolist()
    return min(numbers) >= 0 and max(numbers) < len(q)


# --- on a GPU ---------------------------------------------------------------------------------


def on_device(x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any) -> Any | None:
    """A warm product of CuPy's floats with blocks, on the current device; None where the call is not warm."""
    if type(q) is not QuantArray or type(memory := q.memory) is not type(x):
        return None
    if dtype is not np.float32 and dtype is not np.float16:
        return None
    gpu, shape, size = cuda_driver(), x.shape, q.shape
    index = gpu.device()
    if not (x.data.device_id == memory.data.device_id == index and (kind := x.dtype.char) in "fe"):
        return None
    if not shape or len(size) != 2 or shape[-1] != size[1]:
        return None
    m, n, stream = math.prod(shape[:-1]), size[0], gpu.stream(index)
    try:
        launches = q.recording(key_of(m, kernel, arithmetic, kind))
    except TypeError:  # a key that cannot be hashed names no kernel
        return None
    if launches is None or (stream.ptr and stream.is_capturing()):
        return None  # CuPy's pool would give the memory of a captured product to others
    result = (*shape[:-1], n)
    if bias is not None and not _fits(bias, (n,), x, index):
        return None
    if out is None:
        y = gpu.array(result, FLOAT32)
    elif _fits(out, result, x, index) and takes_sums(gpu.share, out, x, memory, bias):
        y = out
    else:
        return None
    if type(launches) is Rung:
        launches.launch(x.reshape(m, size[1]), q, y.reshape(m, n))
    elif is_aligned(x):
        launches(x.data.ptr, y.data.ptr, stream.ptr)
    else:
        return None
    return _finished(gpu, q, m, y, bias, stream.ptr, out is None and dtype is np.float16)


def _fits(array: Any, shape: tuple[int, ...], x: Any, index: int) -> bool:
    """True for an array of floats like x, of this shape and on this device."""
    if type(array) is not type(x) or array.shape != shape:
        return False
    return array.data.device_id == index and array.dtype.char in "fed"


def _finished(gpu: Any, q: Any, m: int, y: Any, bias: Any, stream: int, halves: bool) -> Any:
    """Sums y with the bias added, in float16 if ``halves``; by recorded launches where possible."""
    if bias is not None:
        if bias.dtype.char != "d" and bias.flags.c_contiguous:
            adder(q, m, bias.dtype.char)(bias.data.ptr, y.data.ptr, stream)
        else:
            y += bias
    if not halves:
        return y
    if y.size % 8:
        return y.astype(np.float16)
    rounded = gpu.array(y.shape, FLOAT16)
    halving = _prepared_once(q, ("halves", y.size), lambda: cuda_module("activations.floats").halving(y.size))
    halving(y.data.ptr, rounded.data.ptr, stream)
    return rounded


def key_of(m: int, kernel: str, arithmetic: str | None, kind: str) -> tuple[Any, ...]:
    """The key of a product on a GPU: m rows of the dtype with letter ``kind`` ("H": the bits of bfloat16)."""
    return (m, kernel, arithmetic) if kind == "f" else (m, kernel, arithmetic, kind)


def adder(q: Any, m: int, kind: str) -> Any:
    """The launch that adds a bias to m rows of results, bit for bit as CuPy's addition does."""
    return _prepared_once(
        q, ("bias", m, kind), lambda: cuda_module("epilogue.bias").plan(m, q.shape[0], kind)
    )


def _prepared_once(q: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """The launches under ``key``; made by ``make()`` the first time, since they need no product."""
    launches = q.recording(key)
    if launches is None:
        q.keep_recording(key, launches := make())
    return launches


def is_aligned(x: Any) -> bool:
    """True if recorded launches can read x: contiguous, and vectors of 16 bytes from its start."""
    return not x.data.ptr % 16 and bool(x.flags.c_contiguous)


# --- recording --------------------------------------------------------------------------------


def launch(
    rung: Rung, operands: tuple[Any, ...], y: Any, key: Key | None, remake: Callable[[], Any]
) -> None:  # fmt: skip
    """Launch a rung for a call that is not warm: by a recording if there is one; else record it if that pays.

    ``remake()`` quantizes the first operand once more, so that the recording includes that step.
    """
    weights = operands[1]
    if not is_host(weights.memory):
        if key is None or not _on_device(rung, operands, y, key):
            rung.launch(*operands, y)
    elif key is None or not rung.repeats:
        rung.launch(*operands, y)
    elif not key.arrays:
        rung.launch(*operands, y)
        weights.keep_recording(key.key, rung)
    elif (
        not weights.immutable
        or key.arrays[0].size > MOST_NUMBERS
        or type(launches := weights.recording(key.key)) is Rung
    ):
        rung.launch(*operands, y)
    elif launches is not None:  # something else of the call is not ordinary, such as a bias
        launches(*map(address_of, key.arrays), address_of(y))
    else:
        launches = _recorder().recorded_product(
            lambda: rung.launch(remake(), weights, y), key.arrays, y,
            lambda: (weights.parts(), weights.prepared_copies()), y.size * weights.shape[1],
        )  # fmt: skip
        weights.keep_recording(key.key, launches or rung)


@cache
def _recorder() -> Any:
    return import_module("ggmlq.cpu.machine.recorded")


def _on_device(rung: Rung, operands: tuple[Any, ...], y: Any, key: Key) -> bool:
    """Launch a rung on a GPU and record its launches; False, and not launched, where they cannot repeat."""
    x, q = operands
    if cuda_device().capturing(x.device.id):
        return False
    if not rung.repeats:
        q.keep_recording(key.key, rung)
        return False
    if not is_aligned(x):
        return False
    if (launches := q.recording(key.key)) is not None:  # something else of the call is not ordinary
        launches(x.data.ptr, y.data.ptr, cuda_driver().stream(x.device.id).ptr)
    elif (launches := cuda_module("machine.recorded").recorded_product(rung.launch, x, q, y)) is not None:
        q.keep_recording(key.key, launches)
    return True
