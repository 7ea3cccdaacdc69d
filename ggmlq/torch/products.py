"""The operators on tensors with memory: each calls the operation of this package over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import torch

import ggmlq as gq

from ..base.devices import cuda_device, cuda_module, on_device_of
from ..ops.door import as_torch_works
from ..ops.plan import of_tensors
from . import checks
from .blocks import array_over, known, library
from .checks import format_of

# --- decoded weights ----------------------------------------------------------------------------
# Some rows at a time: for gradients, and on a GPU for so many rows of x that a product of torch gains more
# than decoding costs.

MOST_DECODED = 256 << 20  # bytes of decoded weights at a time, on a GPU
FEWEST_DECODED = 725  # rows of x from which on weights are decoded for torch's own product (docs/torch.md)
FOR_GRADIENTS = 128  # the same on a CPU, for gradients, where products of packed columns are not the fastest
STRIP = 16 << 20  # bytes of decoded weights at a time there
HOPPERS_DECODED = 4096  # the same on Hopper, whose kernel of packed weights is faster
PLAIN_FLOATS = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
}  # fmt: skip


@cache
def fewest_decoded(index: int) -> int:
    """Rows of x from which on a GPU decodes weights for torch's own product.

    Decoding takes a time for each weight, and a product of torch saves one for each weight and row.
    """
    return HOPPERS_DECODED if torch.cuda.get_device_capability(index) == (9, 0) else FEWEST_DECODED


def is_decoded(x: torch.Tensor, q: gq.QuantArray, bias: torch.Tensor | None) -> bool:
    """True for a product on a GPU whose weights are decoded for torch's own: bfloat16, and many rows."""
    count = x.numel()
    if x.dtype != torch.bfloat16 or count < FEWEST_DECODED * q.shape[1] or q.scale is not None:
        return False
    if count < fewest_decoded(x.get_device()) * q.shape[1]:
        return False
    return (bias is None or fits(bias, x, q)) and _decodes(q)


def fits(bias: torch.Tensor, x: torch.Tensor, q: gq.QuantArray) -> bool:
    """True for a bias that torch adds to each row of ``x @ q.T`` as it is; torch takes others, too."""
    return bias.dtype == x.dtype and bias.shape == q.shape[:1] and bias.device == x.device


def by_decoding(x: torch.Tensor, q: gq.QuantArray, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ q.T + bias`` of bfloat16 by torch, with some decoded rows of q at a time."""
    n, k = q.shape
    rows = _rows_at_a_time(k, 2)
    if n <= rows:
        return torch.nn.functional.linear(x, _decoded_rows(q, 0, n), bias)
    flat = x.reshape(-1, k)
    y = x.new_empty((len(flat), n))
    for first in range(0, n, rows):
        part, w = y[:, first : first + rows], _decoded_rows(q, first, min(first + rows, n)).t()
        if bias is None:
            torch.mm(flat, w, out=part)
        else:
            torch.addmm(bias[first : first + rows], flat, w, out=part)
    return y.reshape(*x.shape[:-1], n)


def _rows_at_a_time(k: int, size: int, most: int = MOST_DECODED) -> int:
    """Rows of k decoded weights of this size that are there at a time, a multiple of 16."""
    return max(16, most // (size * max(k, 1)) // 16 * 16)


def plain(q: gq.QuantArray) -> torch.Tensor:
    """Weights on a GPU that are plain floats, as a tensor over their memory."""
    values: torch.Tensor = q.raw.tensor.view(PLAIN_FLOATS[q.format.name]).reshape(q.shape)
    return values


def times_rows(dy: torch.Tensor, q: gq.QuantArray) -> torch.Tensor:
    """``dy [..., N] @ q [N, K]`` in the dtype of dy; of many rows by torch, some decoded rows at a time."""
    n, k = q.shape
    if not dy.is_cuda and (dy.dtype != torch.float32 or dy.numel() < FOR_GRADIENTS * n):
        dx: torch.Tensor = gq.linear(dy, q.T, dtype=dy.dtype)
        return dx
    rows = _rows_at_a_time(k, dy.element_size(), MOST_DECODED if dy.is_cuda else STRIP)
    values = _decoder_of_rows(q, dy.dtype, dy.device)
    if n <= rows:
        return dy @ values(0, n)
    kind = torch.promote_types(dy.dtype, torch.float32)
    sums = torch.zeros((*dy.shape[:-1], k), dtype=kind, device=dy.device)
    for first in range(0, n, rows):
        last = min(first + rows, n)
        sums += dy[..., first:last] @ values(first, last)
    return sums.to(dy.dtype)


def _decoder_of_rows(
    q: gq.QuantArray, dtype: torch.dtype, device: torch.device
) -> Callable[[int, int], torch.Tensor]:
    """The function that decodes rows from a number on to another."""
    if _decodes_strips(q, dtype):
        return lambda first, last: _decoded_rows(q, first, last)
    whole = with_bytes(q)
    return lambda first, last: decoded(whole[first:last], dtype, device)


def _decodes_strips(q: gq.QuantArray, dtype: torch.dtype) -> bool:
    """True for strips that a kernel decodes to this dtype as they lie."""
    return not q.has_bytes and dtype == torch.bfloat16 and q.ndim == 2 and _decodes(q)


def _decodes(q: gq.QuantArray) -> bool:
    """True for blocks on a GPU that a kernel decodes to bfloat16 from what is packed of them."""
    return q.format.block_size > 1 and _has_decoder(q.format.name, q.memory.tensor.get_device())


@cache
def _has_decoder(name: str, index: int) -> bool:
    """True where a kernel decodes packed weights of a type to bfloat16 on a GPU."""
    if torch.cuda.get_device_capability(index) < (8, 0):
        return False
    with torch.cuda.device(index), cuda_module("driver.serving").served_by():
        return bool(cuda_module("layouts.to_bf16").is_to_be_had(gq.formats[name]))


def _decoded_rows(q: gq.QuantArray, first: int, last: int) -> torch.Tensor:
    """Rows of packed weights as bfloat16; ``first`` is a multiple of 16."""
    with as_torch_works(torch, q.memory.tensor.device, q.memory):
        bits: torch.Tensor = cuda_module("layouts.to_bf16").decoded_rows(q, first, last).tensor
    return bits.view(torch.bfloat16)


def with_bytes(q: gq.QuantArray) -> gq.QuantArray:
    """The array itself; of strips on a GPU another one, whose bytes are restored for a while."""
    if q.has_bytes:
        return q
    with as_torch_works(torch, q.memory.tensor.device, q.memory):
        return gq.QuantArray(q.format, q.shape, cuda_module("layouts.to_blocks").restored(q))


def decoded(q: gq.QuantArray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values of an array as a tensor, rounded once."""
    if device.type == "cuda":
        if _decodes_strips(q, dtype):
            return _decoded_rows(q, 0, len(q))
        q = with_bytes(q)
        with as_torch_works(torch, device, q.memory), on_device_of(f"dequantize of {q!r}", q.memory):
            if q.format.name in PLAIN_FLOATS:
                return plain(q).to(dtype, copy=True)
            if dtype == torch.bfloat16 and q.format.block_size > 1 and not cuda_device().older_than((8, 0)):
                bits = cuda_module("kernels.quantize.decode").decoded(q, "bfloat16")
                return bits.tensor.view(dtype)
    return tensor_of(lambda kind: gq.dequantize(q, kind), dtype, device, q)


def tensor_of(make: Any, dtype: torch.dtype, device: torch.device, q: gq.QuantArray) -> torch.Tensor:
    """A tensor of values that ``make(dtype)`` gives as an array; bfloat16 by way of float32, which it is."""
    kind = "float32" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")
    if device.type == "cpu":
        values = torch.from_numpy(make(kind))
    else:
        with as_torch_works(torch, device, q.memory):
            values = make(kind).tensor
    return values.to(dtype)


# --- operators ----------------------------------------------------------------------------------

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
            if (warm := of_tensors(x, q, "auto", None, None, bias, dtype)) is not None:
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
    elif x.dtype not in checks.FLOATS:
        return None
    y: torch.Tensor | None = of_tensors(x, q, "auto", None, None, bias, x.dtype)
    if y is None and not on_gpu:
        y = gq.linear(x, q, bias=None if bias is None else bias.detach().clone(), dtype=x.dtype)
    return y


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
        strips: torch.Tensor = cuda_module("layouts.pack").pack_weights(q).fragments.tensor
    return strips.reshape(-1)


def fake_quantize(x: torch.Tensor, type: int, imatrix: torch.Tensor | None = None) -> torch.Tensor:
    """The values that blocks of x would have, in its dtype."""
    checks.fake_quantize(x, type, imatrix)
    floats = x.detach()
    q = gq.quantize(floats.float() if floats.dtype == torch.bfloat16 else floats, type, imatrix)
    return decoded(q, x.dtype, x.device)
