"""Activations to 8-bit codes, run by run, in the float32 steps of the program that is judged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats._round import half_away, half_even, signed_extreme
from .rules import Quantizer

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
ULPS = 4  # how near a tie a code may go either way


def by_run(x: NDArray[Any], run: int) -> NDArray[Any]:
    """[M, K] to [M, K // run, run]."""
    return x.reshape(len(x), x.shape[1] // run, run)


def quantize_runs(
    x: Floats, how: Quantizer
) -> tuple[NDArray[np.int8], Wide, Wide | None, NDArray[np.bool_]]:
    """Codes [M, K], scales [M, K // run], sums and ties, as the program makes them of x [M, K]."""
    with np.errstate(all="ignore"):  # runs of zeros and of infinities: their scale says so
        # A last run may be short where the program pads rows with zeros.
        padded = np.pad(x, ((0, 0), (0, -x.shape[1] % how.run)))
        runs = by_run(padded, how.run)
        v, d = _scaled(runs, how)
        codes = _codes(v, how)
        scale = d.astype(np.float16) if how.scale == "half" else d
        sums = None if how.sums is None else _sums(x, codes.reshape(padded.shape), d, how)
        off_tie = np.abs(np.abs(v) % 1 - np.float32(0.5))
        ties = (off_tie <= ULPS * np.spacing(np.abs(v))) & (d != 0)[..., None]
    flat = codes.reshape(padded.shape)[:, : x.shape[1]]
    return flat, scale.astype(np.float64), sums, ties.reshape(padded.shape)[:, : x.shape[1]]


def _scaled(runs: Floats, how: Quantizer) -> tuple[Floats, Floats]:
    """Each run in units of its scale, not yet rounded, and the scale, not yet rounded."""
    if how.inverse == "-127/extreme":
        extreme = signed_extreme(runs)
        k = np.where(extreme == 0, np.float32(0), np.float32(-127) / extreme)
        d = np.where(extreme == 0, np.float32(0), np.float32(1) / k)
        return k[..., None] * runs, d
    amax = np.abs(runs).max(axis=-1)
    d = amax / np.float32(127)
    if how.inverse == "x/(amax/127)":
        v = runs / d[..., None]
    elif how.inverse == "1/(amax/127)":
        v = runs * (np.float32(1) / d)[..., None]
    else:
        v = runs * (np.float32(127) / amax)[..., None]
    return np.where((amax == 0)[..., None], np.float32(0), v), d


def _codes(v: Floats, how: Quantizer) -> NDArray[np.int8]:
    sane = np.clip(np.nan_to_num(v, nan=0), -127, 127)
    whole = half_even(sane) if how.rounding == "even" else half_away(sane)
    return whole.astype(np.int8)


def _sums(x: Floats, codes: NDArray[np.int8], d: Floats, how: Quantizer) -> Wide:
    """The block sums that the program keeps, halves; where it keeps none, d times the codes' sum."""
    if how.sums == "codes":
        q = by_run(codes, how.sum_run).sum(axis=-1, dtype=np.int32)
        return (q.astype(np.float32) * d).astype(np.float16).astype(np.float64)
    runs = by_run(x, how.sum_run)
    if how.sums == "fours":  # a thread adds four neighbours first
        fours = runs.reshape(*runs.shape[:-1], -1, 4)
        runs = ((fours[..., 0] + fours[..., 1]) + fours[..., 2]) + fours[..., 3]
    while runs.shape[-1] > 1:  # threads exchange halves
        half = runs.shape[-1] // 2
        runs = runs[..., :half] + runs[..., half:]
    sums = runs[..., 0].astype(np.float16).astype(np.float64)
    if how.sums_of == 8:
        return sums
    own = by_run(codes[:, : x.shape[1]], how.sum_run).sum(axis=-1) * d.astype(np.float16).repeat(
        how.run // how.sum_run, axis=-1
    )[:, : sums.shape[1]].astype(np.float64)
    kept = np.arange(sums.shape[1]) % 8 < how.sums_of
    return np.where(kept, sums, own)
