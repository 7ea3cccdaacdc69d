"""Cases of ``ggmlq check`` whose operands are no plain float matrices: permuted, rows apart, halves for x.

They are built as a graph of ggml's functions, as test-backend-ops builds them, and judged as batches.
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
from ..errors import DumpError, ShapeError
from ..formats import FORMATS, Format
from ..formats.scalars import bfloat16_bits
from ..llama import Bridge, Measurement
from .batches import Batch, Pair, load_batch
from .cases import Case, fields_of, parse_data, refuse_others
from .sketch import Sketch, Tensor

Axes = tuple[int, ...]
PLAIN: Axes = (0, 1, 2, 3)
ORDERS = (PLAIN, (0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1))  # axes of memory that permuted operands have
ACTIVATIONS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Strided(Batch):
    """One product to try, whose operands lie in memory otherwise, or whose activations are of 16 bits."""

    type_b: str = "f32"
    order: Axes = PLAIN  # axis of the operand that each axis of its memory is, from the inner one
    whole: int = 0  # elements of a row in memory, of which K are multiplied; 0: K

    def __post_init__(self) -> None:
        super().__post_init__()
        block, rows = self.format.block_size, self.whole or self.k + self.format.block_size
        if rows <= self.k or rows % block or (self.whole and self.order != PLAIN):
            raise ShapeError(
                f"{self.label}: k_v={self.whole} is the length of rows in memory, more than k={self.k}, "
                f"a multiple of {block}, and goes with per=[0,1,2,3]; choose another"
            )

    @property
    def shape(self) -> str:
        """Batches, sizes, and how the operands lie."""
        words = {self.type_b: self.type_b != "f32", "permuted": self.order != PLAIN, "apart": self.whole > 0}
        return " ".join([super().shape, *(word for word, holds in words.items() if holds)])

    @property
    def fields(self) -> dict[str, Any]:
        """The sizes as test-backend-ops names them."""
        more = {"type_b": self.type_b}
        if self.order != PLAIN:
            more["per"] = f"[{','.join(map(str, self.order))}]"
        return {**super().fields, **more, **({"k_v": self.whole} if self.whole else {})}

    @property
    def json_facts(self) -> dict[str, Any]:
        """Facts for JSON that a case in batches lacks."""
        more = {"type_b": self.type_b, "per": list(self.order), "k_v": self.whole}
        return {**super().json_facts, **more}

    def inputs(self) -> tuple[NDArray[np.float32], QuantArray]:
        """Activations, rounded to their type, and weights."""
        x, q = super().inputs()
        rounded = _of_type(x, self.type_b)
        if self.type_b == "bf16":
            return (rounded.astype(np.uint32) << 16).view(np.float32), q
        return rounded.astype(np.float32), q

    def measure(
        self, bridge: Bridge, x: NDArray[np.float32], q: QuantArray, device: str, threads: int, repeats: int
    ) -> Measurement:
        """The product of the library, as a graph of one node that looks at its operands so."""
        s = Sketch()
        weights = np.asarray(q.raw).reshape(*self.matrices, self.n, -1)
        a, of_a = self._look(s, weights, self.format)
        rows = _of_type(x.reshape(*self.batches, self.m, self.k), self.type_b)
        b, of_b = self._look(s, rows, FORMATS[self.type_b])
        s.call("mul_mat", a, b)
        program = s.case("MUL_MAT", self.label, self.seed).program
        ran = bridge.node(program, [of_a, of_b], device, threads=threads, repeats=repeats)
        shape = math.prod(self.batches) * self.m, self.n
        y, *others = (one.view(np.float32).reshape(shape) for one in (ran.node.arrays["y"], *ran.repeats))
        return Measurement(y, tuple(others), (), device, ran.strays)

    def _look(self, s: Sketch, rows: NDArray[Any], fmt: Format) -> tuple[Tensor, NDArray[Any]]:
        """An operand [b3, b2, rows, K or bytes of it] as a tensor, and the memory that it looks at."""
        ne = (self.k, *rows.shape[2::-1])
        if self.whole:  # what lies behind a row could be its own
            length = rows.shape[-1]
            memory = rows[..., np.arange(length * self.whole // self.k) % length]
            return s.part(s.leaf(self.whole, *ne[1:], type=fmt.name), *ne), memory
        leaf = s.leaf(*(ne[axis] for axis in self.order), type=fmt.name)
        memory = rows.transpose([3 - axis for axis in reversed(self.order)])
        return (leaf if self.order == PLAIN else s.call("permute", leaf, *self.order)), memory


def _of_type(x: NDArray[np.float32], kind: str) -> NDArray[Any]:
    """Activations as memory of their type holds them."""
    if kind == "bf16":
        return np.asarray(bfloat16_bits(x))
    with np.errstate(over="ignore"):
        return x.astype(FORMATS[kind].dtype)


def default_cases(fmt: Format, seed: int) -> list[Case]:
    """The default cases: broadcast batches, permuted operands, rows apart, x in the type of the weights."""
    block = max(fmt.block_size, 32)
    odd, usual = 3 * block, 512 // block * block or block
    sizes = "normal", seed, None
    cases: list[Case] = [
        Batch(fmt, 5, 33, odd, *sizes, (2, 6), (2, 2)),
        Strided(fmt, 4, 17, odd, *sizes, (3, 2), (3, 2), "f32", (0, 2, 1, 3)),
        Strided(fmt, 9, 32, usual, *sizes, (2, 3), (1, 3), "f32", (0, 3, 2, 1)),
        Strided(fmt, 9, 33, usual, *sizes, (1, 2), (1, 2), "f32", PLAIN, usual + 2 * block),
        Strided(fmt, 5, 33, odd, *sizes, (2, 1), (2, 1), "f32", (0, 1, 3, 2)),
    ]
    if fmt.name in ACTIVATIONS[1:]:
        cases += [Strided(fmt, m, 33, odd, *sizes, (1, 2), (1, 1), fmt.name) for m in (1, 9)]
    return cases


def parse_product(text: str, seed: int) -> Case:
    """A case of test-backend-ops, ``MUL_MAT(type_a=q5_1,type_b=f32,m=16,n=1,k=256,bs=[3,1],nr=[1,1])``.

    There m counts rows of weights (our N) and n rows of activations (our M); bs are axes ne[2] and ne[3] of
    the weights, and nr how many times as many the activations have. ``data`` is one of ours.
    """
    fields = fields_of(text, ("type_a", "m", "n", "k"))
    orders = {f"[{','.join(map(str, order))}]": order for order in ORDERS}
    refuse_others(text, fields, {"type_b": {*ACTIVATIONS}, "per": {*orders}, "v": {"0"}, "o": {"1"}})
    case = Case(
        FORMATS[fields["type_a"]], int(fields["n"]), int(fields["m"]), int(fields["k"]),
        parse_data(fields.get("data", "normal"))[0], seed,
    )  # fmt: skip
    (w2, w3), (r2, r3) = (_pair(text, fields, name) for name in ("bs", "nr"))
    look = (
        fields.get("type_b", "f32"), orders[fields.get("per", "[0,1,2,3]").replace(" ", "")],
        int(fields.get("k_v", "0")),
    )  # fmt: skip
    plain = look == ("f32", PLAIN, 0)
    if plain and (w2, w3, r2, r3) == (1, 1, 1, 1):
        return case
    parts = case.format, case.m, case.n, case.k, case.data, seed, None, (w3 * r3, w2 * r2), (w3, w2)
    return Batch(*parts) if plain else Strided(*parts, *look)


def _pair(text: str, fields: dict[str, str], name: str) -> Pair:
    match = re.fullmatch(r"\[\s*([1-9]\d*)\s*,\s*([1-9]\d*)\s*\]", fields.get(name, "[1,1]").strip())
    if match is None:
        raise ShapeError(
            f"case {text!r}: {name}={fields[name]} is not two counts; they are at least 1; write {name}=[3,1]"
        )
    return int(match[1]), int(match[2])


def load(path: Path) -> Batch:
    """A case that ``--save`` wrote. Its arrays are checked here and read when the case runs."""
    saved = Dump(path)
    order, whole = saved.lengths("per"), saved.number("k_v")
    if order not in ORDERS or saved.text("type_b") not in ACTIVATIONS:
        raise DumpError(
            f"--replay {path}: per is {order}, type_b {saved.text('type_b')}; save the case again"
        )
    return load_batch(path, Strided, saved.text("type_b"), order, whole)
