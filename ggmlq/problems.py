"""The kinds of problems, one an operation: what its rungs are asked whether they take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .card import Card
from .formats import FORMATS, Format
from .ladder import Problem

SHOWN = (1, 8, 64, 512)  # rows of activations
ORDINARY = 4096  # N, and about K, where a list is of kernels for a format


@dataclass(frozen=True)
class Linear(Problem, op="linear"):
    """Floats times quantized weights; ``launch(x [M, K], weights [N, K], out float32 [M, N])``."""

    format: Format
    m: int  # rows of activations
    n: int  # rows of weights
    k: int  # length of both

    setting: ClassVar[str] = f"N=K={ORDINARY}"
    operands: ClassVar[str] = "x and q"
    moved: ClassVar[dict[str, str]] = {
        "cpu": 'x.get() and q.to("cpu")',
        "cuda": 'cupy.asarray(x) and q.to("cuda")',
    }

    def __str__(self) -> str:
        return f"{self.op}[{self.format.name}, M={self.m}, N={self.n}, K={self.k}, {self.device}]"

    @property
    def case(self) -> str:
        return f"M={self.m}"

    @classmethod
    def shown(cls, format: Any, device: str, card: Card | None) -> list[Linear]:
        fmt = FORMATS[format]
        k = fmt.block_size * (ORDINARY // fmt.block_size)
        return [cls(fmt, m, ORDINARY, k, device=device, card=card) for m in SHOWN]
