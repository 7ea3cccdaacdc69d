"""The doctor's operands of a product with scaled weights, checked and brought to the host: a Case."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...base.devices import to_host
from ...dispatch.checks import as_floats
from ...errors import DTypeError, ShapeError, UnsupportedError
from ...ops.operands import check_pair, how_quantized, takes_zeros
from ...ops.quantize_scaled import quantize_scaled
from ..inputs import Results, results
from ..numbers import Wide
from .scene import Activations, Case

CALL = "diagnose(y, x, w)"
CUSTOMS = ((1, 128), (1, None), (None, None))  # tiles of activations that kernels choose by themselves


def checked(
    y: Any, x: Any, w: ScaledArray, arithmetic: Any, repeats: Any, activations: Any
) -> tuple[Case, Results]:
    """The case and all results; errors say what does not fit."""
    if arithmetic is not None:
        raise UnsupportedError(
            f"{CALL} with arithmetic={arithmetic!r}: products of {w!r} have one arithmetic, their own; "
            "arithmetics are of block formats; leave it out"
        )
    w = to_host(w)
    if w.ndim != 2:
        raise ShapeError(f"{CALL}: {w!r} is {w.ndim}-D; weights are [N, K]; pass w[e] for one matrix of them")
    ways, lead = usual_ways(to_host(x), w, activations)
    r = results(y, repeats, (*lead, w.shape[0]), math.prod(lead))
    return Case(r.y, ways, w, r.store), r


def usual_ways(x: Any, w: ScaledArray, activations: Any = None) -> tuple[list[Activations], tuple[int, ...]]:
    """Ways in which a right kernel may take x (codes, or floats in some tile), and x's axes before K."""
    if isinstance(x, ScaledArray):
        if activations is not None:
            raise DTypeError(
                f"{CALL}: activations={activations!r}, but x is {x!r}, quantized already; leave activations "
                "out, or pass floats"
            )
        check_pair(CALL, x, w)
        flat = ScaledArray(
            x.codes.reshape(x.tiling.rows, x.tiling.columns), x.scales, x.code, x.tile, x.zeros
        )
        return [Activations("these codes under these scales", flat)], x.shape[:-1]
    x = as_floats(CALL, x, "x")
    if x.ndim == 0 or x.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"{CALL}: x has shape {x.shape}, w {w.shape}; the last axis of both is K; "
            f"pass x as [..., {w.shape[1]}]"
        )
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    wide = rows.astype(np.float32).astype(np.float64)
    if isinstance(activations, tuple | list) and len(activations) == 3:
        code, tile, scales = activations
        quantized = quantize_scaled(rows, code, tile, scales=scales, ragged="pad")
        check_pair(CALL, quantized, w)
        return [_quantized(quantized, wide)], x.shape[:-1]
    code, tile = how_quantized(activations, w)
    tiles = [tile] if activations is not None else list(dict.fromkeys((tuple(tile), *CUSTOMS)))
    more: dict[str, Any] = {"zeros": takes_zeros(activations, code), "ragged": "pad"}
    check_pair(CALL, quantize_scaled(rows, code, tile, **more), w)
    ways = [_quantized(quantize_scaled(rows, code, t, **more), wide) for t in tiles if _fits(t, w)]
    if activations is None:
        ways.append(Activations("x as floats", None, wide))
    return ways, x.shape[:-1]


def _fits(tile: Any, w: ScaledArray) -> bool:
    """True if tiles of x and w divide each other along K."""
    k = max(w.shape[1], 1)
    a, b = sorted((k if tile[1] is None else min(tile[1], k), w.tiling.c))
    return b % a == 0 or b >= k


def _quantized(s: ScaledArray, x: Wide) -> Activations:
    return Activations(f"x quantized to {s.code.name} in tiles {s.tile}", s, x)
