"""The driver of kernels that go on from a state: short convolutions, and the gated delta rule.

Each sequence of a step has arrays before its rows and others behind them; a kernel reads those and writes
these, so both are there when it ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..machine.kernels import kernel
from ..machine.tables import Address, address
from ..machine.workers import keep, scratch, share_kernel
from .call import Floats, float_bits

COLUMNS = 64  # of a part of a convolution: a multiple of any vector
LANES = 16  # columns of a head are a multiple of it


class Convolution(NamedTuple):
    """Arguments of ``convolution.convolved``: rows of T tokens, and the rows before them."""

    x: Address  # [T, width], floats from row to row: pitch
    pitch: int
    factor: Address  # [T, width] of the same pitch, by which x is multiplied before; or 0
    gate: Address  # likewise, by which results are multiplied; or 0
    weights: Address  # [width, taps]
    before: Address  # [taps - 1, width]
    behind: Address  # receives the last rows
    out: Address  # [T, width]
    tokens: int
    width: int
    taps: int


def convolved(x: Floats, weights: Floats, pasts: Any, silu: bool) -> Floats:
    """Rows [T, C], each weighted by [C, K] with those before it."""
    return _convolved(x, None, None, weights, pasts, silu)


def short_convolution(parts: Floats, weights: Floats, pasts: Any) -> Floats:
    """The rows c ∘ convolution(b ∘ z) of rows [T, 3 C], which are b, c and z."""
    width = len(weights)
    b, c, z = (parts[:, first : first + width] for first in (0, width, 2 * width))
    return _convolved(z, b, c, weights, pasts, False)


def _convolved(
    x: Floats, factor: Floats | None, gate: Floats | None, weights: Floats, pasts: Any, silu: bool
) -> Floats:
    keep(weights)
    assert x.dtype == weights.dtype == np.float32, "rows are float32"
    out: Floats = scratch(x.shape, np.float32)
    units = -(-x.shape[1] // COLUMNS)
    for rows, before, behind in pasts:
        more = (0 if one is None else address(one[rows]) for one in (factor, gate))
        arguments = Convolution._make((
            address(x[rows]), x.strides[0] // 4, *more, address(weights), address(before[0]),
            address(behind[0]), address(out[rows]), rows.stop - rows.start, *weights.shape,
        ))  # fmt: skip
        share_kernel(kernel("layers.convolution.convolved", silu), arguments, units)
    return out


class Delta(NamedTuple):
    """Arguments of ``delta.ruled``: T tokens of a layer with the gated delta rule."""

    mixed: Address  # queries and keys of ``groups`` heads, values of all, floats from token to token: pitch
    pitch: int
    z: Address  # gates of results, likewise
    z_pitch: int
    share: Address  # of what is new, as a product gives it
    share_pitch: int
    speed: Address  # of forgetting, likewise
    speed_pitch: int
    run: int  # heads whose numbers of these follow each other
    bias: Address  # [heads] of the speed
    decay: Address  # [heads], factors of it
    norm: Address  # [width], weights of the norm
    before: Address  # [heads, width, width]: a row for each column of values
    behind: Address
    out: Address  # [T, heads · width]
    tokens: int
    heads: int
    groups: int
    width: int
    turns: int  # 1: heads take those of keys in turns
    epsilon: int  # bits of a float32


def delta_net(mixed: Floats, z: Floats, gates: tuple[Floats, Floats], net: Any, pasts: Any) -> Floats:
    """Gated results [T, H · D] of the delta rule, whose states go on; see ``Net`` in the model's room."""
    share, speed = gates
    for vector in (net.bias, net.decay, net.norm):
        keep(vector)
    heads, width = len(net.bias), len(net.norm)
    out: Floats = scratch((len(mixed), heads * width), np.float32)
    for rows, before, behind in pasts:
        places = [word for x in (mixed, z, share, speed) for word in (address(x[rows]), x.strides[0] // 4)]
        vectors = map(address, (net.bias, net.decay, net.norm, before[1], behind[1], out[rows]))
        arguments = Delta._make((
            *places, net.run, *vectors, rows.stop - rows.start, heads, net.groups, width, int(net.turns),
            float_bits(net.epsilon),
        ))  # fmt: skip
        share_kernel(kernel("layers.delta.ruled"), arguments, heads)
    return out
