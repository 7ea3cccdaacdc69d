"""Products with weights on several devices: what each gets, what it multiplies, what becomes of the results.

    rows      everyone gets x, and has some columns of y
    columns   everyone gets some columns of x, and has a term of y: terms are added
    experts   everyone gets x and ids, and has the rows of y whose expert it holds, else 0: terms are added
    copies    whoever has x multiplies

Floats for weights with scales are quantized before they travel: codes are a quarter of the bytes, and their
scales those of a single device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays.protocols import OPERATIONS
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided
from ..base.devices import namespace
from ..dispatch.checks import check_out
from ..errors import DeviceError, DTypeError, ShapeError, UnsupportedError
from ..ops import quantize_scaled, tensors
from ..ops.scaled_linear import coding_of
from .asked import Asked, checked
from .parts import Parts, gathered, joined

OPERANDS = {"linear": "x, s", "scaled_linear": "x, s", "expert_linear": "x, s, ids"}


def multiply(operation: str, s: Any, x: Any, *rest: Any, left: bool = False, **options: Any) -> Any:
    """``x @ s.T`` and its like. ``left``: the result stays on its devices, as Parts."""
    text = f"{operation}({OPERANDS[operation]})"
    if is_tensor(x):
        return _of_tensor(operation, s, x, rest, left, options)
    if options.get("requantize") is not None:
        return _requantized(operation, s, x, rest, left, options)
    options.pop("requantize", None)
    out = options.pop("out", None)
    asked = checked(text, operation, s, x, rest, options)
    if out is not None:
        if left:
            raise ShapeError(f"{text}: out takes the whole; results stay in parts here; use gq.{operation}")
        check_out(text, out, asked.shape, asked.home)
    if s.axis is None and not isinstance(x, Parts) and not left:
        return _by_one(asked, out)
    with s.team.run(asked.home, s.recorded) as run:
        return _left(asked, run) if left else _whole(asked, run, out)


# --- its parts ------------------------------------------------------------------------------


def _given(asked: Asked, run: Any) -> list[Any]:
    """What each device multiplies, on it."""
    x, s = asked.x, asked.s
    count = len(s.parts)
    if isinstance(x, Parts):
        if s.axis == 1 and x.spans == s.spans:
            return list(x.parts)
        if s.axis != 1 and x.spans is None:
            return list(x.parts)
        if x.spans is None and asked.codes is None:
            return [_slice(run, *each) for each in zip(range(count), x.parts, s.spans, strict=True)]
        x = gathered(run, x.parts, x.spans, x.shape, asked.home, s.devices)
    if asked.codes is not None:
        with run.at_home():
            code, tile, zeros = asked.codes
            x = quantize_scaled(x, code, tile, zeros=zeros, ragged="pad")
    if s.axis == 1:
        with run.at_home():
            slices = [_columns(asked, x, *span) for span in s.spans]
        given: list[Any] = run.give(slices)
        return given
    spread: list[Any] = run.give([x] * count)
    return spread


def _slice(run: Any, position: int, x: Any, span: tuple[int, int]) -> Any:
    """Of what is on every device the columns that are multiplied there."""
    with run.on(position):
        return x[..., span[0] : span[1]]


def _columns(asked: Asked, x: Any, first: int, end: int) -> Any:
    try:
        return x[..., first:end]
    except IndexError as error:
        raise ShapeError(
            f"{asked.text}: K of {asked.s!r} is cut at {first} and {end}, where tiles of x do not meet "
            f"({error}); quantize x in other tiles, or shard by rows"
        ) from None


def _products(asked: Asked, run: Any) -> list[Any]:
    """The product of each device, there; terms of a sum are float32."""
    s, options = asked.s, dict(asked.options)
    kind = np.float32 if asked.terms else asked.kind.type  # a type, so that ordinary products are quick
    given = _given(asked, run)
    ids = [None] * len(given) if asked.ids is None else _ids(asked, run)
    biases = _biases(asked, run) if asked.bias is not None and not asked.terms else None
    multiplied = OPERATIONS[asked.operation]
    made = []
    for position, (x, mine) in enumerate(zip(given, ids, strict=True)):
        with run.on(position):
            rest = () if mine is None else (mine[0],)
            if biases is not None:
                options["bias"] = biases[position]
            y = multiplied(x, s.parts[position], *rest, dtype=kind, **options)
            if mine is not None and mine[1] is not None:
                y = namespace(y).where(mine[1][..., None], np.float32(0), y)
            made.append(y)
    return _added(asked, run, made) if asked.terms else made


def _biases(asked: Asked, run: Any) -> list[Any]:
    """For each device that of its columns."""
    bias, spans = asked.bias, asked.s.spans
    if _cut(asked):
        found: list[Any] = run.give([bias[first:end] for first, end in spans])
        return found
    return [*run.give([bias] * len(asked.s.parts))]


def _ids(asked: Asked, run: Any) -> list[Any]:
    """For each device the ids of its experts, from 0, and which uses are another device's."""
    s, ids = asked.s, asked.ids
    if s.axis != "experts":
        return [(mine, None) for mine in run.give([ids] * len(s.parts))]
    found = []
    for position, mine in enumerate(run.give([ids] * len(s.parts))):
        (first, end), total = s.spans[position], len(s)
        with run.on(position):
            others = (mine < first) | (mine >= end)
            if not position:  # an id that is no expert makes a row of NaN here
                others &= (mine >= 0) & (mine < total)
            local = namespace(mine).where((mine >= first) & (mine < end), mine - first, -1)
            found.append((local, others))
    return found


def _added(asked: Asked, run: Any, terms: list[Any]) -> list[Any]:
    """Their sum on every device, and the bias, in the type that was asked for."""
    sums: list[Any] = run.sum(terms)
    if asked.bias is None and asked.kind == np.float32:
        return sums
    biases = [0] * len(sums) if asked.bias is None else _biases(asked, run)
    added = []
    for position, (y, bias) in enumerate(zip(sums, biases, strict=True)):
        with run.on(position):
            made = y if asked.bias is None else y + bias
            added.append(made.astype(asked.kind, copy=False))
    return added


# --- what becomes of it ---------------------------------------------------------------------


def _left(asked: Asked, run: Any) -> Parts:
    run.fork()
    made = _products(asked, run)
    return Parts(made, asked.s.spans if _cut(asked) else None, asked.s.team)


def _cut(asked: Asked) -> bool:
    """Whether devices have different columns of the result."""
    return bool(asked.s.axis == 0)


def _whole(asked: Asked, run: Any, out: Any) -> Any:
    """The result at home; what comes there has its memory before the devices begin."""
    s, lead = asked.s, asked.shape[:-1]
    if _cut(asked):
        rooms = [run.room(p, (*lead, end - first), asked.kind) for p, (first, end) in enumerate(s.spans)]
        run.fork()
        made = _products(asked, run)
        return joined(run, made, s.spans, asked.shape, rooms, out)
    at = s.devices.index(asked.home) if asked.home in s.devices else 0
    room = run.room(at, asked.shape, asked.kind)
    run.fork()
    y = run.take(at, _products(asked, run)[at], room)
    if out is None:
        return y
    with run.at_home():
        out[...] = y
    return out


def _by_one(asked: Asked, out: Any) -> Any:
    """Of weights that are everywhere: on the device of x."""
    s = asked.s
    if asked.home not in s.devices:
        raise DeviceError(
            f"{asked.text}: x is on {asked.home}, s on {s.device}; move x to one of these, cupy.asarray(x) "
            "under its device"
        )
    options = dict(asked.options, dtype=asked.kind, out=out)
    if asked.bias is not None:
        options["bias"] = asked.bias
    rest = () if asked.ids is None else (asked.ids,)
    if asked.codes is not None and asked.ids is None:
        code, tile, zeros = asked.codes
        options["activations"] = None if zeros else (code, tile)  # zero points where nothing is said
    return OPERATIONS[asked.operation](asked.x, s.parts[s.devices.index(asked.home)], *rest, **options)


def _requantized(
    operation: str, s: Any, x: Any, rest: tuple[Any, ...], left: bool, options: dict[str, Any]
) -> Any:
    text = f"{operation}({OPERANDS[operation]})"
    how, out = options.pop("requantize"), options.get("out")
    if left or out is not None:
        raise UnsupportedError(
            f"{text}: requantize makes one new ScaledArray; it neither stays in parts nor goes into out; "
            "leave these out, or quantize the parts with y.map"
        )
    y = multiply(operation, s, x, *rest, **options)
    coding = coding_of(how, math.prod(y.shape[:-1]), y.shape[-1])
    return quantize_scaled(y, coding.code, coding.tile, scales=coding.scales)


def _of_tensor(
    operation: str, s: Any, x: Any, rest: tuple[Any, ...], left: bool, options: dict[str, Any]
) -> Any:
    """A tensor of torch in, one out."""
    text = f"{operation}({OPERANDS[operation]})"
    if left or options.get("requantize") is not None:
        raise DTypeError(
            f"{text}: x is a tensor; results that stay in parts or are quantized are arrays; pass "
            "cupy.from_dlpack(x), or x.numpy() on the host"
        )
    options.pop("requantize", None)
    out, dtype = options.pop("out", None), options.pop("dtype", np.float32)
    work = partial(multiply, operation)

    def product(rows: Any, s: Any, *ids: Any, **more: Any) -> Any:
        return work(s, rows, *ids, **more)

    if operation == "expert_linear":
        shape: tuple[int, ...] = (*np.shape(rest[0]), s.shape[1])
    else:
        shape = (*x.shape[:-1], s.shape[0])
    return tensors.called(product, text, x, (s, *rest), shape, out, dtype, **options)


def left(operation: str, s: Any, x: Any, rest: Sequence[Any], options: dict[str, Any]) -> Parts:
    """The operation with its result in parts."""
    if not isinstance(s, Divided):
        raise DTypeError(
            f"parallel.{operation}({OPERANDS[operation]}): s is a {type(s).__name__}; results stay in parts "
            f"where weights are in parts; make them so with gq.parallel.shard, or call gq.{operation}"
        )
    found: Parts = multiply(operation, s, x, *rest, left=True, **options)
    return found
