"""LoRA on blocks: two small matrices beside a layer that stays packed, and their merge into new blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

import ggmlq as gq

from ..base.progress import Progress
from .modules import Linear, Packed
from .replacing import Patterns, Replaced, check_model, matches, put_module


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
        "floats can be added; keep the adapter beside it (save_pretrained writes it alone), or ask for other "
        "blocks, ggmlq.torch.merge_(model), which decodes, adds and encodes again, or put a torch.nn.Linear "
        "with the weights layer.dequantize() in its place before get_peft_model"
    )


def merge_(model: torch.nn.Module, type: Any = None, *, progress: bool | None = None) -> Replaced:
    """Merge adapters into new blocks, in place: decode the weights, add the branch, encode the sum.

    Encoding rounds the sum: of a branch that changes weights by less than the steps of a type a part is lost.

    Parameters
    ----------
    model : torch.nn.Module
        With branches of :func:`lora_`, or with LoRA of PEFT, of which the active adapters count; after it
        ``model.unload()`` gives the model without PEFT.
    type : str, int or Format, optional
        Of the new blocks; by default each layer keeps its own.
    progress : bool, optional
        As in :func:`ggmlq.torch.quantize_`.

    Returns
    -------
    Replaced
        ``taken``: layers with their types; layers of floats are merged by PEFT, as they are.
    """
    check_model("merge_(model)", model)
    parts = {name: part for name, part in model.named_modules() if _base_of(part) is not None}
    plain = {name: part for name, part in model.named_modules() if name not in parts and _is_branch(part)}
    if not parts:
        raise gq.errors.UnsupportedError(
            "merge_(model): no branch lies beside a packed Linear, so nothing can be merged; add one with "
            "ggmlq.torch.lora_ or peft.get_peft_model"
        )
    types = {
        name: gq.formats[type] if type is not None else _base_of(part).format for name, part in parts.items()
    }
    for name, part in parts.items():
        _check_merge(name, part, types[name])
    result = Replaced()
    for name, part in plain.items():  # beside floats, to which PEFT adds
        part.merge()
        put_module(model, name, part.get_base_layer())
        result.taken[name] = "floats"
    with Progress(len(parts), "merging", show=progress) as bar:
        for name, part in parts.items():
            base, fmt = _base_of(part), types[name]
            with torch.no_grad():
                floats = base.dequantize() + _delta(part).to(torch.float32)
            new = (
                Linear(gq.quantize(floats.cpu(), fmt), base.bias).to(base.weight.device).train(part.training)
            )
            put_module(model, name, new)
            result.taken[name] = fmt.name
            bar.advance(1)
    return result


def _base_of(part: Any) -> Any:
    """The packed Linear under a branch, ours or PEFT's; None for other modules."""
    if isinstance(part, LoRA):
        return part.base
    base = getattr(part, "base_layer", None)
    return base if isinstance(base, Linear) and _is_branch(part) else None


def _is_branch(part: Any) -> bool:
    """True for a layer of PEFT, which has another one inside."""
    return isinstance(getattr(part, "base_layer", None), torch.nn.Module) and callable(
        getattr(part, "merge", None)
    )


def _delta(part: Any) -> torch.Tensor:
    """All that the branches of a layer add to its weights."""
    if isinstance(part, LoRA):
        return part.b @ part.a * (part.alpha / part.rank)
    deltas = [part.get_delta_weight(name) for name in part.active_adapters if name in part.lora_A]
    return sum(deltas, torch.zeros(()))


def _check_merge(name: str, part: Any, fmt: Any) -> None:
    """Refuse what is no sum of matrices, and types that cannot be encoded from floats alone."""
    if not fmt.can_quantize or fmt.needs_imatrix:
        raise gq.errors.UnsupportedError(
            f"merge_(model): {name} is {fmt.name}, which is not encoded from floats alone; pass another "
            'type, merge_(model, "q4_K")'
        )
    if isinstance(part, LoRA):
        return
    active = [each for each in part.active_adapters if each in getattr(part, "lora_A", ())]
    more = [getattr(part, kind, {}).get(each) for kind in ("use_dora", "lora_bias") for each in active]
    if not callable(getattr(part, "get_delta_weight", None)) or any(more) or part.disable_adapters:
        raise gq.errors.UnsupportedError(
            f"merge_(model): {name} has a {part.__class__.__name__} whose branch is more than two "
            "matrices, or is switched off; LoRA without DoRA and bias can be merged; keep the adapter beside "
            "the layer"
        )


def _wrapped(outer: torch.nn.Module, name: str, inner: Any) -> None:
    """Let a layer that is wrapped around a packed one, as PEFT's are, refuse in words what blocks cannot."""
    whole = type(outer).__name__ == "ModulesToSaveWrapper" and name == "original_module"
    if whole and isinstance(inner, Packed):
        raise gq.errors.UnsupportedError(
            f"modules_to_save of PEFT: a packed {type(inner).__name__} of {inner.format.name} cannot be "
            "trained whole, for blocks have no gradient; leave it out, put it among target_modules, or put a "
            "module of floats with the weights layer.dequantize() in its place before get_peft_model"
        )
    if name == "base_layer" and callable(getattr(outer, "merge", None)):
        while not isinstance(inner, Packed) and isinstance(inner, torch.nn.Module):
            inner = getattr(inner, "base_layer", None)
        if inner is not None:
            outer.__dict__["merge"] = _refuse_merge


# torch calls it for each module that is put into another. PEFT asks a layer for nothing before it merges, and
# is itself not changed.
torch.nn.modules.module.register_module_module_registration_hook(_wrapped)
