"""Buffers that no file has, for a model that was made on the device meta: filled as their modules fill them.

The frequencies of rotary embeddings are such: their modules compute them from the model's config.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch


def refill(model: torch.nn.Module) -> dict[str, str]:
    """Fill buffers on meta that are in no ``state_dict``; names of those that stay there, with reasons."""
    left = {}
    for path, part in model.named_modules():
        empty = [name for name in sorted(part._non_persistent_buffers_set) if _is_empty(part, name)]
        fresh = _twin(part) if empty else None
        for name in empty:
            old, value = part._buffers[name], None if fresh is None else fresh._buffers.get(name)
            if value is None or value.is_meta or value.shape != old.shape:  # type: ignore[union-attr]
                left[f"{path}.{name}".removeprefix(".")] = (
                    f"no file has this buffer, and a {type(part).__name__} is not made of a config alone; it "
                    "is still on the device meta: set it before a call"
                )
            else:
                part.register_buffer(name, value.to(old.dtype), persistent=False)  # type: ignore[union-attr]
    return left


def _is_empty(part: torch.nn.Module, name: str) -> bool:
    value = part._buffers.get(name)
    return value is not None and value.is_meta


def _twin(part: Any) -> torch.nn.Module | None:
    """Another module of this class and config, on the host; None where a config is not all that it takes."""
    kind, config = type(part), getattr(part, "config", None)
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    takes = inspect.signature(kind).parameters.values()
    needed = [each.name for each in takes if each.default is each.empty and each.kind not in optional]
    if config is None or needed != ["config"] or next(part.parameters(), None) is not None:
        return None
    with torch.device("cpu"), torch.no_grad():
        twin: torch.nn.Module = kind(config)
    return twin
