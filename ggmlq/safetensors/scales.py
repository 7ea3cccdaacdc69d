"""Finds the scales of 8-bit weights in safetensors: the tensor that holds them, and the tile of each scale.

Checkpoints of 8 bits store a scale beside a weight, under one of a few names, and state the block of a scale
in config.json. All of them mean value = scale · code, ``weight_scale_inv`` too. The tile is that of the
configuration if the scale has the shape for it; otherwise it follows from the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.scaled import ScaledArray
from ..codes.tiling import Tile, tiling
from ..errors import SafetensorsError
from .header import Entry

SUFFIXES = ("_scale_inv", "_scale")  # after the name: DeepSeek's, then that of most others
BESIDE = ("scale", "qscale_weight")  # in place of "weight" at its end
ZERO_POINT = "_zero_point"
GUESSED = (128, 64, 32, 256, 16)  # sides of square blocks, where nothing says
METHODS = ("fp8", "compressed-tensors", "modelopt", "fbgemm_fp8")


class Quantization(NamedTuple):
    """The settings for 8-bit weights in config.json."""

    method: str | None
    block: tuple[int, int] | None
    activation_scheme: str | None  # "dynamic" or "static"


def quantization(config: Mapping[str, Any]) -> Quantization:
    """``quantization_config``, as DeepSeek's FP8 and compressed-tensors write it."""
    table = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(table, dict):
        return Quantization(None, None, None)
    block, scheme = table.get("weight_block_size"), table.get("activation_scheme")
    groups = table.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            block = block or weights.get("block_structure") or _group(weights)
            inputs = group.get("input_activations")
            scheme = scheme or (
                isinstance(inputs, dict) and ("static", "dynamic")[bool(inputs.get("dynamic"))]
            )
    method = table.get("quant_method")
    return Quantization(
        method if isinstance(method, str) else None, _tile(block), scheme if isinstance(scheme, str) else None
    )


def _group(weights: Mapping[str, Any]) -> Any:
    size = weights.get("group_size")
    return [1, size] if weights.get("strategy") == "group" and size else None


def _tile(block: Any) -> tuple[int, int] | None:
    if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
        return block[0], block[1]
    return None


def name_of_scale(name: str, entries: Mapping[str, Entry]) -> str | None:
    """The name of the tensor with the scales of this one, or None."""
    stem = name.removesuffix("weight")
    names = [name + suffix for suffix in SUFFIXES] + [stem + end for end in BESIDE if stem != name]
    return next((name for name in names if name in entries), None)


def is_scaled(entry: Entry, entries: Mapping[str, Entry]) -> bool:
    """True for a tensor of codes: an 8-bit float in any case, integers where a scale lies beside them."""
    if not entry.shape:
        return False
    return entry.type.code is not None or (
        entry.dtype == "I8" and name_of_scale(entry.name, entries) is not None
    )


def array(
    entry: Entry, entries: Mapping[str, Entry], read: Callable[[str], NDArray[Any]], settings: Quantization
) -> ScaledArray:
    """Codes with their scales; ``read`` gives the numbers of a tensor. Without scales they are 1."""
    code = entry.type.code.name if entry.type.code else "int8_full"
    name = name_of_scale(entry.name, entries)
    codes = read(entry.name)
    if name is None:
        return ScaledArray(codes, np.ones((1, 1), np.float32), code, (None, None))
    scales = _numbers(entries[name], read)
    tile = _matching(entry, entries[name], settings)
    if tile is None:
        raise SafetensorsError(
            f"tensor {entry.name!r}: its shape is {entry.shape}, that of its scales {name!r} is "
            f"{scales.shape}{f', blocks are {settings.block}' if settings.block else ''}; a scale is for "
            "the whole, for a row, or for a block of equal size; check weight_block_size in config.json, or "
            "read both tensors with file.stored(name)"
        )
    over = tiling(tile, prod(entry.shape[:-1]), entry.shape[-1])
    return ScaledArray(
        codes, scales.reshape(over.shape), code, tile, _zeros(entry, entries, read, over.shape)
    )


def _numbers(entry: Entry, read: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
    """Scales as ScaledArray takes them: float32, or e8m0 as it is."""
    numbers = read(entry.name)
    if entry.dtype == "F8_E8M0":
        return numbers
    if entry.dtype == "BF16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    if entry.dtype not in ("F32", "F16", "F64"):
        raise SafetensorsError(
            f"tensor {entry.name!r}: scales of {entry.dtype}; they are F32, F16, BF16 or F8_E8M0; read it "
            "with file.stored(name)"
        )
    return numbers.astype(np.float32, copy=False)


def _zeros(
    entry: Entry, entries: Mapping[str, Entry], read: Any, shape: tuple[int, ...]
) -> NDArray[Any] | None:
    zeros = entries.get(entry.name + ZERO_POINT)
    if zeros is None or entry.type.code is not None or prod(zeros.shape) != prod(shape):
        return None
    numbers = read(zeros.name)
    return numbers.reshape(shape).astype(np.int32) if numbers.any() else None


def _matching(entry: Entry, scale: Entry, settings: Quantization) -> Tile | None:
    """The tile that gives scales of this shape."""
    *outer, columns = entry.shape
    rows, count = prod(outer), prod(scale.shape)
    matrix = outer[-1] if outer else 1  # rows of one matrix
    *leading, across = scale.shape if len(scale.shape) > 1 else (*scale.shape, 1)
    down = prod(leading)
    blocks = ([settings.block] if settings.block else []) + [(n, n) for n in GUESSED]
    for r, c in blocks if len(scale.shape) > 1 else []:
        # a block of rows may end with a matrix only where it is the last, or fits a whole number of times
        fits = rows == matrix or matrix % r == 0
        if (
            fits
            and -(-rows // r) == down
            and -(-columns // c) == across
            and (settings.block == (r, c) or count > 1)
        ):
            return r, c
    if count == 1:
        return None, None
    if down == rows and across and columns % across == 0:
        return 1, (None if across == 1 else columns // across)
    if across == 1 and down and rows % down == 0 and rows // down == matrix:
        return matrix, None  # one for each of stacked matrices
    return None
