"""Warm calls: products that repeat launches recorded by an earlier call of the same shape, with few checks.

The recordings live with the weights, under a key of the call's facts.

The first call (call.py) checks its operands, chooses a rung and records its launches. A warm call looks its
recording up and only makes sure that operands are ordinary: floats of the recorded kind, contiguous, on the
device of the weights. For all other operands a function here gives None, and the operation checks them and
explains errors. Where launches cannot be recorded, or differ from call to call, the rung is kept instead.

    linear on the host      key (shape of x, kernel, arithmetic)            recorded launches
    scaled_linear           key of the layout of x and of the options       recorded launches
    expert_linear           key (shapes of x and ids, kernel, arithmetic)   the rung
    linear on a GPU         warm_device.py                                  recorded launches, or the rung
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.buffers import address_of
from ..arrays.companion import multiply, of_uses
from ..arrays.scaled import ScaledArray
from ..base.devices import is_host
from ..dispatch.checks import FLOAT32, takes_sums
from ..dispatch.epilogue import PLAIN, Epilogue
from ..dispatch.ladder import Rung
from . import warm_device

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
        if key is None or not warm_device.launched(rung, operands, y, key.key, end):
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
