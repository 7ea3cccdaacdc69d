"""``report``: the weights of a model that are packed, and those that are floats, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import ggmlq as gq

from .loading import is_packable
from .replacing import check_model


@dataclass
class Report:
    """Weights of a model by their names: ``packed`` with their types, ``floats`` with the reasons."""

    packed: dict[str, str] = field(default_factory=dict)
    floats: dict[str, str] = field(default_factory=dict)
    packed_bytes: int = 0
    floats_bytes: int = 0

    def __str__(self) -> str:
        lines = [f"{len(self.packed)} weights packed, {self.packed_bytes / 2**20:.1f} MiB"]
        lines += [f"  {kind}: {len(names)}" for kind, names in _grouped(self.packed).items()]
        lines += [f"{len(self.floats)} weights are floats, {self.floats_bytes / 2**20:.1f} MiB"]
        for reason, names in _grouped(self.floats).items():
            lines.append(f"  {', '.join(names[:3])}{' …' * (len(names) > 3)} ({len(names)}): {reason}")
        return "\n".join(lines)


def report(model: torch.nn.Module) -> Report:
    """Tell which weights of a model are packed and which are floats, with bytes, types and reasons.

    Weights are parameters with two axes or more, each counted once; layers of ``ggmlq.torch``, transformers
    and diffusers are known.

    >>> import torch, ggmlq.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    >>> _ = ggmlq.torch.quantize_(model, "q8_0", exclude="1")
    >>> print(ggmlq.torch.report(model))
    1 weights packed, 0.0 MiB
      q8_0: 1
    1 weights are floats, 0.0 MiB
      1.weight (1): torch.float32 in the file, or decoded by what loaded it
    """
    check_model("report(model)", model)
    result, reason = Report(), _of_host(model)
    for name, weight in model.named_parameters():
        path, _, kind = name.rpartition(".")
        part = model.get_submodule(path)
        size = weight.numel() * weight.element_size()
        if (number := _type_of(part, kind, weight)) is not None:
            result.packed[name] = gq.formats[number].name
            result.packed_bytes += size
        elif weight.dim() > 1 and weight.dtype.is_floating_point and kind != "bias":
            result.floats[name] = reason or _reason(part, kind, weight)
            result.floats_bytes += size
    return result


def _type_of(part: Any, kind: str, weight: Any) -> int | None:
    """The number of a parameter's type, by the names that layers of hosts have for it; None for floats."""
    if weight.dtype != torch.uint8:
        return None
    of_part = getattr(part, "ggml_type", getattr(part, f"{kind.removesuffix('_proj')}_type", None))
    number = getattr(weight, "quant_type", of_part)
    return None if number is None else int(number)


def _reason(part: Any, kind: str, weight: Any) -> str:
    if weight.is_meta:
        return "on the device meta: nothing was loaded"
    if kind != "weight" or not is_packable(part):
        return f"a {type(part).__name__} computes with floats of its own"
    return f"{weight.dtype} in the file, or decoded by what loaded it"


def _of_host(model: Any) -> str:
    """The reason of transformers, where it has decoded the whole file."""
    quantizer = getattr(model, "hf_quantizer", None)
    if getattr(quantizer, "supported", True) or "Gguf" not in type(quantizer).__name__:
        return ""
    kind = getattr(getattr(model, "config", None), "model_type", "this model")
    return (
        f"transformers decodes GGUF files of {kind} when it loads them; "
        "ggmlq.torch.hosts.transformers.from_gguf keeps them packed"
    )


def _grouped(reasons: dict[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    return groups
