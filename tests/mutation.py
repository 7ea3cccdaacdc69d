"""The cases of the mutation suite, and what diagnose makes of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import wrong_kernels as wrong

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks

SHAPES = ((9, 33, 512), (5, 24, 768), (17, 12, 1280))  # M, N, K
FEW = ("q4_0", "q5_0", "q5_1", "q8_0", "q4_K", "q6_K")
DIFFERENCES = ("bf16-scales", "stochastic", "reduced-scales")
FAULTS = {
    "nibble-order": ("q4_0", "q4_1", "q5_0", "q5_1", "q4_K", "q6_K", "q3_K"),
    "offset-missing": ("q4_0", "q5_0", "q6_K", "q3_K"),
    "offset-twice": ("q4_0", "q5_0", "q6_K", "q3_K"),
    "offset-sign": ("q4_0", "q5_0", "q6_K", "q4_1", "q4_K"),
    "sum-missing": ("q4_1", "q5_1"),
    "min-ignored": ("q4_K",),
    "sum-not-scaled": ("q4_0", "q5_0", "q4_1", "q5_1", "q4_K"),
    "sum-of-codes-vs-floats": ("q4_1", "q5_1"),
    "high-bits": ("q5_0", "q5_1", "q6_K", "q3_K"),
    "nibbles-exchanged": ("q4_0", "q4_1", "q5_0", "q5_1", "q4_K", "q6_K"),
    "sum-order": ("q4_K",),
    "sum-carried": ("q4_0", "q5_0", "q8_0"),
    "scale-rounding": ("q4_0", "q5_0", "q8_0"),
    "sub-scale-order": ("q4_K", "q6_K", "q3_K"),
    "sub-scale-unpack": ("q4_K", "q3_K"),
    "int8-saturation": ("q8_0", "q6_K"),
}
EVERYWHERE = (
    "scale-neighbour", "activation-rounding", "f16-accumulation", "k-tail-dropped", "k-pad-nan", "m-tail",
    "n-tail", "row-stride", "transposed", "rows-permuted", "tokens-permuted", "tile-duplicated", "race",
    "scaled", "nan", "scale-f16-overflow", "unwritten", "correct",
)  # fmt: skip

ALONE = (
    "correct", "race", "unwritten", "nan", "k-pad-nan", "scale-f16-overflow", "sum-of-codes-vs-floats",
)  # fmt: skip


def case(fault, name, shape, convention, order, seed, variant, differ=None):
    """y, x, q, and how diagnose is called."""
    m, n, k = shape
    k = 1280 if fault == "k-pad-nan" else max(k // wrong.BLOCK[name], 1) * wrong.BLOCK[name]
    rng = np.random.default_rng(seed)
    blocks = random_blocks(gq.formats[name], n, k // wrong.BLOCK[name], seed)
    raw = blocks.view(np.uint8).reshape(n, -1)
    x = rng.standard_normal((m, k)).astype(np.float32)
    if fault == "int8-saturation":
        x = np.abs(x) + np.float32(0.5)
    if fault == "scale-f16-overflow":
        x[m // 2] += np.float32(9e4 if seed % 2 else 1.2e7)
        convention = "cuda"
    q = gq.QuantArray.from_bytes(raw, name, (n, k))
    y = wrong.run(name, raw, x, convention, order, fault, variant, differ)
    asked = {}
    if fault == "sum-of-codes-vs-floats":
        asked["arithmetic"] = "ggml-mmq" if convention == "cuda" else "ggml-cpu"
    if fault == "race":
        other = y.copy()
        other[: m // 2, n // 2 :] += rng.standard_normal((m // 2, n - n // 2)).astype(np.float32)
        asked["repeats"] = (other,)
    if fault == "unwritten":
        asked["unwritten"] = np.zeros(y.shape, np.bool_)
        at = (slice(None), slice(n - 3, n)) if variant % 2 else (slice(m // 2, m), slice(4, n // 2))
        y[at], asked["unwritten"][at] = np.nan, True
    if fault == "scale-f16-overflow":
        y = overflowed(name, raw, x, order, seed)
    return y, x, q, asked


def overflowed(name, raw, x, order, seed):
    """A kernel whose half sum (or scale) overflows: the whole row is infinite or NaN."""
    y = wrong.run(name, raw, np.where(np.abs(x) > 1e4, 1, x).astype(np.float32), "cuda", order)
    y[np.abs(x).max(axis=1) > 1e4] = np.inf if seed % 2 else np.nan
    return y


def cases(seed, formats, shapes=SHAPES, times=1):
    """Fault, format, shape, convention, order, seed and variant of each."""
    number = 0
    for fault in (*FAULTS, *EVERYWHERE):
        for name in FAULTS.get(fault, formats):
            if name not in formats:
                continue
            for _ in range(times):
                for convention in ("cpu", "cuda"):
                    number += 1
                    shape = shapes[number % len(shapes)]
                    yield fault, name, shape, convention, number // 2 % 2, seed + number, number // 3


def mixtures(seed, formats):
    """Faults together with something that no entry lists."""
    number = 0
    for fault in (*FAULTS, *EVERYWHERE):
        if fault in ALONE:
            continue
        names = [name for name in FAULTS.get(fault, formats) if name in formats]
        for differ in DIFFERENCES if names else ():
            number += 1
            name = names[number % len(names)]
            convention = ("cpu", "cuda")[number % 2]
            shape = SHAPES[number % len(SHAPES)]
            yield fault, name, shape, convention, number // 2 % 2, seed + number, number // 3, differ


def named(cases):
    """(fault, name) of every case, counted; and those that were not named rightly, with their diagnosis.

    Cases are (fault, label, y, x, weights, how diagnose is called).
    """
    counts, missed = Counter(), []
    for fault, label, y, x, q, more in cases:
        diagnosis = gq.diagnose(y, x, q, **more)
        counts[fault, diagnosis.fault] += 1
        if diagnosis.fault != fault:
            missed.append((label, diagnosis, x, q))
    return counts, missed


def tried(cases):
    """Counts of all cases, and those that were not named rightly."""
    return named((args[0], args, *case(*args)) for args in cases)
