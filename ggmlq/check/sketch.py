"""``Sketch``: writes a case of one operation, a small graph with seeded data in its leaves.

``CASES[op]`` is a function of a seed. The files ``opcases*.py`` fill it: each function there draws into a
sketch, and yields what the case is called.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..formats import FORMATS
from ..llama.program import Leaf, Program, Step

COPIES = 8  # of all tensors, in both processes


class Tensor(NamedTuple):
    """A leaf, or the result of a call, of a sketch."""

    is_leaf: bool
    number: int


@dataclass(frozen=True)
class OpCase:
    """A case of one operation: its graph, and the kind of data in each leaf."""

    op: str
    about: str  # "ne=[17,5,3,1], rows apart"
    program: Program
    kinds: tuple[str, ...]
    seed: int = 0
    pool: tuple[int, ...] = ()  # numbers of threads of one pool; () for a pool in each run

    def __str__(self) -> str:
        return f"{self.op}({self.about})"

    @property
    def needs(self) -> int:
        """Bytes that the case takes in both processes."""
        return COPIES * sum(leaf.bytes for leaf in self.program.leaves)

    def arrays(self) -> list[NDArray[Any]]:
        """The data of the leaves, the same for the same case and seed."""
        rng = np.random.default_rng([self.seed, zlib.crc32(str(self).encode())])
        leaves = self.program.leaves
        return [data_of(rng, leaf, kind) for leaf, kind in zip(leaves, self.kinds, strict=True)]


Cases = Callable[[int], Iterator[OpCase]]  # the cases of an operation, by a seed
CASES: dict[str, Cases] = {}
LARGE: dict[str, Cases] = {}  # large ones of many operations
Drawing = Callable[..., Iterator[str]]

# The arguments of a function as letters: t tensor, i f l z b numbers, I ints. They follow from the values but
# where whole numbers are of 64 bits; "!" attaches a tensor to one that is there, and gives none.
LETTERS = {
    "view_4d": "tllllzzzz", "repeat_4d": "tllll", "interpolate": "tlllli", "im2col_3d": "ttliiiiiiiiii",
    "acc": "ttzzzz", "acc_inplace": "ttzzzz", "set": "ttzzzz", "set_inplace": "ttzzzz",
    "ssm_scan": "tttttttl", "gated_delta_net": "ttttttl",
    "soft_max_add_sinks": "tt!", "flash_attn_ext_add_sinks": "tt!",
}  # fmt: skip
LETTER = {Tensor: "t", type(None): "t", bool: "b", int: "i", float: "f", tuple: "I"}


def cases(op: str, *values: Any, large: bool = False, **more: Any) -> Callable[[Drawing], Drawing]:
    """A decorator that adds what a function draws to the cases of an operation, with these values.

    The function gets a sketch, which begins anew behind each case whose name it yields.
    """

    def enter(draw: Drawing) -> Drawing:
        table = LARGE if large else CASES
        before = table.get(op)

        def drawn(seed: int) -> Iterator[OpCase]:
            yield from before(seed) if before else ()
            s = Sketch()
            for about in draw(s, *values, **more):
                yield s.case(op, f"large, {about}" if large else about, seed, s.over, s.pool)
                s.begin()

        table[op] = drawn
        return draw

    return enter


def about(ne: tuple[int, ...], *more: str) -> str:
    """A case in words: its lengths, and what is special."""
    return ", ".join([f"ne=[{','.join(map(str, (*ne, 1, 1, 1)[:4]))}]", *filter(None, more)])


class Sketch:
    """Leaves and calls, one after the other; ``case`` is the whole."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with nothing."""
        self._leaves: list[tuple[Leaf, str]] = []
        self._steps: list[tuple[str, str, tuple[Any, ...]]] = []
        self.over: int | None = None  # the source in whose memory the result lies
        self.pool: tuple[int, ...] = ()  # numbers of threads that one pool runs it with, one after the other

    def leaf(self, *ne: int, type: str = "f32", data: str = "normal") -> Tensor:
        """A tensor with lengths in ggml's order and a kind of data."""
        self._leaves.append((Leaf(type, ne), data))
        return Tensor(True, len(self._leaves) - 1)

    def call(self, function: str, *values: Any) -> Tensor:
        """A call of ``ggml_<function>``."""
        kinds = LETTERS.get(function) or "".join(LETTER[type(value)] for value in values)
        self._steps.append((function, kinds, values))
        results = sum("!" not in kinds for _, kinds, _ in self._steps)
        return Tensor(False, results - 1)

    def apart(self, *ne: int, data: str = "normal", type: str = "f32") -> Tensor:
        """A part of a larger tensor: rows, planes and sequences lie apart, behind the memory's beginning."""
        fmt = FORMATS[type]
        ne = (*ne, 1, 1, 1)[:4]
        more = fmt.block_size if fmt.block_size > 1 else 3
        wide, tall, deep = ne[0] + more, ne[1] + 2, ne[2] + (ne[3] > 1)
        whole = self.leaf(wide, tall, deep, ne[3], type=type, data=data)
        row = wide // fmt.block_size * fmt.dtype.itemsize
        strides = (row, row * tall, row * tall * deep)
        return self.call("view_4d", whole, *ne, *strides, row + fmt.dtype.itemsize)

    def part(self, whole: Tensor, width: int, *ne: int) -> Tensor:
        """The first elements of each row of a leaf."""
        leaf = self._leaves[whole.number][0]
        fmt = FORMATS[leaf.type]
        row = leaf.ne[0] // fmt.block_size * fmt.dtype.itemsize
        strides = (row, row * leaf.ne[1], row * leaf.ne[1] * leaf.ne[2])
        return self.call("view_4d", whole, width, *(*ne, 1, 1)[:3], *strides, 0)

    def cached(self, *ne: int, data: str = "normal", type: str = "f32") -> Tensor:
        """Keys or values [D, n, heads, streams] as a cache holds them: heads side by side, more positions."""
        width, n, heads, streams = (*ne, 1, 1)[:4]
        fmt = FORMATS[type]
        whole = self.leaf(width * heads, n + 7, streams, type=type, data=data)
        head = width // fmt.block_size * fmt.dtype.itemsize
        strides = (head * heads, head, head * heads * (n + 7))
        return self.call("view_4d", whole, width, n, heads, streams, *strides, 0)

    def permuted(self, *ne: int, data: str = "normal", type: str = "f32") -> Tensor:
        """A tensor whose second and third axes changed places."""
        ne = (*ne, 1, 1, 1)[:4]
        leaf = self.leaf(ne[0], ne[2], ne[1], ne[3], type=type, data=data)
        return self.call("permute", leaf, 0, 2, 1, 3)

    def transposed(self, *ne: int, type: str = "f32") -> Tensor:
        """A tensor whose first two axes changed places."""
        ne = (*ne, 1, 1, 1)[:4]
        return self.call("transpose", self.leaf(ne[1], ne[0], ne[2], ne[3], type=type))

    def case(
        self, op: str, about: str, seed: int, over: int | None = None, pool: tuple[int, ...] = ()
    ) -> OpCase:
        """The case; its node is the result of the last call, perhaps in the memory of one of its sources."""
        count = len(self._leaves)
        steps = []
        for function, kinds, values in self._steps:
            attaches = "!" in kinds
            arguments = [
                ("t", v.number + (0 if v.is_leaf else count)) if isinstance(v, Tensor)
                else ("n", None) if v is None else (kind, list(v) if kind == "I" else v)
                for kind, v in zip(kinds.replace("!", ""), values, strict=True)
            ]  # fmt: skip
            steps.append(Step(function, tuple(arguments), attaches))
        leaves, kinds_of_data = zip(*self._leaves, strict=True) if self._leaves else ((), ())
        program = Program(tuple(leaves), tuple(steps), over)
        return OpCase(op, about, program, tuple(kinds_of_data), seed, pool)


# Not a number, infinities, zeros of both signs, numbers of fewer bits, the largest.
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -3e-39, 3.4e38, -3.4e38, 6e4, 1e-7)

# Kinds of data that follow from normal numbers.
OF_NORMAL: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "normal": lambda v: v,
    "share": lambda v: np.abs(v) / np.abs(v).sum(axis=-1, keepdims=True),
    "positive": lambda v: np.abs(v) + 0.1,
    "decay": lambda v: -np.abs(v) - 0.05,
    "gate": lambda v: 0.5 + 0.49 * np.tanh(v),
    "wide": lambda v: v * 6,
    "small": lambda v: v * 0.3,
    "equal": lambda v: np.round(v * 2),  # many equal elements
    "spread": lambda v: v * 100,  # exp of the differences is beyond float32
    # rows of all sizes, down to those that an epsilon outweighs
    "graded": lambda v: v * np.logspace(0, -9, math.prod(v.shape[:-1])).reshape(*v.shape[:-1], 1),
    # lower triangles that a system can be solved with
    "triangle": lambda v: np.tril(v * 0.2) + 2.0 * np.eye(*v.shape[-2:]),
}


def data_of(rng: np.random.Generator, leaf: Leaf, kind: str) -> NDArray[Any]:
    """Data of a leaf: numbers of a kind, encoded in its type."""
    shape = tuple(reversed((*leaf.ne, 1, 1, 1)[:4]))
    values = _numbers(rng, shape, kind)
    fmt = FORMATS[leaf.type]
    if fmt.block_size > 1 or leaf.type == "bf16":
        rows = np.ascontiguousarray(values, np.float32).reshape(-1, shape[-1])
        return fmt.encode(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(fmt.dtype)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    kind, _, most = kind.partition(":")
    size = math.prod(shape)
    if kind == "tiled":  # one row over and over, in float16 at once: for tensors that fill the memory
        row = rng.standard_normal(shape[-1]).astype(np.float16)
        return np.broadcast_to(row, shape)
    if kind == "ids":  # any below a number
        return rng.integers(0, int(most), shape)
    if kind == "places":  # all different in a row
        rows = [rng.permutation(int(most))[: shape[-1]] for _ in range(size // shape[-1])]
        return np.stack(rows).reshape(shape)
    if kind == "positions":
        return np.sort(rng.integers(0, int(most), shape), axis=-1)
    if kind == "mask":  # nothing, or hidden; each row keeps one place at least
        hidden = np.where(rng.random(shape) < 0.3, -np.inf, np.round(rng.standard_normal(shape), 1))
        hidden[..., 0] = 0.0
        return hidden
    if kind == "hidden":  # every other row has no place at all
        hidden = _numbers(rng, shape, "mask")
        hidden[..., ::2, :] = -np.inf
        return hidden
    if kind == "causal":  # what lies more than some places ahead of a row is hidden, whole blocks of it
        row, column = np.ogrid[: shape[-2], : shape[-1]]
        return np.where(column > row + int(most), -np.inf, np.zeros(shape))
    values = rng.standard_normal(shape)
    if kind == "mixed":  # sizes over several powers of ten, and shifted rows
        return values * 10.0 ** rng.integers(-3, 3, shape) + rng.standard_normal((*shape[:-1], 1))
    if kind == "special":  # in some places
        return np.where(rng.random(shape) < 0.4, rng.choice(SPECIAL, shape), values)
    if kind == "NaN":  # in every other row, one
        flat = values.reshape(-1, shape[-1])
        flat[np.arange(0, len(flat), 2), rng.integers(0, shape[-1], -(-len(flat) // 2))] = np.nan
        return flat.reshape(shape)
    return OF_NORMAL[kind](values)
