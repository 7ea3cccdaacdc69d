"""ROPE: pairs of elements rotated by angles that grow with the position, in all of ggml's modes.

Pairs are neighbours (mode 0) or half of the rotated part apart (the others). Models with several kinds of
positions (mode bit 8) divide pairs into sections, each with its own; YaRN mixes two angles by the pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .number import UNIT, Number
from .registry import Call, Result, oracle, settled

NEOX, MULTI, VISION, INTERLEAVED = 2, 8, 24, 40
WORDS = (
    "-:i dims:i mode:i -:i context:i base:f scale:f mix:f factor:f fast:f slow:f "
    "section0:i section1:i section2:i section3:i offset:i"
)


def _sectors(p: Mapping[str, Any], pairs: int) -> tuple[Any, Any]:
    """The index of each pair's position, of four, and its exponent: its number, counted anew in vision."""
    sections = [int(p[f"section{i}"]) for i in range(4)]
    sector = np.arange(pairs) % max(sum(sections), 1)
    ends = np.cumsum(sections)
    if p["mode"] == INTERLEAVED:
        kind = np.full(pairs, 3)
        for i in range(3):
            kind[(sector % 3 == i) & (sector < 3 * sections[i])] = i
    else:
        kind = np.searchsorted(ends[:3], sector, side="right")
    number = np.arange(pairs)
    if p["mode"] == VISION:
        number = sector - np.concatenate([[0], ends])[kind]
    return kind, number


def _angles(c: Call, tokens: int, pairs: int) -> Number:
    """The angle [tokens, pairs] of each pair before any scale, divided by the model's factors."""
    p = c.params
    positions = c.array(1).astype(np.float64).reshape(-1)
    if p["mode"] & MULTI:
        kind, number = _sectors(p, pairs)
        at = positions.reshape(-1, tokens)[kind].T  # [tokens, pairs]
    else:
        number = np.arange(pairs)
        at = np.broadcast_to(positions[:tokens, None], (tokens, pairs))
    value = at * float(p["base"]) ** (-2.0 * number / p["dims"])
    # The ratio of neighbouring angles is a power, whose error counts once for each pair before this one.
    ratio = (4 + 2 * math.log(max(p["base"], 1.0) + 1) * 2 / p["dims"]) * UNIT
    angles = Number(value, np.abs(value) * number * ratio)
    if c.has(2):
        angles = angles / np.resize(c.array(2).astype(np.float64).reshape(-1)[:pairs], pairs)
    return angles


def _correction(p: Mapping[str, Any], rotations: float) -> float:
    """The pair at which YaRN's ramp begins or ends: where so many rotations fit into the context."""
    room = p["context"] / (rotations * 2 * math.pi)
    return float(p["dims"] * math.log(room) / (2 * math.log(p["base"])))


def _cos_and_sin(c: Call, tokens: int, pairs: int) -> tuple[Number, Number]:
    """Cosine and sine of each pair, with YaRN's angle and length."""
    p = c.params
    away = _angles(c, tokens, pairs)
    scale, length = p["scale"], p["factor"]
    angle = away * scale if scale != 1 else away
    if p["mix"] != 0:
        low = max(0.0, float(math.floor(_correction(p, p["fast"]))))
        high = min(p["dims"] - 1.0, float(math.ceil(_correction(p, p["slow"]))))
        ramp = (np.arange(pairs) - low) / max(0.001, high - low)
        mix = Number((1 - np.clip(ramp, 0, 1)) * p["mix"], 4 * UNIT)
        angle = angle * (1.0 - mix) + away * mix
        length = length * (1 + 0.1 * math.log(1 / scale))
    size = Number(length, 4 * UNIT * abs(length)) if p["mix"] != 0 else Number(length)
    return angle.cos() * size, angle.sin() * size


@oracle("ROPE", "ROPE_BACK", sources=3, words=WORDS, rowwise=False)
def rope(c: Call) -> Result:
    """Pairs of [.., tokens, heads, D] rotated by their angles; elements outside of the rotated part stay."""
    x, p = c.number(0), c.params
    tokens, width = x.shape[-3], x.shape[-1]
    dims, offset = p["dims"], p.get("offset", 0)
    vision = p["mode"] == VISION
    pairs = width // 2 if vision else dims // 2
    first = offset + (2 if p["mode"] == 0 else 1) * np.arange(pairs)
    second = first + (1 if p["mode"] == 0 else pairs)
    cos, sin = (part.map(lambda v: v[:, None, :]) for part in _cos_and_sin(c, tokens, pairs))
    if c.op == "ROPE_BACK":
        sin = -sin
    a, b = x[..., first], x[..., second]
    value, error = x.value.copy(), np.zeros(x.shape)
    for at, rotated in ((first, a * cos - b * sin), (second, a * sin + b * cos)):
        value[..., at], error[..., at] = rotated.value, rotated.error
    return settled(Number(value, error), c.kind)
