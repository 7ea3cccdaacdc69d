"""Arguments of the operators, checked: types, devices and shapes. It works on stand-ins without memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd import forward_ad

import ggmlq as gq

from ..base.devices import cuda_module

PREPARED = 1 << 16  # the bit of a type whose tensor is in the order that ``prepare`` gives
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def format_of(type: int) -> gq.Format:
    """The format of a type, ggml's number with or without the bit of prepared tensors."""
    return gq.formats[type & ~PREPARED]


def is_strips(w: torch.Tensor, type: int) -> bool:
    """True for what ``prepare`` makes of an array on a GPU: strips, which have one axis."""
    return bool(type & PREPARED) and w.dim() == 1


def check_activations(request: str, x: torch.Tensor, name: str = "x") -> None:
    """Refuse activations that are no floats with a last axis."""
    if x.dtype not in FLOATS:
        raise gq.errors.DTypeError(
            f"{request}: {name} is {x.dtype}; it is float32, float16, bfloat16 or float64; convert with "
            f"{name}.float()"
        )
    if not x.dim():
        raise gq.errors.ShapeError(f"{request}: {name} is a single number; it is [..., K]; pass {name}[None]")


def check_tangent(request: str, x: torch.Tensor) -> None:
    """Refuse a tangent of forward-mode differentiation, which torch would lose in an operator of ours."""
    if forward_ad.unpack_dual(x).tangent is not None:
        raise gq.errors.UnsupportedError(
            f"{request}: x has a tangent, and packed layers have gradients in backward alone; use "
            "torch.autograd.grad, or decode the weights, layer.dequantize()"
        )


def check_dtype(request: str, dtype: torch.dtype) -> None:
    """Refuse a dtype of results that is not one of floats."""
    if dtype not in FLOATS:
        raise gq.errors.DTypeError(f"{request}: results are floats, not {dtype}; pass torch.float32")


def check_bytes(request: str, w: torch.Tensor, x: torch.Tensor | None = None) -> None:
    """Refuse weights that are no bytes, or not where the activations are."""
    if w.dtype != torch.uint8:
        raise gq.errors.DTypeError(
            f"{request}: w is {w.dtype}; it holds the bytes of blocks, torch.uint8 [N, bytes per row]; pass "
            "torch.from_numpy(q.raw)"
        )
    if x is not None and x.device != w.device:
        raise gq.errors.DeviceError(
            f"{request}: x is on {x.device}, w on {w.device}; both are on one device; move one with "
            f"x.to(w.device)"
        )


def matrix(request: str, w: torch.Tensor, type: int, n: Any, k: Any, lead: tuple[Any, ...] = ()) -> gq.Format:
    """The format of weights [N, K], or of [E, N, K] with ``lead`` (E,), whose bytes were checked."""
    fmt = format_of(type)
    if k % fmt.block_size:
        raise gq.errors.ShapeError(
            f"{request}: rows of {k} numbers; blocks of {fmt.name} hold {fmt.block_size}; K is whole blocks"
        )
    check_shape(request, w, type, (*lead, n, k))
    return fmt


def check_shape(request: str, w: torch.Tensor, type: int, shape: tuple[Any, ...]) -> None:
    """Refuse bytes that are not those of an array [..., N, K]: the file's, or strips, which have one axis."""
    fmt, (*lead, k) = format_of(type), shape
    if is_strips(w, type):
        whole: tuple[Any, ...] = (strips_size(fmt, shape),)
    else:
        whole = (*lead, k // fmt.block_size * fmt.dtype.itemsize)
    if tuple(w.shape) != whole:
        n = lead[-1] if lead else 1
        if w.dim() == len(whole) > 1 and w.shape[:-1] == whole[:-1] and not w.shape[-1] % fmt.dtype.itemsize:
            there = w.shape[-1] // fmt.dtype.itemsize * fmt.block_size
            raise gq.errors.ShapeError(
                f"{request}: rows of {k} numbers; those of w have {there} in {fmt.name}; pass rows of "
                f"{there}, or the type that w was made with"
            )
        raise gq.errors.ShapeError(
            f"{request}: w has shape {tuple(w.shape)}; with n {n} and rows of {k} numbers "
            f"in {fmt.name} it is {whole}; pass the type and n that w was made with"
        )


def strips_size(fmt: gq.Format, shape: Any) -> int | None:
    """Bytes of what ``prepare`` makes of an array on a GPU; None where it keeps the file's order."""
    lengths = cuda_module("layouts.to_blocks").packed_shape(fmt, [int(length) for length in shape])
    return None if lengths is None else math.prod(lengths)


def packs(fmt: gq.Format, shape: Any, device: torch.device) -> bool:
    """True where ``prepare`` makes strips: on GPUs whose kernels read them, of types that lose no bit."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return strips_size(fmt, shape) is not None


def columns(request: str, w: torch.Tensor, type: int) -> Any:
    """Numbers of a row of weights [N, bytes per row]."""
    fmt = format_of(type)
    if w.dim() < 2 or w.shape[-1] % fmt.dtype.itemsize:
        raise gq.errors.ShapeError(
            f"{request}: w has shape {tuple(w.shape)}; it is [N, bytes per row], and blocks of {fmt.name} "
            f"have {fmt.dtype.itemsize} bytes; pass the type that w was made with"
        )
    return w.shape[-1] // fmt.dtype.itemsize * fmt.block_size


# --- operators: the shape and the dtype of each one's result ----------------------------------------

Shape = tuple[tuple[Any, ...], torch.dtype]


def linear(x: Any, w: Any, type: int, n: Any, bias: Any = None, out_dtype: Any = None) -> Shape:
    """Activations x [..., K] times w [N, K] transposed: [..., N]."""
    request = "ggmlq.linear(x, w)"
    check_activations(request, x)
    check_bytes(request, w, x)
    matrix(request, w, type, n, x.shape[-1])
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != n or bias.device != x.device):
        raise gq.errors.ShapeError(
            f"{request}: bias has shape {tuple(bias.shape)} on {bias.device}; it is [N] beside x, ({n},) on "
            f"{x.device}; reshape or move it"
        )
    dtype = x.dtype if out_dtype is None else out_dtype
    check_dtype(request, dtype)
    return (*x.shape[:-1], n), dtype


def linear_grad(dy: Any, w: Any, type: int, k: Any) -> Shape:
    """Gradients dy [..., N] times w [N, K]: [..., K]."""
    request = "ggmlq.linear_grad(dy, w)"
    check_activations(request, dy, "dy")
    check_bytes(request, w, dy)
    matrix(request, w, type, dy.shape[-1], k)
    return (*dy.shape[:-1], k), dy.dtype


def dequantize(w: Any, type: int, shape: Any, dtype: Any) -> Shape:
    """Values of blocks in a shape."""
    request = "ggmlq.dequantize(w)"
    check_bytes(request, w)
    check_dtype(request, dtype)
    fmt = format_of(type)
    lengths = list(shape)
    if any(length < 0 for length in lengths):
        raise gq.errors.ShapeError(
            f"{request}: shape {tuple(lengths)}; lengths of axes are 0 or more, none is left to be found; "
            "pass the shape that w was made with"
        )
    if is_strips(w, type) and lengths and not lengths[-1] % fmt.block_size:
        check_shape(request, w, type, tuple(lengths))
        return tuple(lengths), dtype
    nbytes = math.prod(lengths) // fmt.block_size * fmt.dtype.itemsize
    if not lengths or lengths[-1] % fmt.block_size or nbytes != w.numel():
        raise gq.errors.ShapeError(
            f"{request}: w has {w.numel()} bytes, shape {tuple(lengths)} in {fmt.name} needs "
            f"{nbytes}, in rows of whole blocks of {fmt.block_size}; "
            "pass the shape and type that w was made with"
        )
    return tuple(lengths), dtype


def get_rows(w: Any, type: int, ids: Any, dtype: Any) -> Shape:
    """Values of rows, [*ids.shape, K]."""
    request = "ggmlq.get_rows(w, ids)"
    check_bytes(request, w, ids)
    check_dtype(request, dtype)
    check_ids(request, ids)
    if is_strips(w, type):
        raise gq.errors.UnsupportedError(
            f"{request}: w is what prepare made, whose rows do not lie together; pass the file's bytes, "
            f"[N, bytes per row], and type {type & ~PREPARED}"
        )
    k = columns(request, w, type)
    return (*ids.shape, *w.shape[1:-1], k), dtype


def check_ids(request: str, ids: Any) -> None:
    """Refuse ids that are no integers."""
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise gq.errors.DTypeError(f"{request}: ids are {ids.dtype}; they are integers; pass ids.long()")


def expert_count(w: Any, type: int, n: Any, k: Any) -> Any:
    """The number of experts [N, K] in a tensor."""
    if not is_strips(w, type):
        return w.shape[0]
    return w.shape[0] // (strips_size(format_of(type), (1, n, k)) or 1)


def expert_linear(x: Any, w: Any, ids: Any, type: int, n: Any, out_dtype: Any = None) -> Shape:
    """Rows x [T, K] or [T, U, K] times the experts of ids [T, U]: [T, U, N]."""
    request = "ggmlq.expert_linear(x, w, ids)"
    check_activations(request, x)
    check_bytes(request, w, x)
    check_uses(request, x, w, type, ids, x.dim() == 3)
    matrix(request, w, type, n, x.shape[-1], (expert_count(w, type, n, x.shape[-1]),))
    dtype = x.dtype if out_dtype is None else out_dtype
    check_dtype(request, dtype)
    return (*ids.shape, n), dtype


def check_uses(request: str, x: Any, w: Any, type: int, ids: Any, each: bool) -> None:
    """Refuse experts, ids and activations whose shapes do not fit."""
    check_ids(request, ids)
    if not is_strips(w, type) and w.dim() != 3:
        raise gq.errors.ShapeError(
            f"{request}: w has shape {tuple(w.shape)}; experts are [E, N, bytes per row]; reshape w"
        )
    if ids.dim() != 2 or tuple(x.shape[:-1]) != (tuple(ids.shape) if each else (ids.shape[0],)):
        raise gq.errors.ShapeError(
            f"{request}: x has shape {tuple(x.shape)}, ids {tuple(ids.shape)}; ids are [T, U] and x [T, K], "
            "or [T, U, K] for a row a use; reshape them"
        )


def expert_linear_grad(dy: Any, w: Any, ids: Any, type: int, k: Any, each: bool) -> Shape:
    """The gradient of x: [T, U, K] if ``each``, else [T, K]."""
    request = "ggmlq.expert_linear_grad(dy, w, ids)"
    check_activations(request, dy, "dy")
    check_bytes(request, w, dy)
    check_uses(request, dy, w, type, ids, True)
    matrix(request, w, type, dy.shape[-1], k, (expert_count(w, type, dy.shape[-1], k),))
    return (*dy.shape[: 2 if each else 1], k), dy.dtype


def prepare(blocks: Any, type: int) -> Shape:
    """Strips on a GPU, of one axis; elsewhere a copy of the bytes."""
    request = "ggmlq.prepare(blocks, type)"
    check_bytes(request, blocks)
    if type & PREPARED:
        raise gq.errors.UnsupportedError(
            f"{request}: type {type} says that blocks are prepared; pass them with {type & ~PREPARED}"
        )
    shape = (*blocks.shape[:-1], columns(request, blocks, type))
    if packs(format_of(type), shape, blocks.device):
        return (strips_size(format_of(type), shape),), torch.uint8
    return tuple(blocks.shape), torch.uint8


def fake_quantize(x: Any, type: int, imatrix: Any = None) -> Shape:
    """Values as those of x."""
    request, fmt = "ggmlq.fake_quantize(x)", format_of(type)
    check_activations(request, x)
    if type & PREPARED or x.shape[-1] % fmt.block_size:
        raise gq.errors.ShapeError(
            f"{request}: x has rows of {x.shape[-1]}, type {type} is {fmt.name}, in blocks of "
            f"{fmt.block_size}; pass rows of whole blocks, and a type's number as gq.formats[name].id"
        )
    return tuple(x.shape), x.dtype
