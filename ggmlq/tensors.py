"""torch tensors as arrays, over the memory that they have. Who passes one has imported torch; we never do.

Floats that NumPy has no name for, bfloat16 above all, become float32, which is exact.
"""

from __future__ import annotations

import sys
from typing import Any

from .devices import cuda_device
from .errors import DeviceError, DTypeError


def is_tensor(x: object) -> bool:
    """Whether this is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def array_of(asked: str, x: Any, name: str = "x") -> Any:
    """The values of a tensor as a NumPy or CuPy array, without a copy if they have a type there."""
    torch = sys.modules["torch"]
    if not x.dtype.is_floating_point or x.layout is not torch.strided:
        raise DTypeError(
            f"{asked}: {name} is a tensor of {x.dtype}, {x.layout}; dense floats are taken; "
            f"convert with {name}.float() or {name}.to_dense()"
        )
    x = x.detach()
    if is_foreign(torch, x):
        x = x.float()
    if x.device.type == "cpu":
        return x.numpy()
    if x.device.type == "cuda":
        return cuda_device().cupy().from_dlpack(x)
    raise DeviceError(f'{asked}: {name} is a tensor on {x.device}; "cpu" and "cuda" are known; move it there')


def bits_of(asked: str, x: Any, name: str) -> Any:
    """A tensor of any dtype as an array over its memory; floats that NumPy has no name for as bytes."""
    torch = sys.modules["torch"]
    if x.layout is not torch.strided:
        raise DTypeError(f"{asked}: {name} is a tensor of {x.layout}; pass {name}.to_dense()")
    x = x.detach()
    if x.dtype.is_floating_point and x.element_size() == 1:
        x = x.view(torch.uint8)
    if x.device.type == "cpu":
        return x.numpy()
    return cuda_device().cupy().from_dlpack(x)


def stored(x: Any) -> Any:
    """The numbers of a tensor on the host as NumPy has them; bfloat16 as its 16 bits."""
    x = x.detach().cpu().contiguous()
    if str(x.dtype) == "torch.bfloat16":
        return x.view(sys.modules["torch"].int16).numpy().view("u2")
    return x.numpy()


def is_foreign(torch: Any, x: Any) -> Any:
    """Whether these are floats that NumPy has no name for."""
    return x.dtype.is_floating_point and x.dtype not in (torch.float16, torch.float32, torch.float64)
