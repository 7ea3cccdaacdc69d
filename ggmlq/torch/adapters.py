"""LoRA on blocks: two small matrices beside a layer whose weights stay packed and frozen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

import ggmlq as gq

from .modules import Linear, Packed
from .replacing import Patterns, check_model, matches


class LoRA(torch.nn.Module):
    """A Linear with a trained branch: ``base(x) + dropout(x) @ A.T @ B.T * (alpha / rank)``.

    The branch is computed in its own dtype, which is the compute dtype that ``dtype`` names. B begins with
    zeros, so a fresh branch changes nothing. The base has no gradients, and is not decoded in forward.
    """

    def __init__(
        self, base: Linear, rank: int = 8, alpha: float = 16.0, dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(base, Linear):
            raise gq.errors.DTypeError(
                f"LoRA(base): base is {base!r:.80}; it is a packed layer, ggmlq.torch.Linear; make one "
                "with ggmlq.torch.quantize_"
            )
        if rank < 1:
            raise gq.errors.ShapeError(
                f"LoRA(base, rank={rank}): a branch has a rank of 1 or more; pass rank=8"
            )
        self.base, self.rank, self.alpha = base, rank, alpha
        self.in_features, self.out_features = base.in_features, base.out_features
        device = base.weight.device
        self.a = torch.nn.Parameter(torch.empty(rank, base.in_features, dtype=dtype, device=device))
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank, dtype=dtype, device=device))
        torch.nn.init.kaiming_uniform_(self.a, a=5**0.5)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the blocks, and the branch."""
        y: torch.Tensor = self.base(x)
        dropped = self.dropout(x) if self.dropout.p else x  # torch copies x for a share of none, too
        branch = torch.nn.functional.linear(dropped.to(self.a.dtype), self.a)
        branch = branch * (self.alpha / self.rank)  # of few numbers, where all results would be many
        return y + torch.nn.functional.linear(branch, self.b).to(y.dtype)

    def extra_repr(self) -> str:
        """Rank and strength of the branch."""
        return f"rank={self.rank}, alpha={self.alpha:g}, {self.a.dtype}"


def lora_(
    model: torch.nn.Module, rank: int = 8, alpha: float = 16.0, *, include: Patterns = None,
    exclude: Patterns = None, dropout: float = 0.0, dtype: torch.dtype = torch.float32,
) -> list[str]:  # fmt: skip
    """Give each packed Linear of a model a branch, and freeze everything else; the names of those layers.

    ``include`` and ``exclude`` as in :func:`ggmlq.torch.quantize_`.
    """
    if isinstance(model, Linear):
        raise gq.errors.UnsupportedError(
            "lora_(model): the model is a single layer, which cannot be replaced in itself; make one with "
            "ggmlq.torch.LoRA(layer, rank)"
        )
    check_model("lora_(model)", model)
    names = [name for name, part in _packed(model) if matches(name, include, exclude)]
    if not any(isinstance(part, Linear) for part in model.modules()):
        raise gq.errors.UnsupportedError(
            "lora_(model): the model has no packed Linear, so nothing of it would be trained; quantize it "
            "first, ggmlq.torch.quantize_"
        )
    bases: list[Any] = [model.get_submodule(name) for name in names]
    branches = [LoRA(base, rank, alpha, dropout, dtype) for base in bases]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, branch in zip(names, branches, strict=True):
        model.set_submodule(name, branch)
    return names


def _packed(model: torch.nn.Module) -> Iterable[tuple[str, Any]]:
    inside = {
        f"{name}.base".removeprefix(".") for name, part in model.named_modules() if isinstance(part, LoRA)
    }
    return [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, Linear) and name not in inside
    ]


# --- adapters of others -----------------------------------------------------------------------------


def _refuse_merge(*operands: Any, **options: Any) -> None:
    """Say that a branch cannot be added to blocks; PEFT would add floats to their bytes."""
    raise gq.errors.UnsupportedError(
        "merge of an adapter into a packed layer of ggmlq.torch: weights are bytes of blocks, to which no "
        "floats can be added; keep the adapter beside it (save_pretrained writes it alone), or put a "
        "torch.nn.Linear with the weights layer.dequantize() in its place before get_peft_model"
    )


def _wrapped(outer: torch.nn.Module, name: str, inner: Any) -> None:
    """Let a layer that is wrapped around a packed one, as PEFT's are, refuse to merge in words."""
    if name == "base_layer" and callable(getattr(outer, "merge", None)):
        while not isinstance(inner, Packed) and isinstance(inner, torch.nn.Module):
            inner = getattr(inner, "base_layer", None)
        if inner is not None:
            outer.__dict__["merge"] = _refuse_merge


# torch calls it for each module that is put into another. PEFT asks a layer for nothing before it merges, and
# is itself not changed.
torch.nn.modules.module.register_module_module_registration_hook(_wrapped)
