"""Readings, by which the doctor imitates how kernels round activations: usual ways, and wrong ones.

A reading holds the activations that a kernel multiplies. Block formats with a constant in the code, or with
an offset, also need a sum of each block of activations. Kernels form it differently (of the codes, of the
floats, as half): each reading with each such sum is one *way*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...formats._round import signed_extreme
from ...reference import Quantizer
from ...reference.operands import by_run, quantize_runs, rounded
from ...reference.rules import Float
from ..numbers import LARGEST_HALF, Wide, half

Sums = Literal["codes", "floats", "none"]

OVERFLOWS = 3e-39  # below it the inverse of a scale is infinite in float32, and codes may be anything


@dataclass(frozen=True, eq=False)
class Reading:
    """Activations [M, K] as a kernel holds them."""

    name: str
    values: Wide  # what is multiplied with the weights
    codes: Wide | None = None  # 8-bit codes, where there are any
    unrounded: Wide | None = None  # [M, K]: codes times the scale before it became a half
    moves: Wide | None = None  # [M, K]: what a rounding error upstream may change in each value
    fault: str | None = None  # None: a right reading
    weights: str = "f32"  # the type of the weights beside it: "f32", "f16", "bf16"
    wraps: Wide | None = None  # [M, K]: lost beside a negative code, as -(-128) is in 8 bits


@dataclass(frozen=True, eq=False)
class Way:
    """One reading with one convention of the sum of each block."""

    reading: int  # index
    name: str
    sums: Sums
    excess: Wide | None = None  # [M, K // grain]: sum of the codes minus the sum that was used
    moves: Wide | None = None  # [M, K // grain]: how far that sum may be off
    fault: str | None = None


def right(x: Wide) -> list[Reading]:
    """All right readings of x [M, K] (float32 values in float64)."""
    names: dict[Float, str] = {"f32": "float32", "f16": "half", "bf16": "bfloat16"}
    pairs: tuple[tuple[Float, Float], ...] = (
        ("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("f32", "f16"), ("bf16", "bf16"), ("bf16", "f32"),
        ("f32", "bf16"),
    )  # fmt: skip
    floats = []
    for kind, w in pairs:
        beside = "and weights" if w == kind else f"{names[w]} weights"
        name = f"{names[kind]} activations{' ' if w == kind else ', '}{beside}"
        floats.append(Reading(name, rounded(x, kind), weights=w))
    return floats + [_quantized(x, how) for how in _quantizers(x.shape[1])]


def _quantizers(k: int) -> Iterator[Quantizer]:
    """Right quantizers for rows of k: runs as long as programs use them, both rounding rules."""
    for run in dict.fromkeys((32, 64, 128, 256, k)):
        if k % run:
            continue
        for scale in ("float", "half") if run <= 64 else ("float",):
            for rounding in ("even", "away"):
                inverse = "127/amax" if rounding == "even" else "x/(amax/127)"
                yield Quantizer(run, inverse, rounding, scale)  # type: ignore[arg-type]
    if k % 256 == 0:
        yield Quantizer(256, "-127/extreme", "even", "float", d="1/inverse")  # ggml's q8_K


def _quantized(x: Wide, how: Quantizer) -> Reading:
    x32 = x.astype(np.float32)
    runs = quantize_runs(x32, how)
    signed = how.inverse == "-127/extreme"
    exact = runs.scale if signed else _scale(x32, how.run)
    codes = runs.codes.astype(np.float64)
    scale, wide = (s.repeat(how.run, axis=1) for s in (runs.scale, exact))
    moves: Wide = runs.ties.astype(np.float64) * np.abs(scale)
    if how.scale == "half":  # the scale itself may lie near a tie between two halves
        up, down = (half(exact * (1 + sign * 5e-7)) for sign in (1, -1))
        moves = moves + np.abs(codes) * (up - down).repeat(how.run, axis=1)
    moves = moves + np.where(np.abs(wide) < OVERFLOWS, 256 * np.abs(wide), 0)
    sign = " of either sign" if signed else ""
    name = f"8-bit codes, {how.run} to a {how.scale} scale{sign}, halves {how.rounding}"
    return Reading(name, codes * scale, codes, codes * wide, moves)


def _scale(x: NDArray[np.float32], run: int) -> Wide:
    largest: NDArray[np.float32] = np.abs(by_run(x, run)).max(axis=-1)
    return (largest / np.float32(127)).astype(np.float64)


# --- wrong readings -------------------------------------------------------------------------


def wrong(x: Wide) -> list[Reading]:
    """All wrong readings of x, each with its fault."""
    return [*_cut_off(x), *_scales_of_neighbours(x), *_saturated_halves(x)]


CUTS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "truncated": np.trunc,
    "floored": np.floor,
    "rounded up": np.ceil,
    "plus a half, cut off": lambda v: np.trunc(v + np.float32(0.5)),  # negatives go up by one
}  # floor(v + 0.5) is right: it differs from other roundings at ties alone


def _cut_off(x: Wide) -> Iterator[Reading]:
    """Readings whose codes are cut off (toward zero, down or up) where they must be rounded."""
    x32 = x.astype(np.float32)
    k = x.shape[1]
    for run in dict.fromkeys((32, 64, 256, k)):
        if k % run:
            continue
        for rule, cut in CUTS.items():
            tried: list[tuple[Wide, Wide]] = []
            for label, v, d in _quotients(by_run(x32, run)):
                codes = np.clip(cut(v), -128, 127).astype(np.float64).reshape(x.shape)
                wide = d.repeat(run, axis=1)
                if any(np.array_equal(codes, c) and np.array_equal(wide, w) for c, w in tried):
                    continue
                tried.append((codes, wide))
                yield from _under_scales(f"8-bit codes {rule} ({label}), {run}", codes, wide)
        yield from _beyond_127(x32, run)


def _beyond_127(x32: NDArray[np.float32], run: int) -> Iterator[Reading]:
    """Readings with the scale amax/128: codes up to 128, which does not fit 8 bits, though -128 does."""
    runs = by_run(x32, run)
    largest = np.abs(runs).max(axis=-1)
    d = (largest / np.float32(128)).astype(np.float64).repeat(run, axis=1)
    v = runs * _safe(np.float32(128), largest)[..., None]
    for rule, codes in (
        ("to even", np.rint(v)),
        ("away", np.sign(v) * np.floor(np.abs(v) + np.float32(0.5))),
    ):
        clipped = np.clip(codes, -128, 127).astype(np.float64).reshape(x32.shape)
        yield from _under_scales(f"8-bit codes with the scale amax/128 (halves {rule}), {run}", clipped, d)


def _under_scales(name: str, codes: Wide, wide: Wide) -> Iterator[Reading]:
    """Readings of wrong codes with a half or float scale; also with -128 wrong where its sign is turned."""
    lowest = codes == -128
    for kind in ("half", "float"):
        scale = half(wide) if kind == "half" else wide
        one = Reading(
            f"{name} to a {kind} scale", codes * scale, codes, codes * wide, fault="activation-rounding"
        )
        yield one
        if lowest.any():
            yield replace(
                one, name=f"{one.name}, -128 kept where its sign is turned", wraps=256 * scale * lowest
            )


def _quotients(runs: NDArray[np.float32]) -> Iterator[tuple[str, NDArray[np.float32], Wide]]:
    """Label, runs in units of their scale, and the scale [M, runs] before it became a half."""
    largest = np.abs(runs).max(axis=-1)
    d = largest / np.float32(127)
    wide = d.astype(np.float64)
    yield "127/amax", runs * _safe(np.float32(127), largest)[..., None], wide
    yield "1/d", runs * _safe(np.float32(1), d)[..., None], wide
    yield "x/d", np.where(d[..., None] == 0, np.float32(0), runs / d[..., None]), wide
    if runs.shape[-1] == 256:
        inverse = _safe(np.float32(-127), signed_extreme(runs))
        yield "-127/extreme", runs * inverse[..., None], _safe(np.float32(1), inverse).astype(np.float64)


def _safe(one: np.float32, by: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(by == 0, np.float32(0), one / by)


def _scales_of_neighbours(x: Wide) -> Iterator[Reading]:
    """Readings of right codes, but with the scale of the block before or after."""
    k = x.shape[1]
    for how in _quantizers(k):
        if how.run not in (32, 256) or k < 2 * how.run:
            continue
        runs = quantize_runs(x.astype(np.float32), how)
        for name, scale in shifted(runs.scale):
            values = runs.codes * scale.repeat(how.run, axis=1)
            label = f"activation scale of the {name} ({how.run}, {how.scale}, {how.rounding})"
            yield Reading(label, values, fault="scale-neighbour")


def shifted(scale: Wide, off_the_end: tuple[str, ...] = ("wraps",)) -> Iterator[tuple[str, Wide]]:
    """Scales [rows, blocks] moved by one block either way, under each rule for the end of a row or of all."""
    for step, name in ((1, "previous block"), (-1, "next block")):
        across = np.roll(scale.reshape(-1), step).reshape(scale.shape)
        within = np.roll(scale, step, axis=1)
        end = 0 if step == 1 else -1
        for rule, whole in (("wraps", within), ("itself", scale), ("zero", np.zeros_like(scale))):
            moved = within.copy()
            moved[:, end] = whole[:, end]
            yield f"{name}; at the end of a row: {rule}", moved
            if len(scale) > 1 and rule in off_the_end:  # one flat array of scales
                flat = across.copy()
                flat[end, end] = (across if rule == "wraps" else whole)[end, end]
                yield f"{name}; at the end of a row: neighbouring row; of the last: {rule}", flat


def _saturated_halves(x: Wide) -> Iterator[Reading]:
    """Readings with halves that stick at 65504 where they overflow; none if nothing overflows."""
    if np.abs(x).max(initial=0) > LARGEST_HALF:
        clipped = half(np.clip(x, -LARGEST_HALF, LARGEST_HALF))
        yield Reading("half activations, clamped", clipped, fault="scale-f16-overflow")
    if x.shape[1] % 32 == 0 and np.abs(x).max(initial=0) / 127 > LARGEST_HALF:
        for rounding in ("even", "away"):
            how = Quantizer(32, "127/amax", rounding, "float")
            runs = quantize_runs(x.astype(np.float32), how)
            scale = half(np.minimum(runs.scale, LARGEST_HALF)).repeat(32, axis=1)
            name = "8-bit codes, clamped half scale"
            yield Reading(name, runs.codes * scale, runs.codes.astype(float), fault="scale-f16-overflow")


# --- sums -----------------------------------------------------------------------------------


def ways(x: Wide, readings: list[Reading], grain: int, needs_sums: bool) -> list[Way]:
    """All ways: every reading with every block sum that a kernel may have used with it."""
    ways: list[Way] = []
    for i, reading in enumerate(readings):
        sums: Sums = "none" if reading.codes is None or not needs_sums else "codes"
        ways.append(Way(i, reading.name, sums, fault=reading.fault))
        if reading.codes is not None and needs_sums:
            ways += _with_sums(x, i, reading, grain)
    return ways


def _with_sums(x: Wide, i: int, reading: Reading, grain: int) -> Iterator[Way]:
    assert reading.codes is not None
    value_sums, codes, x_sums = (by_run(v, grain).sum(axis=-1) for v in (reading.values, reading.codes, x))
    assert reading.unrounded is not None or reading.fault
    wide = value_sums if reading.unrounded is None else by_run(reading.unrounded, grain).sum(axis=-1)
    size = np.abs(by_run(x, grain)).sum(axis=-1)
    for label, s, error, sums in (
        ("s = half(d·Σq)", wide, 2e-7 * np.abs(wide), "codes"),
        ("s = half(half(d)·Σq)", value_sums, 2e-7 * np.abs(value_sums), "codes"),
        ("s = half(Σx)", x_sums, 6e-7 * size, "floats"),
        ("s = Σx", x_sums, None, "floats"),
    ):
        used = s if error is None else half(s)
        moves = None if error is None else half(s + error) - half(s - error)
        yield Way(i, f"{reading.name}, {label}", sums, value_sums - used, moves, reading.fault)  # type: ignore[arg-type]
        if error is not None and np.abs(s).max(initial=0) > LARGEST_HALF:
            stuck = half(np.clip(s, -LARGEST_HALF, LARGEST_HALF))
            name = f"{reading.name}, {label} clamped at 65504"
            yield Way(i, name, sums, value_sums - stuck, fault="scale-f16-overflow")  # type: ignore[arg-type]
    if reading.fault is None:
        for label, used in (("Σq", codes), ("half(Σq)", half(codes))):
            name = f"{reading.name}, s = {label} without its scale"
            yield Way(i, name, "codes", value_sums - used, fault="sum-not-scaled")
