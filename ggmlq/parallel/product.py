"""Products with weights on several devices (``Sharded``): operands go out, terms are added or parts gathered.

    rows      each device gets x, and computes some columns of y
    columns   each device gets some columns of x, and computes a term of y: terms are added
    experts   each device gets x and ids, and computes the rows of y of its experts, else 0: terms are added
    copies    the device that has x multiplies

Floats for weights with scales are quantized before they travel: codes are a quarter of the bytes, and their
scales are those that a single device makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays.protocols import OPERATIONS
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided
from ..base.devices import device_of, namespace
from ..dispatch.checks import as_floats, check_bias, check_out, float_dtype
from ..errors import DeviceError, DTypeError, ShapeError, UnsupportedError
from ..ops import quantize_scaled
from ..ops.door import Operation, enter
from ..ops.epilogue import Wishes
from ..ops.operands import check_ids, check_rows, how_quantized, takes_zeros
from ..ops.scaled_linear import coding_of
from .parts import Parts, gathered, joined


class ShardedCall(NamedTuple):
    """One product with its operands checked."""

    text: str  # as the caller wrote it
    operation: str
    s: Any
    x: Any  # an array or a ScaledArray at home, or Parts
    codes: Any  # code, tile, and whether with zero points, of the quantization of floats at home, or None
    ids: Any  # at home, of products with experts
    home: str
    shape: tuple[int, ...]  # of the result
    bias: Any
    kind: np.dtype[Any]
    options: dict[str, Any]  # for every part alike

    @property
    def terms(self) -> bool:
        """True where the devices' results are added."""
        return self.s.axis in (1, "experts") and len(self.s.parts) > 1


def checked(
    text: str, operation: str, s: Any, x: Any, rest: tuple[Any, ...], options: dict[str, Any]
) -> ShardedCall:
    """The call with its operands checked; ``options`` keeps the arguments that every part gets alike."""
    if operation not in (s.product, "expert_linear"):
        raise DTypeError(
            f"{text}: the weights are {s!r}; their products are {s.product}; call gq.{s.product}, or x @ s.T"
        )
    need = 3 if operation == "expert_linear" else 2
    if len(s.shape) != need:
        way = "gq.expert_linear takes experts" if need == 2 else "gq.linear takes a matrix"
        raise ShapeError(f"{text}: {s!r} is {len(s.shape)}-D; weights are {need}-D here; {way}")
    home = s.devices[0] if isinstance(x, Parts) else x.device if hasattr(x, "dequantize") else device_of(x)
    if isinstance(x, Parts) and x.devices != s.devices:
        raise DeviceError(
            f"{text}: x is {x!r}, s {s!r}; parts lie on the same devices in the same order; shard both "
            "alike, or pass x.gather()"
        )
    if (home == "cpu") != (s.devices[0] == "cpu"):
        raise DeviceError(
            f"{text}: x is on {home}, s on {s.device}; both are on the host or both on GPUs; move x with "
            "cupy.asarray(x) or x.get()"
        )
    kind = float_dtype(text, options.pop("dtype", np.float32))
    bias = options.pop("bias", None)
    ids = None
    if operation == "expert_linear":
        look = options.pop("check", None)
        face: Any = Face(home, s.shape)
        ids = check_ids(text, rest[0], face, look=home == "cpu" if look is None else look)
        options["check"] = False
    if bias is not None:
        face = Face(home, s.shape)
        bias = check_bias(text, bias, face, "s")
    x = _operand(text, s, x, ids)
    codes = _codes(s, x, options)
    shape = (*ids.shape, s.shape[1]) if ids is not None else (*x.shape[:-1], s.shape[0])
    return ShardedCall(text, operation, s, x, codes, ids, home, shape, bias, kind, options)


class Face:
    """The device and shape of a sharded array, for checks that are written for single arrays."""

    def __init__(self, device: str, shape: tuple[int, ...]) -> None:
        self.device, self.shape = device, shape

    def __len__(self) -> int:
        return self.shape[0]


def _operand(text: str, s: Any, x: Any, ids: Any) -> Any:
    """Activations of a type and shape that fit."""
    scaled = isinstance(s.parts[0], ScaledArray)
    if isinstance(x, ScaledArray) and not scaled:
        raise DTypeError(f"{text}: x is {x!r}, s {s!r}; codes go with codes; pass x.dequantize()")
    if not isinstance(x, Parts | ScaledArray):
        x = as_floats(text, x)
    if ids is not None:
        face: Any = Face("", s.shape)
        check_rows(text, x.shape, face, ids.shape)
    elif not x.shape or x.shape[-1] != s.shape[-1]:
        raise ShapeError(
            f"{text}: x has shape {x.shape}, s {s.shape}; the last axis of both is K; "
            f"pass x as [..., {s.shape[-1]}]"
        )
    return x


def _codes(s: Any, x: Any, options: dict[str, Any]) -> Any:
    """The codes that floats become for weights with scales; fitting Parts are quantized where they are."""
    first = s.parts[0]
    if not isinstance(first, ScaledArray) or isinstance(x, ScaledArray):
        return None
    if isinstance(x, Parts) and (x.spans == s.spans if s.axis == 1 else x.spans is None):
        return None
    how = options.get("activations")
    code, tile = how_quantized(how, first)
    if s.axis == 1 and tile[1] is not None and any(cut % tile[1] for cut in s.cuts):
        return None  # tiles end where columns are cut: each part has tiles of its own
    options.pop("activations", None)
    return code, tile, takes_zeros(how, code)


OPERANDS = {"linear": "x, s", "scaled_linear": "x, s", "expert_linear": "x, s, ids"}


def multiply(operation: str, s: Any, x: Any, *rest: Any, left: bool = False, **options: Any) -> Any:
    """The product of an operation with sharded weights; ``left``: as Parts, which stay on their devices."""
    text = f"{operation}({OPERANDS[operation]})"
    if is_tensor(x):
        return _tensor_product(operation, s, x, rest, left, options)
    if options.get("requantize") is not None:
        return _requantized(operation, s, x, rest, left, options)
    options.pop("requantize", None)
    out = options.pop("out", None)
    call = checked(text, operation, s, x, rest, options)
    if out is not None:
        if left:
            raise ShapeError(f"{text}: out takes the whole; results stay in parts here; use gq.{operation}")
        check_out(text, out, call.shape, call.home)
    if s.axis is None and not isinstance(x, Parts) and not left:
        return _by_one(call, out)
    with s.team.run(call.home, s.recorded) as run:
        return _left(call, run) if left else _whole(call, run, out)


# --- its parts ------------------------------------------------------------------------------


def _operands(call: ShardedCall, run: Any) -> list[Any]:
    """The operand x of each device, on that device."""
    x, s = call.x, call.s
    count = len(s.parts)
    if isinstance(x, Parts):
        if s.axis == 1 and x.spans == s.spans:
            return list(x.parts)
        if s.axis != 1 and x.spans is None:
            return list(x.parts)
        if x.spans is None and call.codes is None:
            return [_slice(run, *piece) for piece in zip(range(count), x.parts, s.spans, strict=True)]
        x = gathered(run, x.parts, x.spans, x.shape, call.home, s.devices)
    if call.codes is not None:
        with run.at_home():
            code, tile, zeros = call.codes
            x = quantize_scaled(x, code, tile, zeros=zeros, ragged="pad")
    if s.axis == 1:
        with run.at_home():
            slices = [_columns(call, x, *span) for span in s.spans]
        operands: list[Any] = run.give(slices)
        return operands
    spread: list[Any] = run.give([x] * count)
    return spread


def _slice(run: Any, position: int, x: Any, span: tuple[int, int]) -> Any:
    """The columns of x that a device multiplies, taken from the copy on that device."""
    with run.on(position):
        return x[..., span[0] : span[1]]


def _columns(call: ShardedCall, x: Any, first: int, end: int) -> Any:
    try:
        return x[..., first:end]
    except IndexError as error:
        raise ShapeError(
            f"{call.text}: K of {call.s!r} is cut at {first} and {end}, where tiles of x do not meet "
            f"({error}); quantize x in other tiles, or shard by rows"
        ) from None


def _products(call: ShardedCall, run: Any) -> list[Any]:
    """The product of each device, there; terms of a sum are float32."""
    s, options = call.s, dict(call.options)
    kind = np.float32 if call.terms else call.kind.type  # a type, so that ordinary products are quick
    operands = _operands(call, run)
    ids = [None] * len(operands) if call.ids is None else _ids(call, run)
    biases = _biases(call, run) if call.bias is not None and not call.terms else None
    multiplied = OPERATIONS[call.operation]
    results = []
    for position, (x, ids_here) in enumerate(zip(operands, ids, strict=True)):
        with run.on(position):
            rest = () if ids_here is None else (ids_here[0],)
            if biases is not None:
                options["bias"] = biases[position]
            y = multiplied(x, s.parts[position], *rest, dtype=kind, **options)
            if ids_here is not None and ids_here[1] is not None:
                y = namespace(y).where(ids_here[1][..., None], np.float32(0), y)
            results.append(y)
    return _added(call, run, results) if call.terms else results


def _biases(call: ShardedCall, run: Any) -> list[Any]:
    """The bias of each device: of its columns, or the whole one."""
    bias, spans = call.bias, call.s.spans
    if _cut(call):
        biases: list[Any] = run.give([bias[first:end] for first, end in spans])
        return biases
    return [*run.give([bias] * len(call.s.parts))]


def _ids(call: ShardedCall, run: Any) -> list[Any]:
    """For each device the ids of its experts, from 0, and which uses are another device's."""
    s, ids = call.s, call.ids
    if s.axis != "experts":
        return [(ids_here, None) for ids_here in run.give([ids] * len(s.parts))]
    local_ids = []
    for position, ids_here in enumerate(run.give([ids] * len(s.parts))):
        (first, end), total = s.spans[position], len(s)
        with run.on(position):
            others = (ids_here < first) | (ids_here >= end)
            if not position:  # an id that is no expert makes a row of NaN here
                others &= (ids_here >= 0) & (ids_here < total)
            local = namespace(ids_here).where((ids_here >= first) & (ids_here < end), ids_here - first, -1)
            local_ids.append((local, others))
    return local_ids


def _added(call: ShardedCall, run: Any, terms: list[Any]) -> list[Any]:
    """The sums of the terms on every device, with the bias, in the type of the result."""
    sums: list[Any] = run.sum(terms)
    if call.bias is None and call.kind == np.float32:
        return sums
    biases = [0] * len(sums) if call.bias is None else _biases(call, run)
    added = []
    for position, (y, bias) in enumerate(zip(sums, biases, strict=True)):
        with run.on(position):
            total = y if call.bias is None else y + bias
            added.append(total.astype(call.kind, copy=False))
    return added


# --- what becomes of it ---------------------------------------------------------------------


def _left(call: ShardedCall, run: Any) -> Parts:
    run.fork()
    results = _products(call, run)
    return Parts(results, call.s.spans if _cut(call) else None, call.s.team)


def _cut(call: ShardedCall) -> bool:
    """True where devices have different columns of the result."""
    return bool(call.s.axis == 0)


def _whole(call: ShardedCall, run: Any, out: Any) -> Any:
    """The result at home; what comes there has its memory before the devices begin."""
    s, lead = call.s, call.shape[:-1]
    if _cut(call):
        rooms = [run.room(p, (*lead, end - first), call.kind) for p, (first, end) in enumerate(s.spans)]
        run.fork()
        results = _products(call, run)
        return joined(run, results, s.spans, call.shape, rooms, out)
    at = s.devices.index(call.home) if call.home in s.devices else 0
    room = run.room(at, call.shape, call.kind)
    run.fork()
    y = run.take(at, _products(call, run)[at], room)
    if out is None:
        return y
    with run.at_home():
        out[...] = y
    return out


def _by_one(call: ShardedCall, out: Any) -> Any:
    """The product with weights that every device has, on the device of x."""
    s = call.s
    if call.home not in s.devices:
        raise DeviceError(
            f"{call.text}: x is on {call.home}, s on {s.device}; move x to one of these, cupy.asarray(x) "
            "under its device"
        )
    options = dict(call.options, dtype=call.kind, out=out)
    if call.bias is not None:
        options["bias"] = call.bias
    rest = () if call.ids is None else (call.ids,)
    if call.codes is not None and call.ids is None:
        code, tile, zeros = call.codes
        options["activations"] = None if zeros else (code, tile)  # None: the default, with zero points
    return OPERATIONS[call.operation](call.x, s.parts[s.devices.index(call.home)], *rest, **options)


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


def _tensor_product(
    operation: str, s: Any, x: Any, rest: tuple[Any, ...], left: bool, options: dict[str, Any]
) -> Any:
    """The product of a torch tensor, as a torch tensor."""
    text = f"{operation}({OPERANDS[operation]})"
    if left or options.get("requantize") is not None:
        raise DTypeError(
            f"{text}: x is a tensor; results that stay in parts or are quantized are arrays; pass "
            "cupy.from_dlpack(x), or x.numpy() on the host"
        )
    options.pop("requantize", None)
    out, dtype = options.pop("out", None), options.pop("dtype", np.float32)
    wishes = Wishes(out, options.pop("bias", None), options.pop("residual", None), dtype)

    def work(s: Any, rows: Any, wishes: Wishes) -> Any:
        return multiply(operation, s, rows, *rest, out=wishes.out, bias=wishes.bias, **options)

    def shape(s: Any, x: Any) -> tuple[int, ...]:
        return (*(np.shape(rest[0]) if operation == "expert_linear" else x.shape[:-1]), s.shape[-2])

    return enter(Operation(text, work, shape=shape), s, x, wishes)


def left(operation: str, s: Any, x: Any, rest: Sequence[Any], options: dict[str, Any]) -> Parts:
    """The product of an operation with sharded weights, left on its devices as Parts."""
    if not isinstance(s, Divided):
        raise DTypeError(
            f"parallel.{operation}({OPERANDS[operation]}): s is a {type(s).__name__}; results stay in parts "
            f"where weights are in parts; make them so with gq.parallel.shard, or call gq.{operation}"
        )
    parts: Parts = multiply(operation, s, x, *rest, left=True, **options)
    return parts
