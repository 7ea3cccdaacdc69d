"""Decoded weights in memory of torch, and products with them, which are torch's own.

A GPU decodes some rows at a time: for gradients, and for so many rows of x that a product of torch gains more
than decoding costs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import ggmlq as gq

from ..base.devices import cuda_device, cuda_module, on_device_of
from ..ops.torch_context import as_torch_works

MOST_DECODED = 256 << 20  # bytes of decoded weights at a time, on a GPU
FEWEST_DECODED = 725  # rows of x from which on weights are decoded for torch's own product, by choice.json
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


def _rows_at_a_time(k: int, size: int) -> int:
    """Rows of k decoded weights of this size that are there at a time, a multiple of 16."""
    return max(16, MOST_DECODED // (size * max(k, 1)) // 16 * 16)


def plain(q: gq.QuantArray) -> torch.Tensor:
    """Weights on a GPU that are plain floats, as a tensor over their memory."""
    values: torch.Tensor = q.raw.tensor.view(PLAIN_FLOATS[q.format.name]).reshape(q.shape)
    return values


def times_rows(dy: torch.Tensor, q: gq.QuantArray) -> torch.Tensor:
    """``dy [..., N] @ q [N, K]`` in the dtype of dy; on a GPU by torch, with some decoded rows at a time."""
    if not dy.is_cuda:
        dx: torch.Tensor = gq.linear(dy, q.T, dtype=dy.dtype)
        return dx
    n, k = q.shape
    rows = _rows_at_a_time(k, dy.element_size())
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
    """The function that decodes rows from a number on to another, on a GPU."""
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
    with torch.cuda.device(index), cuda_module("machine.serving").served_by():
        return bool(cuda_module("packed.to_bf16").is_to_be_had(gq.formats[name]))


def _decoded_rows(q: gq.QuantArray, first: int, last: int) -> torch.Tensor:
    """Rows of packed weights as bfloat16; ``first`` is a multiple of 16."""
    with as_torch_works(torch, q.memory.tensor.device, q.memory):
        bits: torch.Tensor = cuda_module("packed.to_bf16").decoded_rows(q, first, last).tensor
    return bits.view(torch.bfloat16)


def with_bytes(q: gq.QuantArray) -> gq.QuantArray:
    """The array itself; of strips on a GPU another one, whose bytes are restored for a while."""
    if q.has_bytes:
        return q
    with as_torch_works(torch, q.memory.tensor.device, q.memory):
        return gq.QuantArray(q.format, q.shape, cuda_module("packed.to_blocks").restored(q))


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
                bits = cuda_module("quantize.decode").decoded(q, "bfloat16")
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
