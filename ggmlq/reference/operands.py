"""Weights and activations of an oracle's product, with the roundings of the program that is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..errors import UnsupportedError
from ..formats import FORMATS, BlockFormat, Format
from ..formats._round import half_away, half_even, signed_extreme
from ..formats.scalars import bfloat16_bits
from .rules import Float, Quantizer, Rule, rule

Wide = NDArray[np.float64]
ACTIVATION_FORMATS = ("q8_0", "q8_1", "q8_K")


@dataclass(frozen=True)
class Weights:
    """Rows of weights: ``scale * codes - offset``, or plain values where a program decodes them."""

    codes: NDArray[np.int8] | None  # [N, K], as the program multiplies them
    scale: Wide | None  # [N, K // group]
    offset: Wide | None  # [N, K // group], or None where codes and scale say all
    group: int  # weights that share a scale and an offset
    zero: int = 0  # stored code = value's code + zero; codes are the stored ones if rule.zero_in_code
    unit: Wide | None = None  # [N, K // group] the block's d, where integer sums are cut off
    values: Wide | None = None  # [N, K], where the program decodes first

    def __len__(self) -> int:
        rows = self.codes if self.values is None else self.values
        assert rows is not None
        return len(rows)


@dataclass(frozen=True)
class Activations:
    """Rows of activations: ``scale * codes``, or plain values in float arithmetics."""

    codes: NDArray[np.int8] | None  # [M, K]
    values: Wide | None  # [M, K]
    scale: Wide | None  # [M, K // run]
    sums: Wide | None  # [M, K // 32 (q2_K on MMQ: 16)] what the program keeps as s
    run: int  # activations that share a scale
    ties: NDArray[np.bool_] | None = None  # [M, K] codes that a rounding error may move by one
    steps: Wide | None = None  # [M, K // run] what a rounding error may move a scale that is kept as half

    def __len__(self) -> int:
        rows = self.codes if self.values is None else self.values
        assert rows is not None
        return len(rows)


def rounded(values: NDArray[Any], kind: Float) -> Wide:
    """Values as another float type holds them, in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "bf16":
            bits = bfloat16_bits(np.asarray(values, np.float32)).astype(np.uint32) << 16
            return bits.view(np.float32).astype(np.float64)
        if kind.startswith("tf32"):
            return _ten_bits(values, cut=kind == "tf32-cut")
        if kind == "int16":
            return _integers(values)
        if kind == "f16r":
            return _eleven_bits(values)
        dtype = {"f64": np.float64, "f32": np.float32, "f16": np.float16}[kind]
        return values.astype(dtype).astype(np.float64)


def _ten_bits(values: NDArray[Any], *, cut: bool) -> Wide:
    """Float32 with 10 bits of fraction: rounded, ties to even, or cut off. NaN and infinity stay."""
    values = np.array(values, np.float32, order="C")
    bits, finite = values.view(np.uint32), np.isfinite(values)
    if not cut:
        bits[finite] += 0xFFF + (bits[finite] >> 13 & 1)
    bits[finite] &= np.uint32(0xFFFFE000)
    return values.astype(np.float64)


def _integers(values: NDArray[Any]) -> Wide:
    """Multiples of 2**-13 of the power of two that the largest of 32 reaches, ties to even; 2**-126 at least.

    Where one of the 32 is not finite, all are NaN.
    """
    runs, largest = _runs(values)
    unit = np.ldexp(1.0, np.maximum(np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1] - 14, -126))
    integers: Wide = np.where(np.isfinite(largest), np.rint(runs / unit) * unit, np.nan)
    return integers.reshape(*values.shape[:-1], -1)[..., : values.shape[-1]]


def _runs(values: NDArray[Any]) -> tuple[Wide, Wide]:
    """Values in runs of 32, the last one filled up with zeros; the largest magnitude of each."""
    values = np.asarray(values, np.float32).astype(np.float64)
    runs = np.zeros((*values.shape[:-1], -(-values.shape[-1] // 32) * 32))
    runs[..., : values.shape[-1]] = values
    runs = runs.reshape(*values.shape[:-1], -1, 32)
    return runs, np.abs(runs).max(axis=-1, keepdims=True)


def _eleven_bits(values: NDArray[Any]) -> Wide:
    """Numbers of eleven bits, ties to even: halves without limits. NaN and infinity stay."""
    values = np.asarray(values, np.float32).astype(np.float64)
    fraction, exponent = np.frexp(values)
    numbers: Wide = np.where(
        np.isfinite(values), np.ldexp(np.rint(np.ldexp(fraction, 11)), exponent - 11), values
    )
    return numbers


def weights(q: QuantArray, arithmetic: str | Rule) -> Weights:
    """The rows of q [N, K] as a program with this arithmetic holds them."""
    how = rule(q.format, arithmetic)
    fmt = q.format
    if how.weights is not None:
        kind = np.float64 if how.weights == "f64" else np.float32
        with_scales = isinstance(fmt, BlockFormat) and how.scales == "bf16"
        values = _with_narrow_scales(q) if with_scales else fmt.decode(q.blocks, kind)
        return Weights(None, None, None, 1, values=rounded(values, how.weights))
    assert isinstance(fmt, BlockFormat)
    with np.errstate(invalid="ignore", over="ignore"):
        parts = fmt.unpack(q.blocks)
        codes = parts.codes.reshape(q.shape)
        scale = parts.scale.reshape(len(codes), -1).astype(np.float64)
        offset = None if parts.offset is None else parts.offset.reshape(scale.shape).astype(np.float64)
        if how.zero_in_code:
            codes, offset = codes + np.int8(fmt.zero), fmt.zero * scale
        if how.eighths:
            codes, scale, offset = _without_eighths(codes, scale, fmt.group)
        if how.scales == "half":
            scale = rounded(scale, "f16")
            offset = None if offset is None else rounded(offset, "f16")
    unit = None
    if how.truncate:
        per_block = fmt.block_size // fmt.group
        unit = q.blocks["d"].astype(np.float64).repeat(per_block, axis=-1)
    return Weights(codes, scale, offset, fmt.group, fmt.zero, unit)


def _with_narrow_scales(q: QuantArray) -> Wide:
    """Weights [N, K] made of scales and offsets that a kernel rounds to bfloat16 first.

    It takes the middle of the codes off them, so that a small part of the offset remains.
    """
    fmt = q.format
    assert isinstance(fmt, BlockFormat)
    with np.errstate(invalid="ignore", over="ignore"):
        parts = fmt.unpack(q.blocks)
        wide: Wide = parts.codes.reshape(*parts.scale.shape, fmt.group).astype(np.float64)
        scale = rounded(parts.scale, "bf16")[..., None]
        if parts.offset is None:
            wide *= scale
        else:
            full = np.full(fmt.dtype.itemsize, 255, np.uint8).view(fmt.dtype)
            middle = np.float32((int(fmt.unpack(full).codes.max()) + 1) // 2)
            rest = rounded(parts.offset - parts.scale * middle, "bf16")
            wide = (wide - middle) * scale - rest[..., None]
    return wide.reshape(q.shape)


def _without_eighths(codes: NDArray[np.int8], scale: Wide, group: int) -> tuple[NDArray[np.int8], Wide, Wide]:
    """Codes 8 g ± 1 as g + 1 = 0, 1, 2, with eight times the scale and the rest as an offset."""
    whole = np.rint(codes / 8).astype(np.int8)
    eighth = (codes - 8 * whole)[:, ::group]  # the same in the whole group
    return whole + np.int8(1), 8 * scale, 8 * scale * (1 - eighth / 8)


def activations(x: Any, fmt: str | int | Format, arithmetic: str | Rule) -> Activations:
    """Rows x [M, K] as a program holds them for weights of that format.

    ``x`` may be a QuantArray of q8_0, q8_1 or q8_K: then its codes, scales and (q8_1) sums are
    taken as they are.
    """
    how = rule(FORMATS[fmt], arithmetic)
    if isinstance(x, QuantArray):
        if x.format.name not in ACTIVATION_FORMATS:
            raise UnsupportedError(
                f"activations of {x!r}: quantized activations are q8_0, q8_1 or q8_K; "
                "pass one of these, or floats (x.dequantize())"
            )
        if how.quantizer is not None:
            return _already_quantized(x)
        x = x.dequantize(np.float64)
    if how.quantizer is None:
        return Activations(None, rounded(np.asarray(x), how.floats), None, None, 1)
    runs = quantize_runs(np.asarray(x, np.float32), how.quantizer)
    return Activations(runs.codes, None, runs.scale, runs.sums, how.quantizer.run, runs.ties, runs.steps)


def _already_quantized(x: QuantArray) -> Activations:
    blocks, run = x.blocks, x.format.block_size
    codes = blocks["qs"].reshape(x.shape)
    sums = blocks["s"].astype(np.float64) if x.format.name == "q8_1" else None
    return Activations(codes, None, blocks["d"].astype(np.float64), sums, run)


def decoded(a: Activations) -> Wide:
    """Activations [M, K] in float64: codes times scales (exact), or the values."""
    if a.values is not None:
        return a.values
    assert a.codes is not None
    assert a.scale is not None
    with np.errstate(invalid="ignore"):
        wide: Wide = a.codes * a.scale.repeat(a.run, axis=1)
    return wide


# --- activations to 8-bit codes, in the float32 steps of the program that is judged ---------------

Floats = NDArray[np.float32]
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
