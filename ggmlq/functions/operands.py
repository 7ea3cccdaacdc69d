"""Checks of the operands of ``gq.functions``: codes e4m3 or e5m2, scales, sizes of blocks."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from ..arrays.buffers import refuse_mask
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import array_of, bits_of, is_tensor, untraced
from ..base.devices import device_of, is_host
from ..codes import CODES
from ..dispatch.checks import as_floats
from ..errors import DeviceError, DTypeError, ShapeError
from ..ops.door import as_torch_works


class Coded(NamedTuple):
    """Codes of a tensor as bytes, and the name of the float that they are."""

    array: Any
    code: str


def through_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays, extended to torch tensors: called with them, it returns tensors.

    Codes come back as float8_e4m3fn, the dtype that the documents give them.
    """
    signature = inspect.signature(function)

    @untraced
    @wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        first = next((a for a in (*args, *more.values()) if is_tensor(a)), None)
        if first is None:
            return function(*args, **more)
        torch = sys.modules["torch"]
        bound = signature.bind(*args, **more)
        kind = _requested(torch, bound, signature)
        with as_torch_works(torch, first.device):
            for name, value in bound.arguments.items():
                if is_tensor(value):
                    bound.arguments[name] = _array(torch, function.__name__, name, value)
            result = function(*bound.args, **bound.kwargs)
            if isinstance(result, tuple):
                return tuple(_tensor(torch, part) for part in result)
            tensor = _tensor(torch, result)
            return tensor if kind is None else tensor.to(kind)

    return call


def _requested(torch: Any, bound: inspect.BoundArguments, signature: inspect.Signature) -> Any:
    """The dtype of torch for the result: it is computed in float32 and converted by torch."""
    name = next((n for n in ("output_dtype", "dtype") if n in signature.parameters), None)
    kind = bound.arguments.get(name) if name else None
    if not isinstance(kind, torch.dtype):
        return None
    bound.arguments[name or ""] = np.float32
    return kind


def _array(torch: Any, request: str, name: str, tensor: Any) -> Any:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise DTypeError(
            f"{request}: {name} requires a gradient, and quantized numbers have none; pass {name}.detach(), "
            "or work under torch.no_grad()"
        )
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind.startswith("float8"):
        return Coded(bits_of(request, tensor, name), kind)
    return (
        array_of(request, tensor, name) if tensor.dtype.is_floating_point else bits_of(request, tensor, name)
    )


def _tensor(torch: Any, result: Any) -> Any:
    """An array of ours as a tensor over its memory; bytes are codes e4m3."""
    if not hasattr(result, "dtype"):
        return result
    on_host = isinstance(result, np.ndarray | np.generic)
    tensor = torch.from_numpy(np.asarray(result)) if on_host else torch.from_dlpack(result)
    return tensor.view(torch.float8_e4m3fn) if tensor.dtype == torch.uint8 else tensor


COMMENT = "this is [K / block_k, N / block_n] as some texts write it"


class Product(NamedTuple):
    """Both operands of a product, and the shape of its result."""

    x: ScaledArray  # [M, K]
    w: ScaledArray  # [N, K]
    shape: tuple[int, ...]
    block: tuple[int, int]  # rows and columns of w that share a scale


def length(request: str, name: str, n: Any) -> int:
    """A length as a positive integer."""
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ShapeError(
            f"{request}: {name}={n!r}; it counts elements and is at least 1; pass 128 or the like"
        )
    return int(n)


def as_codes(request: str, name: str, a: Any) -> tuple[Any, str]:
    """Codes as bytes, and the name of their code: e4m3 unless their dtype says otherwise."""
    refuse_mask(request, a)
    if isinstance(a, Coded):
        array, kind = a
    else:
        array = np.asarray(a) if is_host(a) else a
        kind = array.dtype.name
    for code in (CODES["e4m3"], CODES["e5m2"]):
        if kind in code.aliases:
            return array.view(np.uint8), code.name
    if array.dtype != np.uint8 or isinstance(a, Coded):
        raise DTypeError(
            f"{request}: {name} is {kind}; it holds codes of 8-bit floats: uint8, float8_e4m3fn or "
            f"float8_e5m2; quantize floats with act_quant({name}) or weight_quant({name}), or pass "
            f"{name}.view(np.uint8) if these are the bits"
        )
    return array, "e4m3"


def as_scales(request: str, name: str, s: Any) -> Any:
    """The scales as float32; scales e8m0 stay bytes."""
    if isinstance(s, Coded):
        if s.code not in CODES["e8m0"].aliases:
            raise DTypeError(
                f"{request}: {name} is {s.code}; scales are float32, or powers of two as float8_e8m0fnu; "
                f"convert with {name}.float()"
            )
        return s.array
    kind = getattr(getattr(s, "dtype", None), "name", "")
    if kind == "uint8" or kind in CODES["e8m0"].aliases:
        return s
    return as_floats(request, s, name).astype(np.float32, copy=False)


def together(request: str, **arrays: Any) -> None:
    """Refuse arrays that are not all on one device."""
    places = {name: device_of(a) for name, a in arrays.items()}
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise DeviceError(
            f"{request}: {listed}; all are on one device; move them with cupy.asarray(a) or a.get()"
        )


def block_pair(request: str, block_size: Any) -> tuple[int, int]:
    """The sizes [block_n, block_k] of a block, as integers."""
    try:
        pair = tuple(block_size)
    except TypeError:
        pair = ()
    if len(pair) != 2:
        raise ShapeError(
            f"{request}: block_size={block_size!r}; it is [block_n, block_k], the rows and columns of B that "
            "share a scale; pass [128, 128]"
        )
    return length(request, "block_size[0]", pair[0]), length(request, "block_size[1]", pair[1])


def product(request: str, a: Any, b: Any, a_s: Any, b_s: Any, block: tuple[int, int], names: str) -> Product:
    """Both operands of a product: codes a [..., K] in groups (1, block_k), codes b [N, K] in blocks.

    ``names``: the names of a, b, a_s and b_s in the function, for errors.
    """
    name_a, name_b, name_as, name_bs = names.split()
    (a, code_a), (b, code_b) = as_codes(request, name_a, a), as_codes(request, name_b, b)
    a_s, b_s = as_scales(request, name_as, a_s), as_scales(request, name_bs, b_s)
    together(request, **{name_a: a, name_b: b, name_as: a_s, name_bs: b_s})
    if not a.ndim or b.ndim != 2 or a.shape[-1] != b.shape[1]:
        raise ShapeError(
            f"{request}: {name_a} has shape {a.shape}, {name_b} {b.shape}; {name_a} is [..., K] and "
            f"{name_b} [N, K], rows of both along K{_turned(name_b, a, b)}"
        )
    (bn, bk), (n, k) = block, b.shape
    want_a, want_b = (*a.shape[:-1], -(-k // bk)), (-(-n // bn), -(-k // bk))
    if a_s.shape != want_a:
        raise ShapeError(
            f"{request}: {name_as} has shape {a_s.shape}, {name_a} {a.shape} in groups of {bk} needs "
            f"{want_a}: "
            f"one scale for each {bk} of K of each row{_way(name_as, a_s, want_a)}"
        )
    if b_s.shape != want_b:
        raise ShapeError(
            f"{request}: {name_bs} has shape {b_s.shape}, {name_b} {b.shape} in blocks of {bn} × {bk} needs "
            f"{want_b}: [N / block_n, K / block_k], each rounded up{_way(name_bs, b_s, want_b, COMMENT)}"
        )
    m = math.prod(a.shape[:-1])
    x = ScaledArray(a.reshape(m, k), a_s.reshape(m, want_a[-1]), code_a, (1, bk))
    return Product(x, ScaledArray(b, b_s, code_b, (bn, bk)), (*a.shape[:-1], n), block)


def _turned(name: str, a: Any, b: Any) -> str:
    """The way out where b looks transposed, in words."""
    if a.ndim and b.ndim == 2 and a.shape[-1] == b.shape[0]:
        return f"; {name} looks like [K, N], pass {name}.T"
    return "; pass them so"


def _way(name: str, s: Any, want: tuple[int, ...], written: str = "") -> str:
    """The way out for scales of another shape, in words."""
    if s.ndim == 2 and s.shape == want[::-1]:
        return f"; {written or 'they look transposed'}, pass {name}.T"
    if s.ndim == 1 and s.size == math.prod(want):
        return f"; pass {name}.reshape{want}"
    return "; pass them so, or another block size"


def writable(array: Any) -> Any:
    """An array that was made here and that nobody else has, for the caller to write to."""
    if is_host(array) and not array.flags.writeable:
        owner = array if array.base is None else array.base
        if not isinstance(owner, np.ndarray) or not owner.flags.owndata:
            return array.copy()
        owner.flags.writeable = True
        array.flags.writeable = True
    return array
