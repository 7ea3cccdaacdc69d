"""Rows of random floats of many kinds, as inputs for tests of encoders and kernels.

Each kind aims at one weakness: a rounding rule, a sign, a scale that vanishes or overflows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Maker = Callable[[Generator, int, int], NDArray[np.floating]]


def _bf16(rng: Generator, n: int, k: int) -> NDArray[np.float32]:
    x = rng.standard_normal((n, k), np.float32)
    upper: NDArray[np.uint32] = x.view(np.uint32) & np.uint32(0xFFFF0000)
    return upper.view(np.float32)


def _near_powers(rng: Generator, n: int, k: int) -> NDArray[np.float32]:
    """Runs of 32 within 30 ulp of a power of two: exponents found by a logarithm slip here."""
    power: NDArray[np.float32] = np.exp2(rng.integers(-40, 12, (n, k // 32)).astype(np.float32))
    ulps = rng.integers(-30, 31, power.shape, np.int32)
    near: NDArray[np.float32] = (power.view(np.int32) + ulps).view(np.float32)
    return near.repeat(32, axis=1)


def _ties(rng: Generator, n: int, k: int) -> NDArray[np.floating]:
    """Half-integers beside a 127: codes of 8 bits lie exactly half way, to both sides."""
    x = rng.integers(-253, 254, (n, k)) / 2
    x[:, ::32] = 127 * rng.choice([-1, 1], (n, -(-k // 32)))
    x[:, 0] = -127  # the first of equals is the extreme element of a longer block
    return x


def _faint(rng: Generator, n: int, k: int) -> NDArray[np.floating]:
    """Runs of 32 to both sides of 1e-15, below which ggml's searches take a run for zeros."""
    size = 10 ** rng.uniform(-18, -13, (n, k // 32))
    return rng.standard_normal((n, k)) * size.repeat(32, axis=1)


KINDS: dict[str, Maker] = {
    "normal": lambda rng, n, k: rng.standard_normal((n, k)),
    "uniform": lambda rng, n, k: rng.uniform(-1, 1, (n, k)),
    "heavy_tails": lambda rng, n, k: rng.standard_t(2, (n, k)),
    "bf16": _bf16,  # exact halfway cases are common
    "f16": lambda rng, n, k: rng.standard_normal((n, k)).astype(np.float16),
    "half_integers": lambda rng, n, k: rng.integers(-16, 17, (n, k)) / 2,
    "integers": lambda rng, n, k: rng.integers(-127, 128, (n, k)).astype(np.float32),
    "powers_of_two": lambda rng, n, k: np.exp2(rng.integers(-20, 8, (n, k))) * rng.choice([-1, 1], (n, k)),
    "near_powers": _near_powers,
    "ties": _ties,
    "spikes": lambda rng, n, k: np.where(rng.random((n, k)) < 1 / 32, rng.standard_normal((n, k)), 0),
    "outliers": lambda rng, n, k: rng.normal(0, 1e4, (n, k)),
    "small": lambda rng, n, k: rng.normal(0, 1e-8, (n, k)),
    "constant": lambda rng, n, k: rng.standard_normal((n, 1)).repeat(k, axis=1),
    "ramp": lambda rng, n, k: np.linspace(-1, 1, k) * rng.uniform(0.1, 4, (n, 1)),
    "zeros": lambda rng, n, k: np.zeros((n, k)),
    "negative_zeros": lambda rng, n, k: np.zeros((n, k)) * -1,
    "mixed_zeros": lambda rng, n, k: rng.choice([0.0, -0.0], (n, k)),
    # From here on scales vanish or overflow as halves.
    "faint": _faint,
    "tiny": lambda rng, n, k: rng.standard_normal((n, k)) * np.exp2(rng.uniform(-149, -110, (n, 1))),
    "huge": lambda rng, n, k: rng.standard_normal((n, k)) * np.exp2(rng.uniform(10, 120, (n, 1))),
}

MODEST = [kind for kind in KINDS if kind not in ("faint", "tiny", "huge")]


def rows(kind: str, n: int, k: int, seed: int = 0) -> NDArray[np.float32]:
    """[n, k] float32 rows of a kind, the same for the same seed."""
    return np.ascontiguousarray(KINDS[kind](np.random.default_rng(seed), n, k), np.float32)
