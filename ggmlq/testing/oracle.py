"""Judges a product against the oracle, row by row, in its kernel's arithmetic; products of llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..dispatch.ladder import Rung, choose
from ..dispatch.problems import Linear
from ..formats import FORMATS

# How far a kernel may be from the oracle on its own operands, by what it sums in.
TOLERANCE = {"int32": 1e-11, "f32": 1e-10, "f16": 2e-7}
# In f16r the sum of a run is rounded to a half twice, by 2^-11 at most; one run may be nearly all of a row.
OF_HALF_SUMS = 2.0**-20


@dataclass(frozen=True)
class Judgement:
    """The distance of each row of weights from the oracle, and its bound."""

    rung: Rung
    errors: NDArray[np.float64]  # [N], as reference.row_errors has them
    bound: float

    @property
    def worst(self) -> float:
        """The error of the worst row; 0 if there is none."""
        return float(self.errors.max(initial=0))

    @property
    def right(self) -> bool:
        """True where no row is beyond its bound."""
        return bool((self.errors <= self.bound).all())  # NaN is beyond


def judged(y: Any, x: Any, q: QuantArray, rung: Rung | None = None) -> Judgement:
    """The judgement of a product y against the oracle in the arithmetic of its rung.

    Without a rung it is the one that ``auto`` takes for this product.
    """
    if rung is None:
        m, (n, k), kind = math.prod(x.shape[:-1]), q.shape, q.device.partition(":")[0]
        rung = choose(Linear.here(q.format, m, n, k, device=kind))
    want = reference.linear(x, q, rung.arithmetic)
    assert y.shape == want.shape, f"{q!r}: shape {y.shape}, expected {want.shape}"
    errors = reference.row_errors(to_host(y), want, to_host(x), q) if want.size else np.zeros(0)
    return Judgement(rung, errors, tolerance(rung))


def tolerance(rung: Rung) -> float:
    """The distance from the oracle that a rung's sums allow."""
    return OF_HALF_SUMS if rung.arithmetic == "f16r" else TOLERANCE[rung.accumulate]


def assert_right(y: Any, x: Any, q: QuantArray, rung: Rung | None = None) -> None:
    """A product must be as near to the oracle as the sums of its rung allow."""
    verdict = judged(y, x, q, rung)
    if not verdict.right:
        worst = int(np.argmax(verdict.errors))
        raise AssertionError(
            f"{q!r}, {verdict.rung.name}: row {worst} is off by {verdict.errors[worst]:.2e}, the bound is "
            f"{verdict.bound:.0e}; rows beyond it: {int((~(verdict.errors <= verdict.bound)).sum())}"
        )


# --- products that llama.cpp computed, with their operands, from tests/golden -------------------

# How llama.cpp multiplies on each backend, and up to which number of rows of activations.
PROGRAMS = {"cpu": {"ggml-cpu": 1 << 30}, "cuda": {"ggml-mmvq": 8, "ggml-mmq": 1 << 30}}


@dataclass(frozen=True)
class Product:
    """A product from one run of llama.cpp, with its operands."""

    backend: str
    arithmetic: str
    rows: str  # which weights
    x: NDArray[np.float32]  # [M, K]
    q: QuantArray  # [N, K]
    y: NDArray[np.float32]  # [M, N]


def products(folder: Path, fmt: str, backend: str | None = None) -> Iterator[Product]:
    """All runs with weights of a format, from ``products.npz`` and ``<format>.npz``."""
    with np.load(folder / "products.npz") as runs, np.load(folder / f"{fmt.lower()}.npz") as blocks:
        for key in runs.files:
            device, _, rest = key.partition("/")
            if device not in PROGRAMS or backend not in (None, device):
                continue
            name, rows, m = rest.split("/")
            if name != fmt:
                continue
            x = runs[f"{rows}/x"][: int(m[1:])]
            name = f"{fmt}/{rows}/blocks"
            raw = runs[name] if name in runs else blocks[f"{rows}/blocks"]
            q = QuantArray.from_bytes(np.ascontiguousarray(raw), FORMATS[fmt], (len(raw), x.shape[1]))
            arithmetic = next(a for a, most in PROGRAMS[device].items() if len(x) <= most)
            yield Product(device, arithmetic, rows, x, q, runs[key])
