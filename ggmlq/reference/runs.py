"""Activations of an oracle to 8-bit codes, in the float32 steps of the program that is judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..formats._round import half_away, half_even, signed_extreme
from .rules import Quantizer

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
ULPS = 4  # how near a tie a code or a half may go either way


class Runs(NamedTuple):
    """Rows of activations [M, K] as 8-bit codes with scales, and where a rounding could differ."""

    codes: NDArray[np.int8]  # [M, K]
    scale: Wide  # [M, K // run]
    sums: Wide | None  # [M, K // sum_run]
    ties: NDArray[np.bool_]  # [M, K]: within 4 ulp of a tie
    steps: Wide | None  # [M, K // run]: to the other half that the scale may round to, else 0


def by_run(x: NDArray[Any], run: int) -> NDArray[Any]:
    """The array [M, K] as [M, K // run, run]."""
    return x.reshape(len(x), x.shape[1] // run, run)


def quantize_runs(x: Floats, how: Quantizer) -> Runs:
    """Codes, scales and sums as the program makes them of x [M, K]."""
    with np.errstate(all="ignore"):  # runs of zeros or infinities: their scale tells
        v, d = _scaled(by_run(x, how.run), how)
        codes = _codes(v, how).reshape(x.shape)
        sums = None if how.sums is None else stored_sums(x, codes, d, how)
        from_tie = np.abs(np.abs(v) % 1 - np.float32(0.5))
        ties = (from_tie <= ULPS * np.spacing(np.abs(v))) & (d != 0)[..., None]
        steps = _other_halves(d) if how.scale == "half" else None
    return Runs(codes, stored_scales(d, how), sums, ties.reshape(x.shape), steps)


def _scaled(runs: Floats, how: Quantizer) -> tuple[Floats, Floats]:
    """Each run in units of its scale, and the scale; neither is rounded yet."""
    if how.inverse == "-127/extreme":
        extreme = signed_extreme(runs)
        inverse = np.float32(-127) / extreme
    else:
        extreme = np.abs(runs).max(axis=-1)
        inverse = np.float32(127) / extreme
    d = np.float32(1) / inverse if how.d == "1/inverse" else extreme / np.float32(127)
    if how.inverse == "1/(amax/127)":
        inverse = np.float32(1) / d
    v = runs / d[..., None] if how.inverse == "x/(amax/127)" else runs * inverse[..., None]
    empty = extreme == 0
    return np.where(empty[..., None], np.float32(0), v), np.where(empty, np.float32(0), d)


def _codes(v: Floats, how: Quantizer) -> NDArray[np.int8]:
    sane = np.clip(np.nan_to_num(v, nan=0), -127, 127)
    whole = half_even(sane) if how.rounding == "even" else half_away(sane)
    return whole.astype(np.int8)


def stored_scales(d: Floats, how: Quantizer) -> Wide:
    """Scales as the program keeps them."""
    return (d.astype(np.float16) if how.scale == "half" else d).astype(np.float64)


def _other_halves(d: Floats) -> Wide | None:
    """The distance to the other half where a float lies within 4 ulp of the middle of two; None: nowhere."""
    near = d.astype(np.float16)
    beyond = np.where(d > near, np.float16(np.inf), np.float16(-np.inf))
    other = np.nextafter(near, beyond).astype(np.float64)
    from_middle = np.abs(d - (near + other) / 2)
    close = (from_middle <= ULPS * np.spacing(np.abs(d))) & np.isfinite(other) & (d != near)
    return np.where(close, np.abs(other - near), 0) if close.any() else None


def stored_sums(x: Floats, codes: NDArray[np.int8], d: Floats, how: Quantizer) -> Wide:
    """The block sums that a program keeps, rounded to half; where it keeps none, scale times Σ code."""
    code_sums: NDArray[np.int64] = by_run(codes, how.sum_run).sum(axis=-1)
    if how.sums == "codes":
        return (code_sums.astype(np.float32) * d).astype(np.float16).astype(np.float64)
    runs = by_run(x, how.sum_run)
    if how.sums == "fours":  # each thread adds four neighbours first
        fours = by_run(x, 4).reshape(*runs.shape[:-1], -1, 4)
        runs = ((fours[..., 0] + fours[..., 1]) + fours[..., 2]) + fours[..., 3]
    while runs.shape[-1] > 1:  # then threads add what a partner half way across holds
        half = runs.shape[-1] // 2
        runs = runs[..., :half] + runs[..., half:]
    sums: Wide = runs[..., 0].astype(np.float16).astype(np.float64)
    without = np.arange(sums.shape[1]) % 8 >= how.sums_of
    return np.where(without, code_sums * stored_scales(d, how).repeat(how.run // how.sum_run, axis=-1), sums)
