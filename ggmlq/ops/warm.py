"""Warm calls: products that repeat launches recorded by an earlier call of the same shape, with few checks.

The recordings live with the weights, under a key of the call's facts.

The first call (call.py) checks its operands, chooses a rung and records its launches. A warm call looks its
recording up and only makes sure that operands are ordinary: floats of the recorded kind, contiguous, on the
device of the weights. For all other operands a function here gives None, and the operation checks them and
explains errors. Where launches cannot be recorded, or differ from call to call, the rung is kept instead.

    linear on the host      key (shape of x, kernel, arithmetic)            recorded launches
    scaled_linear           key of the layout of x and of the options       recorded launches
    expert_linear           key (shapes of x and ids, kernel, arithmetic)   the rung
    linear on a GPU         kinds of x, y and what is added                 recorded launches, or the rung
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
from ..arrays.companion import multiply, of_uses
from ..arrays.scaled import ScaledArray
from ..base.devices import cuda_device, cuda_driver, cuda_module, is_host
from ..dispatch.checks import FLOAT32, takes_sums
from ..dispatch.epilogue import PLAIN, Epilogue
from ..dispatch.ladder import Rung

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
    return Key((m, kernel, arithmetic)) if x.dtype.char in "feH" else None


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
    if type(weights) is QuantArray and weights.scale is not None:
        multiply(out, weights.scale)
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
    if q.scale is not None:
        multiply(out, of_uses(q.scale, uses))
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


# --- recording --------------------------------------------------------------------------------


def launch(
    rung: Rung, operands: tuple[Any, ...], y: Any, key: Key | None, remake: Callable[..., Any],
    end: Epilogue = PLAIN,
) -> None:  # fmt: skip
    """Launch a rung for a call that is not warm: by a recording if there is one; else record it if that pays.

    ``remake(*key.arrays)`` makes the first operand once more, so that the recording includes that step.
    """
    weights = operands[1]
    if not is_host(weights.memory):
        if key is None or not launched(rung, operands, y, key.key, end):
            options = {} if end is PLAIN else {"end": end}
            rung.launch(*operands, y, **options)
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
            lambda *arrays: rung.launch(remake(*arrays[:-1]), weights, arrays[-1]), key.arrays, y,
            lambda: (weights.parts(), weights.prepared_copies()), y.size * weights.shape[1],
        )  # fmt: skip
        weights.keep_recording(key.key, launches or rung)


@cache
def _recorder() -> Any:
    return import_module("ggmlq.cpu.machine.recorded")


# --- on a GPU: recorded launches, or a rung that was chosen before ------------------------------
# A recording has the kinds of x, of y, of the bias and of the residual in its key. Rungs that round their
# sums write y as it is wanted and add the bias; of others y is float32 first, and kernels behind do the
# rest. A warm call with a residual repeats launches that add it.

FLOAT16 = np.dtype(np.float16)


def on_device(
    x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any, residual: Any = None,
    gate: str | None = None,
) -> Any | None:  # fmt: skip
    """A warm product of CuPy's floats with blocks, on the current device; None where the call is not warm.

    ``gate``: the function of the residual that multiplies the product, of dispatch/epilogue.py.
    """
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
    result = (*shape[:-1], n)
    if bias is not None and not _fits(bias, (n,), x, index):
        return None
    wanted = np.dtype(dtype) if out is None else out.dtype
    added, after = bias, None  # by the launches
    if residual is not None:
        if not _fits(residual, result, x, index) or not residual.flags.c_contiguous:
            return None
        if out is not None and residual is not out and gpu.share(out, residual):
            return None
        added, after = (residual, None) if bias is None and m == 1 and gate is None else (bias, residual)
        if after is not None and after.data.ptr % 4:  # kernels read two of 16 bits at a time
            return None
    try:
        letters = letters_of(added, after, gate)
        launches, whole = recording(q, m, kernel, arithmetic, kind, wanted.char, letters)
    except TypeError:  # a key that cannot be hashed names no kernel
        return None
    if launches is None or (residual is not None and not whole) or (stream.ptr and stream.is_capturing()):
        return None  # CuPy's pool would give the memory of a captured product to others
    written = wanted if whole else FLOAT32
    if out is None:
        y = gpu.array(result, written)
    elif (
        _fits(out, result, x, index)
        and takes_sums(gpu.share, out, x, memory, bias, dtype=written)
        and not out.data.ptr % 4
    ):
        y = out
    else:
        return None
    if type(launches) is Rung:
        launches.launch(x.reshape(m, size[1]), q, y.reshape(m, n))
    elif not is_aligned(x):
        return None
    elif whole and letters:
        if bias is not None and not bias.flags.c_contiguous:
            return None
        launches(x.data.ptr, y.data.ptr, stream.ptr, 0, _address(added), _address(after))
    else:
        launches(x.data.ptr, y.data.ptr, stream.ptr)
    if whole:
        return y
    return _finished(gpu, q, m, y, bias, stream.ptr, out is None and dtype is np.float16)


def _address(array: Any) -> int:
    """The address of an array, 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def letters_of(bias: Any, residual: Any, gate: str | None = None) -> str:
    """The letters of the kinds of what launches add, of which one or both may be None, or of a gate."""
    letters = "" if bias is None else bias.dtype.char
    return letters if residual is None else f"{letters}{gate or '+'}{residual.dtype.char}"


def recording(
    q: Any, m: int, kernel: Any, arithmetic: Any, x: str, y: str, addends: str | None
) -> tuple[Any, bool]:  # fmt: skip
    """The recording of a product, and whether it writes y as it is wanted, with all that is added to it; else
    y is float32.

    ``x``, ``y``, ``addends``: letters of their kinds.
    """
    kinds = x + y + (addends or "")
    launches = q.recording(key_of(m, kernel, arithmetic, kinds))
    if launches is not None or kinds == x + "f":
        return launches, type(launches) is not Rung or kinds == x + "f"
    return q.recording(key_of(m, kernel, arithmetic, x + "f")), False


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


def key_of(m: int, kernel: str, arithmetic: str | None, kinds: str) -> tuple[Any, ...]:
    """The key of a product of m rows on a GPU.

    ``kinds``: letters of the dtypes of x, y and what is added, if there is any ("H": the bits of bfloat16).
    """
    return (m, kernel, arithmetic) if kinds == "ff" else (m, kernel, arithmetic, kinds)


def adder(q: Any, m: int, kind: str) -> Any:
    """The launch that adds a bias to m rows of results, bit for bit as CuPy's addition does."""
    return _prepared_once(
        q, ("bias", m, kind), lambda: cuda_module("epilogue.results").plan(m, q.shape[0], kind)
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


def launched(
    rung: Rung, operands: tuple[Any, ...], y: Any, facts: tuple[int, str, str | None], end: Epilogue
) -> bool:  # fmt: skip
    """Launch a rung and record its launches; False, and not launched, where they cannot repeat.

    ``facts``: rows, kernel and arithmetic of the call.
    """
    x, q = operands
    if cuda_device().capturing(x.device.id):
        return False
    kinds = x.dtype.char + y.dtype.char + letters_of(end.bias, end.residual, end.gate)
    place = key_of(*facts, kinds)
    if not rung.repeats:
        q.keep_recording(place, rung)
        return False
    if not is_aligned(x):
        return False
    recorder = cuda_module("machine.recorded")
    if (launches := q.recording(place)) is not None:  # something else of the call is not ordinary
        stream, addresses = cuda_driver().stream(x.device.id).ptr, map(_address, (end.bias, end.residual))
        launches(x.data.ptr, y.data.ptr, stream, 0, *addresses)
    elif (launches := recorder.recorded_product(rung.launch, x, q, y, end)) is not None:
        q.keep_recording(place, launches)
    return True
