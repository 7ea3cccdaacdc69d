"""The operators on tensors with memory: each calls the operation of this package over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

import ggmlq as gq

from ..base.devices import cuda_module
from ..ops.layer_call import of_layer
from ..ops.torch_context import as_torch_works
from . import checks
from .blocks import array_over, known, library
from .checks import format_of
from .decoding import (
    FEWEST_DECODED,
    PLAIN_FLOATS,
    by_decoding,
    decoded,
    is_decoded,
    plain,
    tensor_of,
    times_rows,
    with_bytes,
)

PLAIN = (torch.Tensor, torch.nn.Parameter)


def _modes() -> Callable[[], Any]:
    """A function that is true where something of torch's stands between a call and its kernel.

    Modes of operators and of functions, torch.func's transforms, tracing, and a profiler, which names
    operators. A torch that does not tell one of them may have it always.
    """
    names = (
        "_len_torch_dispatch_stack", "_len_torch_function_stack", "_functorch.peek_interpreter_stack",
        "_get_tracing_state", "_autograd._profiler_enabled",
    )  # fmt: skip
    try:
        operators, functions, transforms, trace, profiler = [attrgetter(name)(torch._C) for name in names]
    except AttributeError:
        return lambda: True
    return lambda: operators() or functions() or transforms() or trace() or profiler()


in_a_mode = _modes()


def linear(
    x: torch.Tensor, w: torch.Tensor, type: int, n: int, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """``x [..., K] @ w [N, K].T + bias``."""
    dtype = x.dtype if out_dtype is None else out_dtype
    ordinary = x.dim() and x.dtype in checks.FLOATS and dtype in checks.FLOATS
    q = known(w, type, (n, x.shape[-1])) if ordinary else None
    if q is None:
        checks.linear(x, w, type, n, bias, out_dtype)
        q = array_over(w, type, (n, x.shape[-1]))
    if x.requires_grad:
        x = x.detach()
    if bias is not None:  # NumPy's view of a parameter would keep FSDP from resizing its storage
        bias = bias.detach() if bias.is_cuda else bias.detach().clone()
    if x.is_cuda and w.is_cuda:
        if q.format.name in PLAIN_FLOATS:
            if bias is not None and bias.shape != (n,):
                checks.linear(x, w, type, n, bias, out_dtype)
            return _by_torch(x, plain(q), bias, dtype)
        if dtype is x.dtype:
            if is_decoded(x, q, bias):
                return by_decoding(x, q, bias)
            if (warm := of_layer(x, q, bias, x.shape)) is not None:
                return warm  # type: ignore[no-any-return]
    y: torch.Tensor = gq.linear(x, q, bias=bias, dtype=dtype)
    return y


def _by_torch(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The product with weights that are plain floats, which is torch's own, in the widest of the dtypes."""
    if not x.dtype == w.dtype == dtype:
        kind = torch.promote_types(
            torch.promote_types(x.dtype, w.dtype), torch.promote_types(dtype, torch.float32)
        )
        x, w = x.to(kind), w.to(kind)
    y = torch.nn.functional.linear(x, w)
    return (y if bias is None else y + bias).to(dtype)


def product(
    x: torch.Tensor, w: torch.Tensor, type: int, n: int, bias: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """The operator ``linear``, without torch's dispatcher where that has nothing to do: what hosts call."""
    if not torch.compiler.is_compiling() and (y := linear_at_once(x, w, type, n, bias)) is not None:
        return y
    y = torch.ops.ggmlq.linear(x, w, type, n, bias)
    return y


def linear_at_once(
    x: torch.Tensor, w: torch.Tensor, type: int, n: int, bias: torch.Tensor | None
) -> torch.Tensor | None:  # fmt: skip
    """The operator ``linear`` without torch's dispatcher, which costs more than a small product.

    None where the dispatcher has something to do (a gradient, a trace, a mode, another class of tensor), and
    for weights that no call has met yet.
    """
    if x.__class__ not in PLAIN:
        return None
    on_gpu = x.is_cuda
    if not _is_eager(x, w, bias, "cuda" if on_gpu else "cpu"):
        return None
    shape = x.shape
    q = known(w, type, (n, shape[-1])) if shape else None
    if q is None:
        return None
    if on_gpu:
        if x.numel() >= FEWEST_DECODED * shape[-1] and is_decoded(x, q, bias):
            return by_decoding(x, q, bias)
        return of_layer(x, q, bias, shape)
    if x.dtype not in checks.FLOATS:
        return None
    return gq.linear(x, q, bias=None if bias is None else bias.detach().clone(), dtype=x.dtype)


def _is_eager(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, device: str) -> bool:
    """True if an operator on these tensors would do nothing but call its kernel; x is a plain one."""
    if w.__class__ not in PLAIN:
        return False
    if bias is not None and (bias.__class__ not in PLAIN or (bias.requires_grad and torch.is_grad_enabled())):
        return False
    if x.requires_grad and torch.is_grad_enabled():
        return False
    if x.is_neg() or w.is_neg():  # a view of negative numbers, which torch writes down for an operator
        return False
    return not in_a_mode() and not torch.is_autocast_enabled(device)


def linear_grad(dy: torch.Tensor, w: torch.Tensor, type: int, k: int) -> torch.Tensor:
    """``dy [..., N] @ w [N, K]``."""
    checks.linear_grad(dy, w, type, k)
    q = array_over(w, type, (dy.shape[-1], k))
    return times_rows(dy.detach(), q)


def dequantize(w: torch.Tensor, type: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """The values of blocks, [..., K]."""
    checks.dequantize(w, type, shape, dtype)
    if not (type & checks.PREPARED and w.dim() == 1):
        fmt = format_of(type)
        w = w.reshape(*shape[:-1], fmt.row_bytes(shape[-1]))
    return decoded(array_over(w, type, tuple(shape)), dtype, w.device)


def get_rows(w: torch.Tensor, type: int, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of rows ``ids``, [*ids.shape, K]."""
    checks.get_rows(w, type, ids, dtype)
    fmt = format_of(type)
    k = w.shape[-1] // fmt.dtype.itemsize * fmt.block_size
    if w.is_cuda:
        return _picked(w, fmt, ids, dtype, k)
    q = array_over(w, type, (*w.shape[:-1], k))
    return tensor_of(lambda kind: gq.take(q, ids, kind), dtype, w.device, q)


def _picked(w: torch.Tensor, fmt: gq.Format, ids: torch.Tensor, dtype: torch.dtype, k: int) -> torch.Tensor:
    """The values of rows ``ids`` on a GPU: their bytes by torch, decoded by a kernel; NaN for no row."""
    shape = (*ids.shape, *w.shape[1:-1], k)
    if not len(w):
        return torch.full(shape, torch.nan, dtype=dtype, device=w.device)
    numbers = ids.reshape(-1).long()
    there = (numbers >= 0) & (numbers < len(w))
    raw = w.detach().index_select(0, torch.where(there, numbers, 0))
    q = gq.QuantArray(fmt, (*raw.shape[:-1], k), library().from_dlpack(raw))
    values = decoded(q, dtype, w.device)
    values.masked_fill_(~there.reshape(-1, *[1] * (values.dim() - 1)), torch.nan)
    return values.reshape(shape)


def expert_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    ids: torch.Tensor,
    type: int,
    n: int,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``y[t, u] = x[t] @ w[ids[t, u]].T``."""
    checks.expert_linear(x, w, ids, type, n, out_dtype)
    k = x.shape[-1]
    q = array_over(w, type, (checks.expert_count(w, type, n, k), n, k))
    dtype = x.dtype if out_dtype is None else out_dtype
    if x.is_cuda and q.format.name in PLAIN_FLOATS:
        return _experts_by_torch(x.detach(), plain(q), ids, dtype)
    y: torch.Tensor = gq.expert_linear(x.detach(), q, ids, dtype=dtype)
    return y


def _experts_by_torch(
    x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The product with experts that are plain floats, one after the other; NaN for an id that is none."""
    uses, rows = ids.reshape(-1), x.reshape(-1, x.shape[-1])
    per = len(uses) // max(len(rows), 1)
    y = torch.full((len(uses), w.shape[1]), torch.nan, dtype=dtype, device=x.device)
    for e in torch.unique(uses).tolist():
        if 0 <= e < len(w):
            at = torch.nonzero(uses == e).reshape(-1)
            y[at] = _by_torch(rows[at // per], w[e], None, dtype)
    return y.reshape(*ids.shape, w.shape[1])


def expert_linear_grad(
    dy: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, type: int, k: int, each: bool
) -> torch.Tensor:
    """``dx[t, u] = dy[t, u] @ w[ids[t, u]]``; summed over the uses of a token unless ``each``."""
    checks.expert_linear_grad(dy, w, ids, type, k, each)
    n = dy.shape[-1]
    q = array_over(w, type, (checks.expert_count(w, type, n, k), n, k))
    rows, uses, q = dy.detach().reshape(-1, n), ids.reshape(-1), with_bytes(q)
    wide = dy.dtype if dy.dtype == torch.float64 else torch.float32
    dx = torch.zeros((len(rows), k), dtype=wide, device=dy.device)
    for e in torch.unique(uses).tolist():
        if 0 <= e < len(q):
            at = torch.nonzero(uses == e).reshape(-1)
            dx[at] = times_rows(rows[at].to(wide), q[e])
    dx = dx.reshape(*ids.shape, k)
    return (dx if each else dx.sum(1)).to(dy.dtype)


def prepare(blocks: torch.Tensor, type: int) -> torch.Tensor:
    """Blocks in the order that kernels read, good for ``type | PREPARED``: strips, or the file's, copied."""
    checks.prepare(blocks, type)
    fmt = format_of(type)
    shape = (*blocks.shape[:-1], checks.columns("ggmlq.prepare", blocks, type))
    if not checks.packs(fmt, shape, blocks.device):
        return blocks.clone(memory_format=torch.contiguous_format)
    q = gq.QuantArray(fmt, shape, library().from_dlpack(blocks.detach().contiguous()))
    with as_torch_works(torch, blocks.device, q.memory):
        strips: torch.Tensor = cuda_module("packed.pack").pack_weights(q).fragments.tensor
    return strips.reshape(-1)
