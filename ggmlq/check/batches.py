"""Cases of ``ggmlq check`` in batches: activations of three or four axes, and one matrix or several.

Where there are more batches of activations than matrices of weights, each matrix serves several of them. The
rows of all batches are judged as rows of one product, and several matrices as experts that rows use.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.dumps import Dump
from ..errors import DumpError, FormatError, ShapeError
from ..formats import FORMATS
from . import data
from .cases import PLAIN, Case, Shapes, fields_of, refuse_others

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
    def repeat_options(self) -> str:
        """The options that repeat this case."""
        if self.source is not None or self._one:
            return super().repeat_options
        axes = [(n // of, of) for n, of in zip(self.batches, self.matrices, strict=True)]
        (r3, w3), (r2, w2) = axes
        sizes = f"m={self.n},n={self.m},k={self.k},bs=[{w2},{w3}],nr=[{r2},{r3}]"
        return f"'MUL_MAT(type_a={self.format.name},type_b=f32,{sizes})' --seed {self.seed}"

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

    def inputs(self) -> tuple[NDArray[np.float32], QuantArray]:
        """Activations [B·M, K], and weights [N, K] or [matrices, N, K]."""
        shape = tuple(self.lengths)
        if self.source is not None:
            saved = Dump(self.source)
            raw = np.ascontiguousarray(saved.array("raw"))
            return saved.array("x"), QuantArray.from_bytes(raw, self.format, shape)
        x = data.activations(self.data, math.prod(self.batches) * self.m, self.k, self.seed)
        w = data.weights(self.format, self.data, math.prod(self.matrices) * self.n, self.k, self.seed)
        return x, QuantArray.from_bytes(np.ascontiguousarray(w.raw), self.format, shape)

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


def parse_backend_ops(text: str, seed: int) -> Case:
    """A case of test-backend-ops, ``MUL_MAT(type_a=q5_1,type_b=f32,m=16,n=1,k=256,bs=[3,1],nr=[1,1])``.

    There m counts rows of weights (our N) and n rows of activations (our M); bs are axes ne[2] and ne[3] of
    the weights, and nr how many times as many the activations have.
    """
    fields = fields_of(text, ("type_a", "m", "n", "k"))
    refuse_others(text, fields, PLAIN)
    case = Case(FORMATS[fields["type_a"]], int(fields["n"]), int(fields["m"]), int(fields["k"]), seed=seed)
    (w2, w3), (r2, r3) = (_pair(text, fields, name) for name in ("bs", "nr"))
    if (w2, w3, r2, r3) == (1, 1, 1, 1):
        return case
    return Batch(case.format, case.m, case.n, case.k, case.data, seed, None, (w3 * r3, w2 * r2), (w3, w2))


def _pair(text: str, fields: dict[str, str], name: str) -> Pair:
    match = re.fullmatch(r"\[\s*([1-9]\d*)\s*,\s*([1-9]\d*)\s*\]", fields.get(name, "[1,1]").strip())
    if match is None:
        raise ShapeError(
            f"case {text!r}: {name}={fields[name]} is not two counts; they are at least 1; write {name}=[3,1]"
        )
    return int(match[1]), int(match[2])


def load(path: Path) -> Batch:
    """A case in batches that ``--save`` wrote. Its arrays are checked here and read when the case runs."""
    try:
        saved = Dump(path)
        fmt, kind, seed = FORMATS[saved.text("format")], saved.text("data"), saved.number("seed")
        batches, matrices, shape = (saved.lengths(name) for name in ("batches", "matrices", "shape"))
        x, raw = saved.layout("x"), saved.layout("raw")
        if kind not in data.KINDS or len(batches) != 2 or len(matrices) != 2 or len(shape) not in (2, 3):
            raise DumpError(f"{path}: data {kind!r}, batches {batches}, matrices {matrices}, shape {shape}")
        rows = x.shape[0] // max(math.prod(batches), 1)
        case = Batch(fmt, rows, shape[-2], shape[-1], kind, seed, path, (batches[0], batches[1]),
                     (matrices[0], matrices[1]))  # fmt: skip
        bytes_of = (*case.lengths[:-1], fmt.row_bytes(case.k))
        sizes = x.shape == (math.prod(batches) * rows, case.k) and raw.shape == bytes_of
        if not sizes or x.dtype != np.float32 or raw.dtype != np.uint8 or shape != tuple(case.lengths):
            raise DumpError(
                f"{path}: x is {x.dtype} of {x.shape} and raw {raw.dtype} of {raw.shape} beside {case}"
            )
        return case
    except (DumpError, FormatError, ShapeError) as error:
        raise DumpError(f"--replay {path}: not a case that `ggmlq check --save` wrote: {error}") from error
