"""The operators ``torch.ops.ggmlq``: their schemas, stand-ins for tracing, gradients and autocast.

    linear(x, w, type, n, bias=None, out_dtype=None)         x [..., K] times w [N, K] transposed
    linear_grad(dy, w, type, k)                              dy [..., N] times w: the gradient of x
    dequantize(w, type, shape, dtype)                        values of blocks
    get_rows(w, type, ids, dtype)                            values of rows
    expert_linear(x, w, ids, type, n, out_dtype=None)        x [T, K] or [T, U, K] times w[ids], ids [T, U]
    expert_linear_grad(dy, w, ids, type, k, each)            its gradient
    prepare(blocks, type)                                    blocks in the order that kernels read
    fake_quantize(x, type, imatrix=None)                     the values that blocks of x would have

``w`` is uint8 [N, bytes per row], the bytes of a file, and ``type`` ggml's number; or what ``prepare`` gives,
and ``type | PREPARED``. Results have the dtype of x unless ``out_dtype`` names another. Weights are frozen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

import ggmlq as gq

from . import checks, products

NAME = "ggmlq"
SCHEMAS = (
    "linear(Tensor x, Tensor w, int type, SymInt n, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor",
    "linear_grad(Tensor dy, Tensor w, int type, SymInt k) -> Tensor",
    "dequantize(Tensor w, int type, SymInt[] shape, ScalarType dtype) -> Tensor",
    "get_rows(Tensor w, int type, Tensor ids, ScalarType dtype) -> Tensor",
    "expert_linear(Tensor x, Tensor w, Tensor ids, int type, SymInt n, ScalarType? out_dtype=None) -> Tensor",
    "expert_linear_grad(Tensor dy, Tensor w, Tensor ids, int type, SymInt k, bool each) -> Tensor",
    "prepare(Tensor blocks, int type) -> Tensor",
    "fake_quantize(Tensor x, int type, Tensor? imatrix=None) -> Tensor",
)
Function = Callable[..., Any]

LIBRARY = torch.library.Library(NAME, "DEF")  # it lives as long as the operators


# --- gradients ------------------------------------------------------------------------------------


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, type, n, bias, _ = inputs
    ctx.save_for_backward(w)
    ctx.facts = type, n, x.shape[-1], x.dtype, None if bias is None else bias.dtype


def _linear_backward(ctx: Any, dy: Any) -> Any:
    (w,) = ctx.saved_tensors
    type, n, k, dtype, bias_dtype = ctx.facts
    dx = dbias = None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.ggmlq.linear_grad(dy, w, type, k).to(dtype)
    if bias_dtype is not None and ctx.needs_input_grad[4]:
        dbias = dy.reshape(-1, n).sum(0).to(bias_dtype)
    return dx, None, None, None, dbias, None


def _linear_grad_setup(ctx: Any, inputs: Any, output: Any) -> None:
    dy, w, type, _ = inputs
    ctx.save_for_backward(w)
    ctx.facts = type, dy.shape[-1]


def _linear_grad_backward(ctx: Any, g: Any) -> Any:
    (w,) = ctx.saved_tensors
    type, n = ctx.facts
    return torch.ops.ggmlq.linear(g, w, type, n), None, None, None


def _expert_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, ids, type, _, _ = inputs
    ctx.save_for_backward(w, ids)
    ctx.facts = type, x.shape[-1], x.dim() == 3, x.dtype


def _expert_backward(ctx: Any, dy: Any) -> Any:
    w, ids = ctx.saved_tensors
    type, k, each, dtype = ctx.facts
    dx = torch.ops.ggmlq.expert_linear_grad(dy, w, ids, type, k, each).to(dtype)
    return dx, None, None, None, None, None


def _straight_setup(ctx: Any, inputs: Any, output: Any) -> None:
    """Nothing is kept: the gradient goes straight through."""


def _straight_through(ctx: Any, dy: Any) -> Any:
    return dy, None, None


# --- autocast -------------------------------------------------------------------------------------


def _cast(name: str, device: str) -> Function:
    """The operator under autocast: x in the dtype of the mode, as torch's own products have it."""
    operator = getattr(torch.ops.ggmlq, name)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU).add(torch._C.DispatchKey.AutocastCUDA)

    def call(x: torch.Tensor, *rest: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            if x.dtype in (torch.float32, torch.float16, torch.bfloat16):
                x = x.to(torch.get_autocast_dtype(device))
            return operator(x, *rest, **options)

    return call


# --- torch.vmap -----------------------------------------------------------------------------------


def _linear_of_batch(
    info: Any, axes: Any, x: Any, w: Any, type: int, n: Any, bias: Any = None, out_dtype: Any = None
) -> Any:  # fmt: skip
    """The product under vmap over x alone: the axis is one more of its leading axes."""
    if axes[0] is None or any(axis is not None for axis in axes[1:]):
        raise gq.errors.UnsupportedError(
            "torch.vmap over ggmlq.linear(x, w, …): the axis runs through w or bias; it may run through x "
            "alone; use ggmlq.expert_linear for several matrices, and add the bias outside"
        )
    return torch.ops.ggmlq.linear(x.movedim(axes[0], 0), w, type, n, bias, out_dtype), 0


# --- registration ---------------------------------------------------------------------------------


def _stand_in(name: str) -> Function:
    """The operator without memory: checks, and an empty tensor of the result's shape and dtype."""
    check = getattr(checks, name)

    def call(*arguments: Any, **options: Any) -> Any:
        shape, dtype = check(*arguments, **options)
        return arguments[0].new_empty(shape, dtype=dtype)

    return call


def _register() -> None:
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        LIBRARY.define(schema)
        torch.library.register_fake(f"{NAME}::{name}", _stand_in(name), lib=LIBRARY)
        for device in ("CPU", "CUDA"):
            LIBRARY.impl(name, getattr(products, name), device)
    gradients = (
        ("linear", _linear_backward, _linear_setup),
        ("linear_grad", _linear_grad_backward, _linear_grad_setup),
        ("expert_linear", _expert_backward, _expert_setup),
        ("fake_quantize", _straight_through, _straight_setup),
    )
    for name, backward, setup in gradients:
        torch.library.register_autograd(f"{NAME}::{name}", backward, setup_context=setup, lib=LIBRARY)
    torch.library.register_vmap(f"{NAME}::linear", _linear_of_batch, lib=LIBRARY)
    for name, device in itertools.product(("linear", "expert_linear"), ("cpu", "cuda")):
        LIBRARY.impl(name, _cast(name, device), f"Autocast{device.upper()}")


_register()
