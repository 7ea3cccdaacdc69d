"""Diagnose: activations and scales misread in ways that kernels of other hands have shown."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks

SHAPES = ((9, 24, 1024), (1, 32, 512), (17, 16, 768))
F = np.float32


def some(name, shape, seed=0):
    """Activations, and weights of random bytes with scales of one size."""
    m, n, k = shape
    fmt = gq.formats[name]
    rng = np.random.default_rng(seed)
    blocks = random_blocks(fmt, n, k // fmt.block_size, seed).reshape(n, -1)
    for field, size in (("d", 0.01), ("dmin", 0.05), ("m", -0.05)):
        if field in blocks.dtype.names:
            blocks[field] = rng.uniform(0.5, 1.5, blocks.shape) * size
    q = gq.QuantArray.from_bytes(blocks.view(np.uint8).reshape(n, -1), name, (n, k))
    return rng.standard_normal((m, k)).astype(F), q


def opened(q):
    """Codes and scales of each group [N, groups, ...]; offsets are subtracted."""
    codes, scale, offset = q.format.unpack(q.blocks)
    n, group = len(q), q.format.group
    codes = codes.reshape(n, -1, group).astype(F)
    scale = scale.astype(F).reshape(n, -1)
    offset = np.zeros_like(scale) if offset is None else offset.astype(F).reshape(n, -1)
    return codes, scale, offset


def product(codes, scale, offset, xq, xd, sums=None):
    """One group after the other in float32; xq [M, K] codes, xd [M, K] their scales."""
    n, groups, group = codes.shape
    m = len(xq)
    xq, xd = xq.reshape(m, groups, group), xd.reshape(m, groups, group)[..., 0]
    y = np.zeros((m, n), F)
    for g in range(groups):
        y += (xq[:, g] @ codes[:, g].T) * (xd[:, g, None] * scale[:, g]).astype(F)
        y -= (sums[:, g] if sums is not None else xq[:, g].sum(-1) * xd[:, g])[:, None] * offset[:, g]
    return y


def quantized(x, run, rule=np.rint, signed=False, half=True):
    """Codes and scales [M, K] as ggml makes them: a scale of either sign for runs of 256."""
    runs = x.reshape(len(x), -1, run)
    at = np.abs(runs).argmax(-1)[..., None]
    extreme = np.take_along_axis(runs, at, -1)
    if signed:
        inverse = F(-127) / extreme
        v, d = runs * inverse, F(1) / inverse
    else:
        d = np.abs(extreme) / F(127)
        v = runs * (F(1) / d)
    codes = np.minimum(rule(v), F(127))
    d = d.astype(np.float16).astype(F) if half else d
    return codes.reshape(x.shape), np.broadcast_to(d, runs.shape).reshape(x.shape)


def kernel(x, q, run=32, parts=None, **how):
    xq, xd = quantized(x, run, half=run == 32, **how)
    return product(*(parts or opened(q)), xq, xd)


# --- rounding -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0", "q5_1", "q4_K", "q3_K", "q6_K"])
def test_plus_a_half_and_cut_off(name, shape):
    x, q = some(name, shape)
    run = q.format.block_size
    found = gq.diagnose(kernel(x, q, run, rule=lambda v: np.trunc(v + F(0.5)), signed=run == 256), x, q)
    assert found.fault == "activation-rounding", found.text


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("rule", [np.floor, np.trunc, np.ceil])
@pytest.mark.parametrize("name", ["q4_K", "q6_K"])
def test_runs_of_256_cut_off_beside_a_signed_scale(name, rule):
    x, q = some(name, SHAPES[0], 1)
    found = gq.diagnose(kernel(x, q, 256, rule=rule, signed=True), x, q)
    assert found.fault == "activation-rounding", found.text


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q3_K"])
@pytest.mark.parametrize("rule", [lambda v: np.floor(v + F(0.5)), np.rint])
@pytest.mark.parametrize("signed", [False, True])
def test_right_roundings_are_left_alone(name, rule, signed):
    x, q = some(name, SHAPES[0], 2)
    for ties in (x, np.round(x * 8) / 8 * F(127 / 128)):
        found = gq.diagnose(kernel(ties, q, q.format.block_size, rule=rule, signed=signed), ties, q)
        assert found.fault == "correct", found.text


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", ["q4_K", "q5_K", "q2_K"])
def test_sums_of_runs_of_256_without_their_scale(name, signed):
    x, q = some(name, SHAPES[0], 3)
    xq, xd = quantized(x, 256, signed=signed, half=False)
    sums = xq.reshape(len(x), -1, q.format.group).sum(-1)
    found = gq.diagnose(product(*opened(q), xq, xd, sums), x, q)
    assert found.fault == "sum-not-scaled", found.text


# --- scales of neighbours -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("end", ["itself", "zero", "wraps"])
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q6_K", "q4_K", "q4_1"])
def test_scale_of_a_neighbour_in_one_flat_array(name, end, step):
    for shape in SHAPES:
        x, q = some(name, shape, 4)
        blocks = q.blocks.copy()
        d = blocks["d"].reshape(-1).copy()
        moved, last = np.roll(d, step), 0 if step == 1 else -1
        if end != "wraps":
            moved[last] = d[last] if end == "itself" else 0
        blocks["d"] = moved.reshape(blocks["d"].shape)
        seen = gq.QuantArray.from_bytes(blocks.view(np.uint8).reshape(q.shape[0], -1), name, q.shape)
        found = gq.diagnose(kernel(x, seen, q.format.block_size), x, q)
        assert found.fault == "scale-neighbour", found.text


def test_a_last_row_of_y_without_the_end_of_k_is_no_neighbours_scale():
    x, q = some("q4_0", (33, 40, 768), 8)
    x = np.random.default_rng(8).uniform(-1, 1, x.shape).astype(F)  # all blocks of x have like scales
    short = x.copy()
    short[-1, -256:] *= F(1e-20)  # nothing beside the rest
    assert gq.diagnose(kernel(short, q), x, q).fault != "scale-neighbour"


# --- sub-scales -----------------------------------------------------------------------------


def six_bits(q, change):
    """q4_K's scales and minima put together; `change` gets their low and high parts."""
    s = q.blocks["scales"].reshape(*q.blocks.shape, 12).astype(int)
    plain = [s[..., :4] & 63, s[..., 4:8] & 63]
    low = [s[..., 8:] & 15, s[..., 8:] >> 4]
    high = [s[..., :4] >> 6, s[..., 4:8] >> 6]
    plain, low, high = change(s, plain, low, high)
    sub = [np.concatenate([p, a | b << 4], -1) for p, a, b in zip(plain, low, high, strict=True)]
    d, dmin = (q.blocks[f].astype(F)[..., None] for f in ("d", "dmin"))
    return (opened(q)[0], (d * sub[0]).reshape(len(q), -1), (dmin * sub[1]).reshape(len(q), -1))


SIX = {
    "low exchanged": lambda s, plain, low, high: (plain, low[::-1], high),
    "no mask": lambda s, plain, low, high: ([s[..., :4], s[..., 4:8]], low, high),
    "no mask of the low part": lambda s, plain, low, high: (plain, [s[..., 8:], low[1]], high),
    "high rotated": lambda s, plain, low, high: (plain, low, [np.roll(h, -1, -1) for h in high]),
    "low rotated": lambda s, plain, low, high: (plain, [np.roll(h, 1, -1) for h in low], high),
    "high of the scales rotated": lambda s, plain, low, high: (
        plain, low, [np.roll(high[0], -1, -1), high[1]],
    ),
}  # fmt: skip


def test_six_bits_rightly_put_together():
    _, q = some("q4_K", SHAPES[0], 5)
    found = six_bits(q, lambda s, *parts: parts)
    assert all(np.array_equal(a, b) for a, b in zip(found, opened(q), strict=True))


@pytest.mark.slow
@pytest.mark.drawn(5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mistake", SIX)
def test_six_bits_put_together_wrongly(mistake, shape):
    x, q = some("q4_K", shape, 6)
    found = gq.diagnose(kernel(x, q, 256, parts=six_bits(q, SIX[mistake])), x, q)
    assert found.fault == "sub-scale-unpack", found.text


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_byte_and_shift_of_high_bits_exchanged(shape):
    x, q = some("q3_K", shape, 7)
    s = q.blocks["scales"].reshape(*q.blocks.shape, 12).astype(int)
    j = np.arange(16)
    low = np.where(j < 8, s[..., j % 8] & 15, s[..., j % 8] >> 4)
    right, wrong = (low | (s[..., 8 + a] >> 2 * b & 3) << 4 for a, b in ((j % 4, j // 4), (j // 4, j % 4)))
    codes, scale, offset = opened(q)
    right, wrong = (
        (q.blocks["d"].astype(F)[..., None] * (v - 32)).reshape(scale.shape) for v in (right, wrong)
    )
    assert np.array_equal(right, scale)
    found = gq.diagnose(kernel(x, q, 256, parts=(codes, wrong, offset)), x, q)
    assert found.fault == "sub-scale-unpack", found.text
