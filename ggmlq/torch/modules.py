"""Modules whose weights stay in blocks: Linear, Embedding and Experts.

``weight`` is a frozen parameter of bytes, so ``.to()``, ``state_dict``, ``copy.deepcopy``, pickling and hooks
that move parameters treat it as any other. ``scale`` is a buffer where the file has a companion scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

import ggmlq as gq

from .blocks import file_bytes, forget
from .checks import PREPARED, check_tangent, format_of, packs, strips_size
from .products import linear_at_once


class Packed(torch.nn.Module):
    """The common part of modules with blocks: their bytes, type and companion scale."""

    weight: Any
    scale: Any
    strips = True  # on a GPU the weights are in the order that kernels read; False: in the file's

    def hold(self, q: gq.QuantArray, ndim: int) -> None:
        """Take the blocks of an array over, as a copy on its device."""
        if not isinstance(q, gq.QuantArray) or q.ndim != ndim:
            axes = "[N, K]" if ndim == 2 else "[E, N, K]"
            raise gq.errors.DTypeError(
                f"{type(self).__name__}(q): q is {q!r:.120}; it is a QuantArray {axes}; make one with "
                'gq.quantize(w, "q4_K"), or take one of gq.open(path)'
            )
        self.ggml_type, self.blocks_shape = q.format.id, q.shape
        self.weight = torch.nn.Parameter(_copied(q.raw), requires_grad=False)
        scale = (
            None
            if q.scale is None
            else torch.from_numpy(np.array(q.scale, np.float32)).to(self.weight.device)
        )
        self.register_buffer("scale", scale)
        self._order()

    @property
    def blocks_type(self) -> int:
        """The type of ``weight`` for operators: ggml's number, with the bit of prepared ones for strips."""
        return self.ggml_type | (PREPARED if self.weight.dim() == 1 else 0)

    def _order(self) -> None:
        """Bring the blocks on a GPU into the order that its kernels read, where that keeps all bits."""
        w = self.weight
        if not self.strips or w.dim() == 1 or w.device.type != "cuda" or not w.is_contiguous():
            return
        if packs(self.format, self.blocks_shape, w.device) and self._reads_strips(w.device):
            w.data = torch.ops.ggmlq.prepare(w.data, self.ggml_type)

    def _reads_strips(self, device: torch.device) -> bool:
        """True where all kernels that a GPU takes for this module read strips."""
        return len(self.blocks_shape) == 2 or torch.cuda.get_device_capability(device) == (9, 0)

    @property
    def format(self) -> Any:
        """The format of the blocks."""
        return format_of(self.ggml_type)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights as floats, the companion scale in them."""
        wide = torch.float32 if self.scale is not None else dtype
        values = torch.ops.ggmlq.dequantize(self.weight, self.blocks_type, list(self.blocks_shape), wide)
        if self.scale is not None:
            values *= self.scale.reshape(*self.scale.shape, *[1] * (values.dim() - self.scale.dim()))
        result: torch.Tensor = values.to(dtype)
        return result

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Freeze the parameters; the other way round is an error in words, for blocks have no gradient."""
        if requires_grad:
            raise gq.errors.UnsupportedError(
                f"{type(self).__name__}.requires_grad_(): blocks of {self.format.name} have no gradient; "
                "ask it of the bias alone, or train a branch beside the layer, ggmlq.torch.lora_"
            )
        return super().requires_grad_(False)

    def _save_to_state_dict(self, state: Any, prefix: str, keep_vars: bool) -> None:
        """Give the file's bytes, also where the weights are strips."""
        super()._save_to_state_dict(state, prefix, keep_vars)  # type: ignore[no-untyped-call]
        if self.weight.dim() == 1 and not self.weight.is_meta:
            state[f"{prefix}weight"] = file_bytes(self.weight.detach(), self.blocks_type, self.blocks_shape)

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        """Take the bytes in the order of a file or as ``prepare`` gives them, and nothing but bytes."""
        w, errors = state.get(f"{prefix}weight"), rest[-1]
        if isinstance(w, torch.Tensor) and w.dtype != torch.uint8:
            errors.append(
                f"{prefix}weight is {w.dtype} {tuple(w.shape)}; here are bytes of {self.format.name}, "
                f"torch.uint8 {self._file_shape()}; quantize it first, ggmlq.torch.quantize_"
            )
            return
        if isinstance(w, torch.Tensor) and w.shape != self.weight.shape:
            state[f"{prefix}weight"] = self._like_weight(w)
        super()._load_from_state_dict(state, prefix, *rest)  # type: ignore[no-untyped-call]
        self.loaded = True

    def _before_a_call(self, x: torch.Tensor | None) -> None:
        """Forget blocks in whose place others were loaded, for FSDP hides writes; refuse a tangent of x."""
        if self.__dict__.pop("loaded", False):
            forget(self.weight)
        if forward_ad._current_level >= 0 and x is not None:
            check_tangent(f"{type(self).__name__}(x)", x)

    def _like_weight(self, w: torch.Tensor) -> torch.Tensor:
        """Bytes in the order that the weights have, if they are of this array; else as they are."""
        if w.dim() == 1 and w.numel() == math.prod(self._file_shape()):
            w = w.reshape(self._file_shape())
        if self.weight.is_meta and tuple(w.shape) == self._file_shape():
            self.weight = torch.nn.Parameter(torch.empty_like(w, device="meta"), requires_grad=False)
        if w.shape == self.weight.shape or w.is_meta or self.weight.is_meta:
            return w
        if w.dim() == 1 and w.numel() == strips_size(self.format, self.blocks_shape):
            return file_bytes(w, self.ggml_type, self.blocks_shape)
        if self.weight.dim() == 1 and tuple(w.shape) == self._file_shape():
            return torch.ops.ggmlq.prepare(w.to(self.weight.device), self.ggml_type)  # type: ignore[no-any-return]
        return w

    def _file_shape(self) -> tuple[int, ...]:
        """The shape of the file's bytes, [..., N, bytes per row]."""
        return (*self.blocks_shape[:-1], self.format.row_bytes(self.blocks_shape[-1]))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move as any module, but the companion scale stays float32; strips are left behind on a GPU."""
        scale, w = self.scale, self.weight
        moved = fn(w.new_empty(0))
        if moved.dtype != torch.uint8:
            raise gq.errors.DTypeError(
                f"{type(self).__name__}.type({moved.dtype}): blocks of {self.format.name} are bytes; use "
                ".to(dtype), which changes floats alone, or layer.dequantize(dtype)"
            )
        if w.dim() == 1 and moved.device.type != "cuda":
            w.data = file_bytes(w.data, self.blocks_type, self.blocks_shape)
        super()._apply(fn, recurse)
        self._order()
        if scale is not None and self.scale.dtype != torch.float32:
            self.scale = scale.to(self.scale.device)
        return self

    def _type(self) -> str:
        scale = "" if self.scale is None else ", scale"
        return f"{self.format.name}, {self.format.bits_per_weight:g} bits a weight{scale}"


def _copied(raw: Any) -> torch.Tensor:
    """The bytes of an array in memory of torch, which it may resize, as FSDP does."""
    if isinstance(raw, np.ndarray):
        return torch.from_numpy(np.array(raw)).clone()  # NumPy keeps the memory of the first from torch
    return torch.from_dlpack(raw).clone()


def _result_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype that a product of torch's own would give for x, with autocast."""
    if x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


class Linear(Packed, torch.nn.Linear):
    """``torch.nn.Linear`` on blocks: ``x [..., K] @ q.T + bias``, in the dtype of x.

    Parameters
    ----------
    q : QuantArray
        Weights [N, K]; their bytes are copied.
    bias : tensor, optional
        [N], a parameter that may be trained.

    >>> import numpy as np, torch, ggmlq as gq, ggmlq.torch
    >>> q = gq.quantize(np.eye(4, 32, dtype=np.float32), "q8_0")
    >>> layer = ggmlq.torch.Linear(q)
    >>> layer, layer(torch.ones(2, 32)).shape
    (Linear(in_features=32, out_features=4, bias=False, q8_0, 8.5 bits a weight), torch.Size([2, 4]))
    """

    def __init__(self, q: gq.QuantArray, bias: Any = None) -> None:
        torch.nn.Module.__init__(self)
        self.hold(q, 2)
        self.out_features, self.in_features = q.shape
        if bias is not None and not isinstance(bias, torch.Tensor):
            raise gq.errors.DTypeError(
                f"Linear(q, bias): bias is a {type(bias).__name__}; it is a tensor [{self.out_features}]; "
                "pass torch.as_tensor(bias)"
            )
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise gq.errors.ShapeError(
                f"Linear(q, bias): bias has shape {tuple(bias.shape)}; q has {self.out_features} rows, so it "
                f"is ({self.out_features},); pass one number a row of q"
            )
        self.bias = bias if bias is None or isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias)

    def reset_parameters(self) -> None:
        """Do nothing: blocks are not drawn at random."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the blocks."""
        if not torch.compiler.is_compiling():
            self._before_a_call(x)
            if (y := self._at_once(x)) is not None:
                return y
        if self.scale is None:
            y = torch.ops.ggmlq.linear(x, self.weight, self.blocks_type, self.out_features, self.bias)
            return y  # type: ignore[no-any-return]
        dtype = _result_dtype(x)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        y = (
            torch.ops.ggmlq.linear(x, self.weight, self.blocks_type, self.out_features, None, wide)
            * self.scale
        )
        return (y if self.bias is None else y + self.bias).to(dtype)

    def _at_once(self, x: torch.Tensor) -> torch.Tensor | None:
        """The product without torch's dispatcher, or None; parameters are looked up without getattr's way."""
        parameters = self._parameters
        w, bias = parameters.get("weight"), parameters.get("bias")
        if w is None or self._buffers.get("scale") is not None:
            return None
        if bias is None and "bias" not in parameters and self.__dict__.get("bias", self) is not None:
            return None  # it is made of other parameters
        type = self.ggml_type | PREPARED if w.dim() == 1 else self.ggml_type
        return linear_at_once(x, w, type, self.out_features, bias)

    def extra_repr(self) -> str:
        """Lengths, type and bits."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self._type()}"
        )


class Embedding(Packed):
    """``torch.nn.Embedding`` on blocks: rows of q by their numbers, decoded.

    Parameters
    ----------
    q : QuantArray
        Rows [N, K]; their bytes are copied.
    dtype : torch.dtype, optional
        Of the results, torch's default if not given; ``module.to(dtype)`` changes it.
    """

    def __init__(self, q: gq.QuantArray, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.strips = False  # whose rows do not lie together
        self.hold(q, 2)
        self.num_embeddings, self.embedding_dim = q.shape
        like = torch.empty(0, dtype=dtype or torch.get_default_dtype(), device=self.weight.device)
        self.register_buffer("_like", like, persistent=False)  # it follows the module from dtype to dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows ``ids``, ``[*ids.shape, K]``."""
        if not torch.compiler.is_compiling():
            self._before_a_call(None)
        dtype: torch.dtype = self._like.dtype  # type: ignore[assignment, union-attr]
        w = file_bytes(self.weight, self.blocks_type, self.blocks_shape)  # of a layer that shares it: strips
        if self.scale is None:
            rows: torch.Tensor = torch.ops.ggmlq.get_rows(w, self.ggml_type, ids, dtype)
            return rows
        rows = torch.ops.ggmlq.get_rows(w, self.ggml_type, ids, torch.float32)
        scale = self.scale[ids][..., None] if self.scale.dim() else self.scale
        return (rows * scale).to(dtype)

    def extra_repr(self) -> str:
        """Lengths, type and bits."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {self._type()}"


class Experts(Packed):
    """The matrices of a mixture of experts: ``y[t, u] = x[t] @ q[ids[t, u]].T``, in the dtype of x.

    Parameters
    ----------
    q : QuantArray
        Weights [E, N, K]; their bytes are copied.
    bias : tensor, optional
        [E, N], a parameter that may be trained.
    """

    def __init__(self, q: gq.QuantArray, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.hold(q, 3)
        self.num_experts, self.out_features, self.in_features = q.shape
        if bias is not None and tuple(bias.shape) != q.shape[:2]:
            raise gq.errors.ShapeError(
                f"Experts(q, bias): bias has shape {tuple(bias.shape)}; q is {q.shape}, so it is "
                f"{q.shape[:2]}; pass one number a row of each expert"
            )
        self.bias = bias if bias is None or isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias)

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Results [T, U, N] for x [T, K] or [T, U, K] and ids [T, U]; with weights [T, U] sums [T, N]."""
        if not torch.compiler.is_compiling():
            self._before_a_call(x)
        dtype = _result_dtype(x)
        at_once = weights is None and self.scale is None and self.bias is None
        wide = dtype if at_once else torch.promote_types(dtype, torch.float32)
        w, type = self.weight, self.blocks_type
        y: torch.Tensor = torch.ops.ggmlq.expert_linear(x, w, ids, type, self.out_features, wide)
        if self.scale is not None:
            y = y * (self.scale[ids][..., None] if self.scale.dim() else self.scale)
        if self.bias is not None:
            y = y + self.bias[ids].to(y.dtype)
        if weights is not None:
            y = (y * weights[..., None].to(y.dtype)).sum(1)
        return y.to(dtype)

    def extra_repr(self) -> str:
        """Lengths, type and bits."""
        return (
            f"{self.num_experts} experts, in_features={self.in_features}, out_features={self.out_features}, "
            f"{self._type()}"
        )


def packed_bytes(module: torch.nn.Module) -> int:
    """Bytes of all blocks in a model, each tensor counted once."""
    weights = {id(part.weight): part.weight.numel() for part in module.modules() if isinstance(part, Packed)}
    return sum(weights.values())


# The number is of the words alone: the output, which has the same weights, is not multiplied.
class ScaledEmbedding(Embedding):
    """An Embedding with the number ``embed_scale`` of a module of floats, or of another one of these."""

    def __init__(self, q: gq.QuantArray, dtype: torch.dtype, like: Any) -> None:
        super().__init__(q, dtype)
        self.scalar_embed_scale = float(like.scalar_embed_scale)
        old = like.embed_scale
        factor = torch.tensor(self.scalar_embed_scale, dtype=old.dtype, device=self.weight.device)
        self.register_buffer("embed_scale", factor, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows ``ids`` times the number, which is rounded to their dtype first."""
        rows = super().forward(ids)
        return rows * self.embed_scale.to(rows.dtype)  # type: ignore[operator, union-attr]


def is_scaled(part: Any) -> bool:
    """True for words of transformers that are multiplied by ``embed_scale``, packed or not."""
    words = isinstance(part, torch.nn.Embedding | ScaledEmbedding)
    return words and isinstance(getattr(part, "scalar_embed_scale", None), float | int)
