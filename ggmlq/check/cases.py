"""Cases of ``ggmlq check``: a weight type, a shape, a kind of data and a seed fix every number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.blocks import random_blocks
from ..arrays.dumps import Dump
from ..arrays.rows import rows
from ..base.text import short
from ..errors import DumpError, FormatError, ShapeError, UnsupportedError
from ..formats import FORMATS, BlockFormat, Format
from ..ops import quantize

Axes = tuple[int, ...]
Shapes = tuple[Axes, Axes, Axes | None]
Shape = tuple[int, int, int]  # M rows of activations, N rows of weights, K


@dataclass(frozen=True)
class Case:
    """One product to try: its type, sizes, kind of data and seed."""

    format: Format
    m: int
    n: int
    k: int
    data: str = "normal"
    seed: int = 0
    source: Path | None = None  # a saved case: its arrays lie there

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1 or self.k % self.format.block_size:
            raise ShapeError(
                f"{self}: M, N and K are at least 1, and K is a multiple of {self.format.block_size}, "
                f"the block of {self.format.name}; choose another K"
            )
        if self.seed < 0:
            raise ShapeError(f"{self}: a seed is 0 or more; choose another")

    @property
    def shape(self) -> str:
        """The case as ``--shapes`` takes it."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def file_stem(self) -> str:
        """The name of the file that ``--save`` writes, without its ending."""
        return f"{self.format.name}-{self.shape}-{self.data}-{self.seed}"

    @property
    def lengths(self) -> list[int]:
        """Lengths of the axes of the weights."""
        return [self.n, self.k]

    @property
    def json_facts(self) -> dict[str, Any]:
        """Facts for JSON that other kinds of cases add."""
        return {}

    def ids(self) -> NDArray[np.int32] | None:
        """The ids of experts that tokens use; None for a single matrix."""
        return None

    def axes_of(self) -> Shapes:
        """Shapes of activations, weights and ids, as a library gets them."""
        return (self.m, self.k), (self.n, self.k), None

    @property
    def fields(self) -> dict[str, Any]:
        """The sizes as test-backend-ops names them: its m is our N, its n our M."""
        return {"type_a": self.format.name, "type_b": "f32", "m": self.n, "n": self.m, "k": self.k}

    @property
    def label(self) -> str:
        """The case as test-backend-ops writes it, and as ``--case`` takes it; it is the same everywhere."""
        data = {} if self.data == "normal" else {"data": self.data}
        fields = (f"{name}={value}" for name, value in {**self.fields, **data}.items())
        return f"MUL_MAT{'_ID' if self.has_experts else ''}({','.join(fields)})".replace(" ", "")

    has_experts: ClassVar[bool] = False

    @property
    def repeat_options(self) -> str:
        """The options that repeat this case."""
        if self.source is not None:
            return f"--replay {self.source}"
        return f"--case '{self.label}' --seed {self.seed}"

    def __str__(self) -> str:
        return f"{self.format.name} {self.shape} {self.data} seed {self.seed}"

    @property
    def rows(self) -> int:
        """Rows of activations in all."""
        return self.m

    def inputs(self) -> tuple[NDArray[np.float32], QuantArray]:
        """Activations [rows, K], and weights [N, K] or several matrices of them."""
        shape = tuple(self.lengths)
        if self.source is not None:
            saved = Dump(self.source)
            raw = np.ascontiguousarray(saved.array("raw"))
            return saved.array("x"), QuantArray.from_bytes(raw, self.format, shape)
        x = activations(self.data, self.rows, self.k, self.seed)
        w = weights(self.format, self.data, math.prod(shape[:-1]), self.k, self.seed)
        return x, QuantArray.from_bytes(np.ascontiguousarray(w.raw), self.format, shape)


MANY = 65537  # rows: a grid of a GPU has 65535 blocks along its second and third axis


def large(fmt: Format, seed: int) -> Case:
    """A case of more rows of activations than a grid of a GPU has blocks along an axis."""
    return Case(fmt, MANY, 32, max(fmt.block_size, 32), "normal", seed)


def edges(fmt: Format, seed: int, group: int = 1) -> list[Case]:
    """The default cases: sizes around the limits of kernels (8 | 9, 64 | 65), tails, one block, odd blocks.

    Layouts that interleave rows of weights take whole groups of them: N is rounded up to these.
    """
    block = max(fmt.block_size, 32)
    usual = 1024 // block * block
    odd = usual + block
    shapes = [
        (1, 1, block), (2, 257, block), (1, 64, usual), (8, 64, usual), (8, 7, odd), (9, 64, usual),
        (9, 130, 3 * block), (63, 33, 3 * block), (64, 64, usual), (65, 65, odd),
    ]  # fmt: skip
    sizes = [(*shape, "normal") for shape in shapes]
    for kind in KINDS:
        if kind != "normal":
            sizes += [(1, 65, odd, kind), (9, 33, usual, kind)]
    return [Case(fmt, m, -(-n // group) * group, k, kind, seed) for m, n, k, kind in sizes]


def parse_types(text: str) -> list[Format]:
    """Types from text such as ``q4_0,q4_K``."""
    return [FORMATS[name.strip()] for name in text.split(",") if name.strip()]


def parse_shapes(text: str) -> list[tuple[tuple[int, ...], Shape]]:
    """Shapes from text such as ``1x4096x4096,3x9x64x512``: M×N×K, after up to two counts of batches."""
    shapes = []
    for word in text.split(","):
        if not re.fullmatch(r"\s*\d+(\s*[x×]\s*\d+){2,4}\s*", word):
            raise ShapeError(
                f"--shapes {text}: {word.strip()!r} is not M×N×K (rows of activations, rows of "
                "weights, length of both); write 9x64x512, or 3x9x64x512 for three batches of activations"
            )
        *lead, m, n, k = map(int, re.findall(r"\d+", word))
        shapes.append((tuple(lead), (m, n, k)))
    return shapes


def parse_data(text: str) -> list[str]:
    """Kinds of data from text such as ``normal,huge`` or ``all``."""
    kinds = [word.strip() for word in text.split(",")] if text != "all" else list(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise UnsupportedError(f"--data {kind}: there is no such kind; choose of {', '.join(KINDS)}")
    return kinds


def fields_of(text: str, needed: Sequence[str], op: str = "MUL_MAT") -> dict[str, str]:
    """The fields of a case of test-backend-ops, such as ``MUL_MAT(…)``; sizes are checked to be numbers."""
    match = re.search(r"(\w+)\((.*)\)", text)
    if match is None or match[1] != op:
        raise UnsupportedError(
            f"case {text!r}: only MUL_MAT(…) and MUL_MAT_ID(…) of test-backend-ops can be checked; "
            "write MUL_MAT(type_a=q4_0,type_b=f32,m=16,n=1,k=256), or use --types and --shapes"
        )
    fields = dict(re.findall(r"(\w+)=(\[[^]]*\]|[^,]*)", match[2]))
    lacking = [name for name in needed if name not in fields]
    sizes = [name for name in needed if name != "type_a"]
    if lacking or not all(fields[name].isdigit() for name in sizes):
        must = ", ".join(lacking or sizes)
        raise ShapeError(f"case {text!r}: {must} must be given, as in type_a=q4_0,type_b=f32,m=16,n=1,k=256")
    return fields


def refuse_others(text: str, fields: dict[str, str], plain: dict[str, set[str]]) -> None:
    """Raise an error for fields that make more of a case than this version computes."""
    for name, values in plain.items():
        value = fields.get(name, "").replace(" ", "")
        if value and value not in values:
            raise UnsupportedError(
                f"case {text!r}: {name}={value} is no product that is checked so; this version takes "
                f"{name}={' or '.join(sorted(values))} only"
            )


def load(path: Path) -> Case:
    """A case that ``--save`` wrote, or ``ggmlq diagnose --make-input``, which knows neither data nor seed.

    Its arrays are checked here and read when the case runs.
    """
    try:
        saved = Dump(path)
        fmt = FORMATS[saved.text("format")]
        kind = saved.text("data") if "data" in saved else "normal"
        seed = saved.number("seed") if "seed" in saved else 0
        x, raw = saved.layout("x"), saved.layout("raw")
        if kind not in KINDS:
            raise DumpError(f"{path}: data is {short(kind)}; it is one of {', '.join(KINDS)}")
        if x.dtype != np.float32 or raw.dtype != np.uint8 or (len(x.shape), len(raw.shape)) != (2, 2):
            raise DumpError(
                f"{path}: x is {x.dtype} of {x.shape} and raw {raw.dtype} of {raw.shape}; they are float32 "
                "[M, K] and uint8 [N, bytes of a row]"
            )
        case = Case(fmt, x.shape[0], raw.shape[0], x.shape[1], kind, seed, path)
        if raw.shape[1] != (row := fmt.row_bytes(case.k)):
            raise DumpError(f"{path}: rows of raw have {raw.shape[1]} bytes, and {case.k} elements {row}")
        if saved.lengths("shape") != (case.n, case.k):
            raise DumpError(f"{path}: the shape is {saved.lengths('shape')}, x and raw give {case.shape}")
        return case
    except (DumpError, FormatError, ShapeError) as error:
        raise DumpError(f"--replay {path}: not a case that `ggmlq check --save` wrote: {error}") from error


# --- activations and weights by kind, the same for the same seed ----------------------------------
#
# Each kind exposes one mistake: a sum that is left out, a scale that becomes zero or infinite as a
# half, a result whose size hides the error in its neighbour.

Rows = NDArray[np.float32]


def _scaled(low: int, high: int) -> Callable[[Generator, Rows], Rows]:
    """A function that multiplies each row by a power of two; exponents are spread evenly over low … high."""

    def scale(rng: Generator, x: Rows) -> Rows:
        powers = rng.permutation(np.linspace(low, high, len(x) + 2)[1:-1])
        scaled: Rows = (x * np.exp2(powers)[:, None]).astype(np.float32)
        return scaled

    return scale


def _some_zero(rng: Generator, x: Rows) -> Rows:
    """Set every other row to zero, and some runs of 32 in the other rows."""
    x[1::2] = 0
    for start in range(32, x.shape[1], 96):
        x[:, start : start + 32] = 0
    return x


def _outliers(rng: Generator, x: Rows) -> Rows:
    """Multiply one column in a hundred by a hundred: language models have such outliers."""
    x[:, rng.random(x.shape[1]) < 0.01] *= 100
    return x


def _special(rng: Generator, x: Rows) -> Rows:
    """Every other row has NaN and infinities, the rest zeros of both signs and numbers of fewer bits."""
    for start, values in ((1, (np.nan, np.inf, -np.inf)), (0, (0.0, -0.0, 1e-40, -3e-39))):
        some = x[start::2]
        x[start::2] = np.where(rng.random(some.shape) < 0.05, rng.choice(values, some.shape), some)
        x[start::2, -1] = values[0]
    return x


def _same(rng: Generator, x: Rows) -> Rows:
    return x


# Kind of activations: rows to begin with, and what is done to them.
KINDS: dict[str, tuple[str, Callable[[Generator, Rows], Rows]]] = {
    "normal": ("normal", _same),
    "uniform": ("uniform", _same),
    "zero": ("normal", _some_zero),
    "constant": ("constant", _same),  # sums are large: offsets and minima must cancel
    "huge": ("normal", _scaled(8, 30)),  # block sums, then scales, overflow as halves
    "tiny": ("normal", _scaled(-30, -2)),  # scales become subnormal halves, then zero
    "outliers": ("normal", _outliers),
    "special": ("normal", _special),  # rows of NaN are nobody's promise, and leave the others alone
}


def activations(kind: str, m: int, k: int, seed: int) -> Rows:
    """Activations [m, k] of a kind."""
    first, then = KINDS[kind]
    return then(np.random.default_rng([seed, 1]), rows(first, m, k, seed))


def weights(fmt: Format, kind: str, n: int, k: int, seed: int) -> QuantArray:
    """Weights [n, k]: encoded floats, or random bytes with sane scales where NumPy cannot encode."""
    if isinstance(fmt, BlockFormat) and fmt.pack is None:
        blocks = random_blocks(fmt, n, k // fmt.block_size, seed + 1)
        return QuantArray.from_bytes(np.ascontiguousarray(blocks).view(np.uint8), fmt, (n, k))
    values = rows("heavy_tails" if kind == "outliers" else "normal", n, k, seed + 1)
    if kind == "zero":
        values[1::3] = 0
    return quantize(values, fmt)
