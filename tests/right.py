"""Products that must be right, as the oracle judges them, and products of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlq.arrays.array import QuantArray
from ggmlq.dispatch.ladder import Rung
from ggmlq.formats import FORMATS
from ggmlq.reference.judgement import judged


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
