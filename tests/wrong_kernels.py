"""Kernels in plain loops, right ones and wrong ones: what ``gq.diagnose`` is tried on.

Written from ggml's structs alone, byte by byte (wrong_loops.py). They share no code with the diagnosis: no
descriptor, no oracle, no hypothesis. Numba only makes the loops bearable.

``run`` multiplies in one of two conventions of activations ("cpu": 127/amax, to nearest even,
half scales, or float scales over 256 for K-quants; "cuda": x/d, halves away, half scales, and block
sums of the floats as halves) and in one of two orders of summation.
"""

from __future__ import annotations

import numpy as np
from wrong_loops import NUMBER, ROUNDING, product

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q3_K", "q4_K", "q6_K")
BLOCK = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32, "q3_K": 256, "q4_K": 256, "q6_K": 256}
BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "q3_K": 110, "q4_K": 144, "q6_K": 210}
GROUP = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32, "q3_K": 16, "q4_K": 32, "q6_K": 16}
ZERO = {"q4_0": 8, "q4_1": 0, "q5_0": 16, "q5_1": 0, "q8_0": 0, "q3_K": 4, "q4_K": 0, "q6_K": 32}
ID = {name: i for i, name in enumerate(FORMATS)}


def quantize(x, convention, run, fault, variant):
    """Activations as codes, scales (a value each run), and sums of 32 (or 16) as the convention has them."""
    m, k = x.shape
    runs = x.reshape(m, k // run, run)
    largest = np.abs(runs).max(axis=-1).astype(np.float32)
    d = (largest / np.float32(127)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if convention == "cpu":
            inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0)).astype(np.float32)
            v = (runs * inverse[..., None]).astype(np.float32)
            q = np.rint(v)
        else:
            v = np.where(d[..., None] > 0, runs / d[..., None], 0).astype(np.float32)
            q = np.sign(v) * np.floor(np.abs(v) + np.float32(0.5))
        if fault == ROUNDING:
            q = np.trunc(v) if variant % 3 == 0 else np.floor(v)
        if fault == ROUNDING and variant % 3 == 2:  # to 128 instead of 127
            d = (largest / np.float32(128)).astype(np.float32)
            q = np.rint(runs / np.where(d > 0, d, 1)[..., None])
        kept = d if run > 32 else d.astype(np.float16).astype(np.float32)
    return np.clip(q, -128, 127).reshape(m, k).astype(np.int32), kept, d


def scales(raw, name):
    """The two leading halves of every block (d and m, or dmin), wherever they lie; [blocks, 2]."""
    size = BYTES[name]
    flat = np.ascontiguousarray(raw).reshape(-1, size)
    d_at = {"q3_K": 108, "q6_K": 208}.get(name, 0)
    out = np.zeros((len(flat), 2), np.float32)
    out[:, 0] = np.ascontiguousarray(flat[:, d_at : d_at + 2]).view(np.float16)[:, 0]
    if name in ("q4_1", "q5_1", "q4_K"):
        out[:, 1] = np.ascontiguousarray(flat[:, 2:4]).view(np.float16)[:, 0]
    return out


def run(name, raw, x, convention="cpu", order=0, fault="correct", variant=0, differ=None):
    """Y [M, N] float32 of weights raw [N, bytes] and x [M, K], with one fault.

    ``differ`` adds something that is no listed fault: "bf16-scales", "stochastic" rounding of
    activations, or "reduced-scales", rounded to half once more after a factor.
    """
    inside = fault if fault in NUMBER else "correct"
    k = x.shape[1]
    blocks = k // BLOCK[name]
    width = 256 if convention == "cpu" and BLOCK[name] == 256 else 32
    with np.errstate(all="ignore"):
        codes, d, unrounded = quantize(x, convention, width, NUMBER[inside], variant)
    halves = scales(raw, name)
    if differ == "bf16-scales":
        halves = ((halves.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    if differ == "stochastic":
        noise = np.random.default_rng(variant).uniform(-0.5, 0.5, codes.shape)
        v = x / np.repeat(np.where(d > 0, d, 1), width, axis=1)
        codes = np.clip(np.rint(v + noise), -127, 127).astype(np.int32)
    if differ == "reduced-scales":
        halves = (halves * 0.9995).astype(np.float16).astype(np.float32)
    dropped = 32 if variant % 2 == 0 or k <= 64 else 64
    bytes_ = np.ascontiguousarray(raw)
    if fault == "row-stride":
        bytes_, halves = wrong_stride(bytes_, name, blocks, variant)
    flat = bytes_.reshape(-1).astype(np.int64)
    y = product(
        ID[name], flat, halves, len(raw), blocks, BYTES[name], GROUP[name], ZERO[name], codes, d, unrounded,
        x.astype(np.float32), width, int(convention == "cuda"), order, NUMBER[inside], variant, dropped,
    )  # fmt: skip
    return around(y, x, fault, variant)


def wrong_stride(raw, name, blocks, variant):
    """The rows that a kernel with a wrong stride would see; it reads on into zeros at the end."""
    size = BYTES[name]
    stride = (blocks + (1, 2, -1)[variant % 3]) * size if blocks > 1 else 2 * size
    flat = np.concatenate([raw.reshape(-1), np.zeros(4 * raw.size + 1024, np.uint8)])
    rows = np.stack([flat[n * stride : n * stride + raw.shape[1]] for n in range(len(raw))])
    return rows, scales(rows, name)


def around(y, x, fault, variant):
    """Faults of stores, tiles and runs."""
    m, n = y.shape
    rng = np.random.default_rng(variant)
    tail = lambda size: max(1, min(size % 8 or 3, (size - 1) // 2))
    if fault == "m-tail":
        y[m - tail(m) :] = 0 if variant % 2 == 0 else rng.normal(0, 1, (tail(m), n))
    elif fault == "n-tail":
        y[:, n - tail(n) :] = 0 if variant % 2 == 0 else rng.normal(0, 1, (m, tail(n)))
    elif fault == "transposed":
        y = np.ascontiguousarray(y.T).reshape(m, n)
    elif fault == "rows-permuted":
        order = np.arange(n)
        if variant % 2 == 0:
            order[: n // 2 * 2] = order[: n // 2 * 2].reshape(-1, 2)[:, ::-1].reshape(-1)
        else:
            order[: n // 4 * 4] = order[: n // 4 * 4].reshape(-1, 2, 2).swapaxes(1, 2).reshape(-1)
        y = y[:, order]
    elif fault == "tokens-permuted":
        y = y[np.arange(m) ^ 1 if m % 2 == 0 else np.r_[np.arange(m - 1) ^ 1, m - 1]]
    elif fault == "tile-duplicated":
        tile = 4 if n < 16 else 8
        y = y.copy()
        if variant % 2 == 0:
            y[:, tile : 2 * tile] = y[:, :tile]
        else:
            high = max(2, m // 2)
            y[:high, tile : 2 * tile] = y[:high, :tile]
    elif fault == "scaled":
        y = y * np.float32((2.0, 0.5, 1 - 1 / 128, -1.0)[variant % 4])
    elif fault == "nan":
        y[rng.integers(0, m), rng.integers(0, n - 1)] = np.nan
        y[rng.integers(0, max(m - 1, 1)), rng.integers(0, n - 1)] = np.inf
    elif fault == "k-pad-nan":
        y[:, -1] = np.nan
        if variant % 2:
            y[:] = np.nan
    return y
