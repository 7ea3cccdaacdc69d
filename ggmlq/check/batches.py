"""Cases of ``ggmlq check`` in batches: activations of three or four axes, and one matrix or several.

Where there are more batches of activations than matrices of weights, each matrix serves several of them. The
rows of all batches are judged as rows of one product, and several matrices as experts that rows use.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.dumps import Dump
from ..base.text import short
from ..errors import DumpError, FormatError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from .cases import KINDS, Case, Shapes, fields_of, refuse_others

Pair = tuple[int, int]  # ggml's ne[3] and ne[2]


@dataclass(frozen=True)
class Batch(Case):
    """One product in batches to try; M counts the rows of one batch."""

    batches: Pair = (1, 3)  # of the activations
    matrices: Pair = (1, 1)  # of the weights

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = zip(self.batches, self.matrices, strict=True)
        if min(*self.batches, *self.matrices) < 1 or any(n % of for n, of in pairs):
            raise ShapeError(
                f"{self}: {self.batches} batches of activations, {self.matrices} matrices of weights; each "
                "count is at least 1, and the former is a multiple of the latter; choose others"
            )

    @property
    def shape(self) -> str:
        """Batches, M, N and K as ``--shapes`` takes them, and the number of matrices."""
        lead = self.batches if self.batches[0] > 1 else self.batches[1:]
        many = "" if self._one else f" of {math.prod(self.matrices)} matrices"
        return f"{'x'.join(map(str, lead))}x{super().shape}{many}"

    @property
    def _one(self) -> bool:
        return math.prod(self.matrices) == 1

    @property
    def fields(self) -> dict[str, Any]:
        """The sizes as test-backend-ops names them; bs are axes of the weights, from the inner one."""
        axes = [(of, n // of) for n, of in zip(self.batches, self.matrices, strict=True)]
        (w3, r3), (w2, r2) = axes
        return {**super().fields, "bs": f"[{w2},{w3}]", "nr": f"[{r2},{r3}]"}

    @property
    def file_stem(self) -> str:
        """The name of the file that ``--save`` writes, without its ending."""
        return super().file_stem.replace(" ", "-")

    @property
    def lengths(self) -> list[int]:
        """Lengths of the axes of the weights."""
        return super().lengths if self._one else [math.prod(self.matrices), *super().lengths]

    @property
    def json_facts(self) -> dict[str, Any]:
        """Facts for JSON that a plain case lacks."""
        return {"batches": list(self.batches), "matrices": list(self.matrices)}

    def ids(self) -> NDArray[np.int32] | None:
        """The matrix of each row of activations [B·M, 1], where there are several."""
        if self._one:
            return None
        numbers = np.arange(math.prod(self.matrices), dtype=np.int32).reshape(self.matrices)
        for axis, (n, of) in enumerate(zip(self.batches, self.matrices, strict=True)):
            numbers = numbers.repeat(n // of, axis=axis)
        return np.ascontiguousarray(numbers.reshape(-1, 1).repeat(self.m, axis=0))

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return math.prod(self.batches) * self.m

    def axes(self, x: NDArray[np.float32], q: QuantArray) -> tuple[NDArray[np.float32], QuantArray]:
        """The operands of :meth:`inputs` with the axes that the library gets."""
        x_shape, q_shape, _ = self.axes_of()
        return x.reshape(x_shape), QuantArray.from_bytes(q.raw, self.format, q_shape)

    def axes_of(self) -> Shapes:
        """Shapes of activations and weights, as a library gets them."""
        lead = () if self._one else self.matrices
        return (*self.batches, self.m, self.k), (*lead, self.n, self.k), None


def in_batches(case: Case, lead: tuple[int, ...]) -> Case:
    """The product repeated for batches of activations; () leaves it as it is."""
    if not lead:
        return case
    b3, b2 = (1, *lead)[-2:]
    return Batch(case.format, case.m, case.n, case.k, case.data, case.seed, None, (b3, b2))


def load_batch(path: Path, cls: type[Batch] = Batch, *more: Any) -> Batch:
    """A case in batches that ``--save`` wrote. Its arrays are checked here and read when the case runs."""
    try:
        saved = Dump(path)
        fmt, kind, seed = FORMATS[saved.text("format")], saved.text("data"), saved.number("seed")
        batches, matrices, shape = (saved.lengths(name) for name in ("batches", "matrices", "shape"))
        x, raw = saved.layout("x"), saved.layout("raw")
        if kind not in KINDS or len(batches) != 2 or len(matrices) != 2 or len(shape) not in (2, 3):
            raise DumpError(f"{path}: data {kind!r}, batches {batches}, matrices {matrices}, shape {shape}")
        rows = x.shape[0] // max(math.prod(batches), 1)
        pairs = (batches[0], batches[1]), (matrices[0], matrices[1])
        case = cls(fmt, rows, shape[-2], shape[-1], kind, seed, path, *pairs, *more)
        bytes_of = (*case.lengths[:-1], fmt.row_bytes(case.k))
        sizes = x.shape == (math.prod(batches) * rows, case.k) and raw.shape == bytes_of
        if not sizes or x.dtype != np.float32 or raw.dtype != np.uint8 or shape != tuple(case.lengths):
            raise DumpError(
                f"{path}: x is {x.dtype} of {x.shape} and raw {raw.dtype} of {raw.shape} beside {case}"
            )
        return case
    except (DumpError, FormatError, ShapeError) as error:
        raise DumpError(f"--replay {path}: not a case that `ggmlq check --save` wrote: {error}") from error


# --- products with experts ------------------------------------------------------------------------
#
# How tokens choose their experts. "skewed": half of them use expert 0, so that it has many rows and most
# have few; "duplicate": tokens use an expert more than once, which ggml allows; "few": most experts have
# no token.

Routing = Literal["uniform", "skewed", "duplicate", "few"]
ROUTINGS: tuple[Routing, ...] = ("uniform", "skewed", "duplicate", "few")


@dataclass(frozen=True)
class Mixture(Case):
    """One product with experts; M counts tokens."""

    experts: int = 8
    used: int = 2
    routing: Routing = "uniform"
    row_per_use: bool = False  # a row of activations for each use, not for each token

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.used <= self.experts:
            raise ShapeError(
                f"{self}: {self.used} of {self.experts} experts; a token uses at least one and at most all; "
                "write --experts 8/2"
            )

    @property
    def shape(self) -> str:
        """Tokens, N and K, and the numbers of experts."""
        return f"{super().shape} {self.experts}/{self.used}{' apart' if self.row_per_use else ''}"

    has_experts: ClassVar[bool] = True

    @property
    def fields(self) -> dict[str, Any]:
        """The sizes as test-backend-ops names them; b: one row of activations for all uses of a token."""
        counts = {"n_mats": self.experts, "n_used": self.used, "b": int(not self.row_per_use)}
        spread = {} if self.routing == "uniform" else {"spread": self.routing}
        plain = super().fields
        return {"type_a": plain.pop("type_a"), "type_b": plain.pop("type_b"), **counts, **plain, **spread}

    @property
    def file_stem(self) -> str:
        """The name of the file that ``--save`` writes, without its ending."""
        apart = "-apart" if self.row_per_use else ""
        size = f"{self.m}x{self.n}x{self.k}-{self.experts}of{self.used}"
        return f"{self.format.name}-{size}-{self.routing}{apart}-{self.data}-{self.seed}"

    @property
    def lengths(self) -> list[int]:
        """Lengths of the axes of the weights."""
        return [self.experts, self.n, self.k]

    @property
    def json_facts(self) -> dict[str, Any]:
        """Facts for JSON that a plain case lacks."""
        return {"experts": self.experts, "used": self.used, "spread": self.routing, "apart": self.row_per_use}

    def ids(self) -> NDArray[np.int32]:
        """The ids of experts [T, U]."""
        if self.source is not None:
            return np.asarray(Dump(self.source).array("ids"), np.int32)
        rng = np.random.default_rng([self.seed, 2])
        order = np.argsort(rng.random((self.m, self.experts)), axis=1)
        if self.routing == "few":  # most experts have no token
            few = np.argsort(rng.random((self.m, max(self.used, self.experts // 8))), axis=1)
            return np.ascontiguousarray(few[:, : self.used], np.int32)
        ids = np.ascontiguousarray(order[:, : self.used], np.int32)
        if self.routing == "skewed":
            first = (rng.random(self.m) < 0.5) & ~(ids == 0).any(axis=1)
            ids[first, 0] = 0
        if self.routing == "duplicate" and self.used > 1:
            twice = rng.random(self.m) < 0.5
            twice[0] = True
            ids[twice, -1] = ids[twice, 0]
        return ids

    def axes_of(self) -> Shapes:
        """Shapes of activations, weights and ids, as a library gets them."""
        x = (self.m, self.used if self.row_per_use else 1, self.k)
        return x, (self.experts, self.n, self.k), (self.m, self.used)

    @property
    def rows(self) -> int:
        """Rows of activations: one for each token, or for each use."""
        return self.m * self.used if self.row_per_use else self.m

    def inputs(self) -> tuple[NDArray[np.float32], QuantArray]:
        """Activations [T, K] or [T, U, K], and weights [E, N, K]."""
        x, q = super().inputs()
        return x.reshape(self.m, self.used, self.k) if self.row_per_use else x, q


# Tokens, N and K for 4 experts of which each token uses 2, so that every expert has several tiles. Kernels of
# GPUs that cut tiles along K as well need rows as long as these: llama.cpp's MMQ was wrong so for six months.
TILED, TILED_ON_GPU = (300, 130, 512), (2048, 256, 2048)


def default_cases(
    fmt: Format, seed: int, group: int = 1, experts: tuple[int, int] | None = None,
    tiled: tuple[int, int, int] = TILED,
) -> list[Case]:  # fmt: skip
    """The default cases: few and many tokens, tails, each routing, rows by token and use, several tiles."""
    block = max(fmt.block_size, 32)
    usual = 512 // block * block or block
    shapes: list[tuple[int, int, int, Routing, bool]] = [
        (1, 64, usual, "uniform", False), (1, 33, usual + block, "duplicate", True),
        (4, 65, block, "skewed", False), (9, 64, usual, "uniform", True), (33, 34, block, "duplicate", False),
        (65, 64, usual, "skewed", True), (70, 33, 3 * block, "few", False), (1, 35, block, "uniform", False),
    ]  # fmt: skip
    counts = [experts or ((16, 4), (8, 2), (5, 3))[i % 3] for i in range(len(shapes))]
    shapes += [
        (1, 32, usual, "uniform", False),
        (*tiled, "uniform", False),
    ]  # more experts than tokens; tiles
    counts += [experts or (128, 8), experts or (4, 2)]
    cases: list[Case] = []
    for (m, n, k, routing, row_per_use), (e, u) in zip(shapes, counts, strict=True):
        rows = -(-n // group) * group
        cases.append(Mixture(fmt, m, rows, k, "normal", seed, None, e, u, routing, row_per_use))
    return cases


def parse_experts(text: str) -> tuple[int, int]:
    """``128/8``: experts, and how many a token uses."""
    match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
    if match is None:
        raise ShapeError(
            f"--experts {text}: it is experts/used, how many there are and how many a token uses; write 8/2"
        )
    return int(match[1]), int(match[2])


def parse_routing(text: str) -> Routing:
    """The routing that text names, one of ROUTINGS."""
    for name in ROUTINGS:
        if text == name:
            return name
    raise UnsupportedError(f"--spread {text}: there is no such routing; choose one of {', '.join(ROUTINGS)}")


def with_experts(case: Case, experts: tuple[int, int], routing: Routing, *, row_per_use: bool) -> Mixture:
    """The plain case ``case`` as a product with experts."""
    sizes = case.format, case.m, case.n, case.k, case.data, case.seed
    return Mixture(*sizes, None, *experts, routing, row_per_use)


def parse_mixture(text: str, seed: int) -> Mixture:
    """A case from text: ``MUL_MAT_ID(type_a=q4_0,type_b=f32,n_mats=8,n_used=2,b=0,m=512,n=129,k=256)``.

    Its m is our N, and its n our M. b=1: a row for each token, b=0: one for each use.
    """
    fields = fields_of(text, ("type_a", "n_mats", "n_used", "m", "n", "k"), "MUL_MAT_ID")
    refuse_others(text, fields, {"type_b": {"f32"}, "o": {"1"}, "v": {"0"}})
    n, m, k, e, u = (int(fields[name]) for name in ("m", "n", "k", "n_mats", "n_used"))
    row_per_use = fields.get("b", "0").strip() in ("0", "false")
    spread, data = parse_routing(fields.get("spread", "uniform")), fields.get("data", "normal")
    return Mixture(FORMATS[fields["type_a"]], m, n, k, data, seed, None, e, u, spread, row_per_use)


def load_mixture(path: Path) -> Mixture:
    """A case with ids that ``--save`` wrote. Its arrays are checked here and read when the case runs."""
    try:
        saved = Dump(path)
        fmt, kind, seed = FORMATS[saved.text("format")], saved.text("data"), saved.number("seed")
        x, raw, ids = (saved.layout(name) for name in ("x", "raw", "ids"))
        shape = saved.lengths("shape")
        if kind not in KINDS:
            raise DumpError(f"{path}: data is {short(kind)}; it is one of {', '.join(KINDS)}")
        kinds = x.dtype == np.float32 and raw.dtype == np.uint8 and ids.dtype.kind in "iu"
        if not kinds or (len(shape), len(ids.shape), len(raw.shape)) != (3, 2, 3):
            raise DumpError(
                f"{path}: x is {x.dtype} of {x.shape}, raw {raw.dtype} of {raw.shape}, ids {ids.dtype} "
                f"of {ids.shape}, shape {shape}; they are float32 [T, K] or [T, U, K], uint8 [E, N, bytes of "
                "a row], integers [T, U] and [E, N, K]"
            )
        (t, u), (e, n, k) = ids.shape, shape
        case = Mixture(fmt, t, n, k, kind, seed, path, e, u, "uniform", len(x.shape) == 3)
        if raw.shape != (e, n, fmt.row_bytes(k)) or x.shape != ((t, u, k) if case.row_per_use else (t, k)):
            raise DumpError(f"{path}: x has shape {x.shape} and raw {raw.shape} beside {case}")
        return case
    except (DumpError, FormatError, ShapeError) as error:
        raise DumpError(f"--replay {path}: not a case that `ggmlq check --save` wrote: {error}") from error
