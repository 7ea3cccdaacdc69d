"""The kinds of problems, one for each operation, with the facts by which rungs accept or refuse them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

from ..base.devices import place_of
from ..codes import CODES
from ..errors import FormatError, ShapeError
from ..formats import FORMATS, Format
from .card import Card
from .ladder import Problem

SHOWN = (1, 8, 64, 512)  # rows of activations
ORDINARY = 4096  # N, and about K, where a list is of kernels for a format


@dataclass(frozen=True)
class Linear(Problem, op="linear"):
    """A product of floats with weights in blocks: x [M, K], q [N, K]."""

    format: Format
    m: int  # rows of activations
    n: int  # rows of weights
    k: int  # length of both
    narrow: bool = False  # activations have 16 bits, which some kernels read as they lie

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
    def shown(
        cls, format: Any, device: str, card: Card | None, shape: tuple[int, int] | None = None
    ) -> list[Linear]:
        fmt = FORMATS[format]
        n, k = shape or (ORDINARY, fmt.block_size * (ORDINARY // fmt.block_size))
        _check_blocks(fmt, k)
        return [cls(fmt, m, n, k, device=device, card=card) for m in SHOWN]

    def with_rows(self, rows: int) -> Self:
        return replace(self, m=rows)


INT32 = 2**31 - 1


class Operand(NamedTuple):
    """The facts of an array with scales that decide which kernels take it."""

    code: str
    r: int  # rows that share a scale
    c: int  # columns that do
    zeros: bool = False

    @classmethod
    def of(cls, s: Any) -> Operand:
        """The facts of a ScaledArray."""
        return cls(s.code.name, s.tiling.r, s.tiling.c, s.zeros is not None)


@dataclass(frozen=True)
class ScaledLinear(Problem, op="scaled_linear"):
    """A product of codes with scales: x [M, K], w [N, K]."""

    x: Operand
    w: Operand
    m: int  # rows of x
    n: int  # rows of w
    k: int  # length of both
    accumulate: str | None = None  # the dtype of sums, if the caller names one

    setting: ClassVar[str] = f"N=K={ORDINARY}"
    operands: ClassVar[str] = "x and w"
    moved: ClassVar[dict[str, str]] = {
        "cpu": 'x.to("cpu") and w.to("cpu")',
        "cuda": 'x.to("cuda") and w.to("cuda")',
    }

    @classmethod
    def of(cls, x: Any, w: Any, accumulate: str | None = None) -> ScaledLinear:
        """The problem of ScaledArrays [M, K] and [N, K] on one device."""
        device, card = place_of(w.codes)
        a, b = Operand.of(x), Operand.of(w)
        n, k = w.shape
        return cls(a, b, x.shape[0], n, k, accumulate, device=device, card=card)

    @property
    def integer(self) -> bool:
        """True for codes that are integers."""
        return CODES[self.w.code].kind == "integer"

    @property
    def group(self) -> int:
        """The number of products in a sum that share all scales."""
        return min(self.x.c, self.w.c, max(self.k, 1))

    @property
    def varies(self) -> bool:
        """True if scales change along K."""
        return self.group < self.k

    @property
    def largest_sum(self) -> float:
        """The largest magnitude that a sum of integers may have before scales, zero points included."""
        largest = [_largest(operand) for operand in (self.x, self.w)]
        return self.group * largest[0] * largest[1]

    @property
    def case(self) -> str:
        return f"{self.x.code} {self.x.r}×{self.x.c} · {self.w.code} {self.w.r}×{self.w.c}, M={self.m}"

    def __str__(self) -> str:
        x, w = (f"{o.code} {o.r}×{o.c}{' with zeros' if o.zeros else ''}" for o in (self.x, self.w))
        return f"scaled_linear[x {x}, w {w}, M={self.m}, N={self.n}, K={self.k}, {self.device}]"

    @classmethod
    def shown(
        cls, format: Any, device: str, card: Card | None, shape: tuple[int, int] | None = None
    ) -> list[ScaledLinear]:
        n, k = shape or (ORDINARY, ORDINARY)
        x, w = _ordinary_codes(format, k)
        return [cls(x, w, m, n, k, device=device, card=card) for m in SHOWN if x and w]

    def with_rows(self, rows: int) -> Self:
        return replace(self, m=rows)


def _ordinary_codes(name: str, k: int) -> tuple[Operand, Operand] | tuple[None, None]:
    """Activations and weights [N, k] of a code with ordinary tiles; None for codes of scales."""
    code = CODES[name]
    if code.kind == "scale":
        return None, None
    r, c = (128, 128) if code.kind == "float" else (1, k)
    return Operand(code.name, 1, c), Operand(code.name, r, c)


def _largest(operand: Operand) -> float:
    """The largest magnitude of a code less its zero point."""
    code = CODES[operand.code]
    return code.max - code.min if operand.zeros else max(code.max, -code.min)


GRU_WIDTHS = "int8", "mixed", "int16"  # of tensors, as ``g.fixed`` takes them


@dataclass(frozen=True)
class Gru(Problem, op="gru"):
    """A GRU in integers over some steps."""

    widths: str  # "int8", "mixed", "int16", or "other"
    narrow: bool  # whether int32 holds every number of a step
    steps: int  # T
    n: int  # sequences
    inputs: int  # C
    units: int  # H
    bits: int = 8  # of the widest codes that are multiplied
    entries: int = 256  # of the longest table

    setting: ClassVar[str] = "T=100, C=H=256"
    operands: ClassVar[str] = "x and the GRU"
    moved: ClassVar[dict[str, str]] = {
        "cpu": 'x.get() and f.to("cpu")',
        "cuda": 'cupy.asarray(x) and f.to("cuda")',
    }

    @property
    def case(self) -> str:
        return f"{self.widths}, N={self.n}"

    @classmethod
    def shown(
        cls, format: Any, device: str, card: Card | None, shape: tuple[int, int] | None = None
    ) -> list[Gru]:
        if format not in GRU_WIDTHS:
            return []
        bits = 8 if format == "int8" else 16
        return [cls(format, True, 100, n, 256, 256, bits, device=device, card=card) for n in SHOWN]

    def with_rows(self, rows: int) -> Self:
        return replace(self, n=rows)

    def __str__(self) -> str:
        return (
            f"gru[{self.widths}, T={self.steps}, N={self.n}, C={self.inputs}, H={self.units}, {self.device}]"
        )


@dataclass(frozen=True)
class ExpertLinear(Problem, op="expert_linear"):
    """A product of rows [R, K] with the experts [E, N, K] that ids [T, U] name; R is T, or T·U.

    Rows of the result [T, U, N] whose id is no expert become NaN.
    """

    weights: Format | Operand
    t: int  # tokens
    u: int  # experts that a token uses
    e: int  # experts
    n: int  # rows of an expert
    k: int
    x: Operand | None = None  # where activations are codes with scales

    setting: ClassVar[str] = "128 experts, 8 used, N=768"
    operands: ClassVar[str] = "x, q and ids"
    moved: ClassVar[dict[str, str]] = {
        "cpu": 'x.get(), q.to("cpu") and ids.get()',
        "cuda": 'cupy.asarray(x), q.to("cuda") and cupy.asarray(ids)',
    }

    @classmethod
    def of(cls, x: Any, q: Any, ids: Any) -> ExpertLinear:
        """The problem of floats or a ScaledArray [R, K], weights [E, N, K] and ids [T, U], on one device."""
        device, card = place_of(ids)
        (t, u), (e, n, k) = ids.shape, q.shape
        if hasattr(q, "format"):
            return cls(q.format, t, u, e, n, k, device=device, card=card)
        return cls(Operand.of(q), t, u, e, n, k, Operand.of(x), device=device, card=card)

    @property
    def case(self) -> str:
        return f"T={self.t}"

    def __str__(self) -> str:
        w = self.weights
        name = f"{w.code} {w.r}×{w.c}" if isinstance(w, Operand) else w.name
        used = f"T={self.t}, {self.u} of {self.e} experts"
        return f"expert_linear[{name}, {used}, N={self.n}, K={self.k}, {self.device}]"

    @classmethod
    def shown(
        cls, format: Any, device: str, card: Card | None, shape: tuple[int, int] | None = None
    ) -> list[ExpertLinear]:
        n, k = shape or (768, 2048)
        x, weights = _shown_operands(format, k)
        return [cls(weights, t, 8, 128, n, k, x, device=device, card=card) for t in SHOWN if weights]

    def with_rows(self, rows: int) -> Self:
        return replace(self, t=rows)


def _shown_operands(format: Any, k: int) -> tuple[Operand | None, Format | Operand | None]:
    """The activations, None for floats, and the weights of a shown problem of a format or a code."""
    try:
        fmt = FORMATS[format]
    except FormatError:
        return _ordinary_codes(format, k)
    _check_blocks(fmt, k)
    return None, fmt


def _check_blocks(fmt: Format, k: int) -> None:
    """Refuse rows that are no whole number of blocks."""
    if k % fmt.block_size:
        raise ShapeError(
            f"{fmt.name} with K={k}: blocks of {fmt.name} hold {fmt.block_size} weights, so K is a multiple "
            f"of that; pass {-(-k // fmt.block_size) * fmt.block_size}"
        )
