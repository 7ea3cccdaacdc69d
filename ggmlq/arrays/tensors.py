"""torch tensors as NumPy or CuPy arrays over the same memory. The caller has imported torch; we never do.

Floats that NumPy has no name for, bfloat16 above all, become float32, which is exact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from ..base.devices import cuda_device
from ..errors import DeviceError, DTypeError, UnsupportedError

Function = TypeVar("Function", bound=Callable[..., Any])

_outside: dict[Callable[..., Any], Callable[..., Any]] = {}  # operations as torch.compile calls them


def is_tensor(x: object) -> bool:
    """True for a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def untraced(function: Function) -> Function:
    """Decorate an operation that torch.compile must not trace: graphs end before it and begin after it.

    The two attributes are those that torch.compiler.disable sets; torch itself is not imported for them.
    They end a graph. torch then traces ``called`` itself, which runs the function that ``disable`` returns.
    """

    @wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        compiler = sys.modules.get("torch.compiler")
        if compiler is not None and compiler.is_dynamo_compiling():
            return _outside_graphs(function)(*arguments, **options)
        return function(*arguments, **options)

    return _ends_graphs(cast("Function", called))


def _ends_graphs(function: Function) -> Function:
    reason = (
        "ggmlq: torch.compile cannot trace this operation; leave fullgraph=True out, or export the model "
        "with dequantized weights"
    )
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
    return function


@_ends_graphs
def _outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    if function not in _outside:
        _outside[function] = sys.modules["torch"].compiler.disable(function)
    return _outside[function]


def array_of(request: str, x: Any, name: str = "x") -> Any:
    """The values of a tensor as a NumPy or CuPy array, without a copy if they have a type there."""
    torch = sys.modules["torch"]
    if not x.dtype.is_floating_point or x.layout is not torch.strided:
        raise DTypeError(
            f"{request}: {name} is a tensor of {x.dtype}, {x.layout}; dense floats are taken; "
            f"convert with {name}.float() or {name}.to_dense()"
        )
    x = x.detach()
    if lacks_numpy_dtype(torch, x):
        x = x.float()
    if x.device.type not in ("cpu", "cuda"):
        raise DeviceError(f'{request}: {name} is a tensor on {x.device}; move it to "cpu" or "cuda"')
    return _over_its_memory(request, x, name)


def bits_of(request: str, x: Any, name: str) -> Any:
    """A tensor of any dtype as an array over its memory; floats that NumPy has no name for as bytes."""
    torch = sys.modules["torch"]
    if x.layout is not torch.strided:
        raise DTypeError(f"{request}: {name} is a tensor of {x.layout}; pass {name}.to_dense()")
    x = x.detach()
    if x.dtype.is_floating_point and x.element_size() == 1:
        x = x.view(torch.uint8)
    return _over_its_memory(request, x, name)


def _over_its_memory(request: str, x: Any, name: str) -> Any:
    """The array over the memory of a detached tensor; an error inside torch.vmap and torch.jit.trace."""
    try:
        jit = sys.modules.get("torch.jit")
        if jit is not None and jit.is_tracing():
            raise RuntimeError("torch.jit.trace would keep this result for every x")
        if x.device.type == "cpu":
            return x.numpy()
        x.data_ptr()
    except RuntimeError as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise UnsupportedError(
            f"{request}: the numbers of {name} cannot be read ({reason}); products read memory; instead of "
            f"torch.vmap pass the whole batch as {name} [..., K]; to export or trace a model use its "
            "dequantized weights, torch.from_numpy(q.dequantize())"
        ) from error
    return cuda_device().cupy().from_dlpack(x)


def host_array(x: Any) -> Any:
    """A tensor on the host as a NumPy array; bfloat16 as its 16 bits."""
    x = x.detach().cpu().contiguous()
    if str(x.dtype) == "torch.bfloat16":
        return x.view(sys.modules["torch"].int16).numpy().view("u2")
    return x.numpy()


def lacks_numpy_dtype(torch: Any, x: Any) -> Any:
    """True for floats that NumPy has no dtype for."""
    return x.dtype.is_floating_point and x.dtype not in (torch.float16, torch.float32, torch.float64)
