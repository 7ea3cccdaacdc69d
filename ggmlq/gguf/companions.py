"""Companion tensors: ``X.scale`` beside ``X.weight`` holds the scale of its products, as llama.cpp reads it.

Any type of two axes or more may have one, of one number or of one for each expert; NVFP4 needs it. Some files
name it ``X.weight.scale``, and NVFP4 tensors of other names have it behind their name. ``X.input_scale`` is
for programs that quantize activations to 4 bits: it does not change what the weights mean, and stays a tensor
like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.companion import Scale, same_scales
from ..base.devices import to_host
from ..errors import GGUFError

WEIGHT, SCALE = ".weight", ".scale"
NEEDS = "nvfp4"  # the type whose values mean little without one


def names_of(name: str) -> tuple[str, ...]:
    """The names that the companion of a tensor may have; the first is the one that is written."""
    if name.endswith(WEIGHT):
        return name.removesuffix(WEIGHT) + SCALE, name + SCALE
    return (name + SCALE,)


def is_scale_of(shape: tuple[int, ...], weights: tuple[int, ...]) -> bool:
    """True for the shape of one number, or of one for each expert."""
    return shape in ((), (1,)) or (len(weights) > 2 and shape == weights[:1])


def is_companion(tensors: Mapping[str, Any], name: str) -> bool:
    """True for a scale that is multiplied into its weights, and for one of their activations."""
    stem, _, kind = name.rpartition(".")
    weight = stem if stem.endswith(WEIGHT) else stem + WEIGHT
    return kind in ("scale", "input_scale") and weight in tensors and tensors[weight].scale is not None


def is_read(name: str, q: QuantArray) -> bool:
    """True for a tensor whose companion is looked for."""
    return q.ndim > 1 and (name.endswith(WEIGHT) or q.format.name == NEEDS)


def scale_of(request: str, q: QuantArray, companion: QuantArray) -> Scale | None:
    """The scale that a companion tensor holds; None where it is something else of that name."""
    if companion.format.name not in ("f32", "f16", "bf16", "f64"):
        return None
    if not is_scale_of(companion.shape, q.shape):
        if q.format.name != NEEDS:
            return None
        raise GGUFError(
            f"{request}: its companion has shape {companion.shape}, it has {q.shape}; a companion is one "
            "number, or one for each expert; the file is damaged, or take the blocks alone by its raw bytes"
        )
    numbers = np.asarray(companion, np.float32)
    scale: Scale = numbers.reshape(()) if q.ndim == 2 or numbers.size == 1 != len(q) else numbers.reshape(-1)
    scale.flags.writeable = False
    return scale


def missing_companion(name: str, x: Any, tensors: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The name and the array of a tensor's companion where it has a scale and its companion is not there.

    A companion that says something else than the array is an error.
    """
    if not isinstance(x, QuantArray) or x.scale is None:
        return None
    scale = np.atleast_1d(np.asarray(x.scale, np.float32))
    if np.ndim(x.scale) > 1 or (np.ndim(x.scale) and x.ndim < 3):
        raise GGUFError(
            f"it has scales of shape {np.shape(x.scale)}; a file holds one a tensor or one an expert; save "
            "the arrays that it was joined from"
        )
    if not is_read(name, x):
        raise GGUFError(
            f"{x!r} has a scale, which goes into a tensor beside it; only matrices of {NEEDS}, and others "
            f"whose names end in {WEIGHT}, have such a companion; rename it, or save x.dequantize()"
        )
    names = names_of(name)
    there = next((one for one in names if one in tensors), None)
    if there is None:
        return names[0], scale
    if not _agrees(tensors[there], scale):
        raise GGUFError(
            f"its scale is {x.scale}, and the tensor {there!r} says otherwise; leave one of them out"
        )
    return None


def _agrees(companion: Any, scale: Any) -> bool:
    try:
        numbers = np.asarray(to_host(companion), np.float32).reshape(-1)
    except (TypeError, ValueError):  # one that is made while it is written
        return True
    return same_scales(numbers, scale) or bool(numbers.size == 1 and (scale == numbers).all())


class WithCompanions(Mapping[str, Any]):
    """Tensors of a save, with the companions that they bring along, each behind its tensor."""

    def __init__(self, tensors: Mapping[str, Any], added: Mapping[str, tuple[str, Any]]) -> None:
        self._tensors = tensors
        self._behind = {name: companion for name, (companion, _) in added.items()}
        self._scales = dict(added.values())

    def __getitem__(self, name: str) -> Any:
        return self._scales[name] if name in self._scales else self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        for name in self._tensors:
            yield name
            if name in self._behind:
                yield self._behind[name]

    def __len__(self) -> int:
        return len(self._tensors) + len(self._scales)
