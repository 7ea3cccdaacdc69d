"""A decorator for ``gq.functions``: torch tensors in, torch tensors out, on a GPU on torch's stream."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from ..arrays.tensors import array_of, bits_of, is_tensor, untraced
from ..errors import DTypeError
from ..ops.torch_context import as_torch_works


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
