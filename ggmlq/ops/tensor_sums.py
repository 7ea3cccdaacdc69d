"""Products of torch tensors on a GPU with a residual that the product's own kernel adds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..base.devices import is_host
from .tensors import (
    check_residual,
    is_apart,
    kind_named,
    members,
    memory_as_kernels_read,
    refuse_others,
)
from .torch_context import as_torch_works


def linear_added(
    request: str, product: Callable[..., bool], memory: Any, x: Any, residual: Any, shape: tuple[int, ...],
    out: Any, dtype: Any, bias: Any,
) -> Any | None:  # fmt: skip
    """A product on a GPU whose kernel adds the residual and rounds; None where no kernel does, or a tensor
    does not lie as kernels read it.

    ``product(x, out=…, bias=…, residual=…)`` takes arrays; ``memory``: that of the weights.
    """
    torch = sys.modules["torch"]
    members_of, kind = members(torch), kind_named(request, torch, dtype)
    check_residual(request, torch, x, residual, shape, out)
    refuse_others(request, torch, bias=bias)
    kind = kind if out is None else out.dtype
    parts = [part for part in (x, residual, bias, out) if part is not None]
    if not x.is_cuda or kind not in members_of.kinds or residual.shape != shape or 0 in shape:
        return None
    if is_host(memory) or any(part.device != x.device for part in parts):  # which is said elsewhere
        return None
    if not all(p.dtype in members_of.kinds and p.is_contiguous() and not p.is_neg() for p in parts):
        return None
    apart = out is None or (is_apart(out, x, memory, bias) and (out is residual or is_apart(out, residual)))
    if not apart or (out is not None and out.data_ptr() % 4):
        return None
    with as_torch_works(torch, x.device, memory):
        y = torch.empty(shape, dtype=kind, device=x.device) if out is None else out
        arrays = {"out": y, "residual": residual} | ({} if bias is None else {"bias": bias})
        views = {name: memory_as_kernels_read(request, torch, part, name) for name, part in arrays.items()}
        return y if product(memory_as_kernels_read(request, torch, x, "x"), **views) else None
