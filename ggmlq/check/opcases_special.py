"""Cases of special values, and of operands that few models have: any layout, blocks, a pool of threads.

Rules for special values, which the oracles hold a kernel to:

* What is moved keeps its bits: NaN stays NaN, an infinity its sign, and so does -0.
* Sums, products, quotients, squares, signs and limits follow IEEE 754 where the result is a number; it is NaN
  or infinite where that is. Of what is computed of NaN nothing is promised.
* Numbers below 2^-126 may become zero where something is computed. A GPU may take them for zero, and a
  quotient by more than 2^126 may be zero there.
* A NaN stays in its row: norms, sums and softmax of other rows are right.
* A row of attention whose mask hides every position is 0; on a GPU nothing is promised of it.
* So is a row of softmax whose mask does so, if it has a sink; else it is 0 / 0, and nothing is promised.
* A row of softmax or attention with a score that float32 does not hold, or that is formed of larger terms,
  takes infinity from infinity: nothing is promised of it, nor of sums with infinite values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from .opcases_images import WINDOWS
from .sketch import Sketch, Tensor, about, cases

BESIDE = ("", ", rows apart")


def _special(s: Sketch, look: str, *ne: int, type: str = "f32") -> Tensor:
    tensor: Tensor = (s.apart if look else s.leaf)(*ne, type=type, data="special")
    return tensor


@cases("ABS", "abs")
@cases("NEG", "neg")
@cases("SGN", "sgn")
@cases("RELU", "relu")
@cases("FLOOR", "floor")
@cases("CEIL", "ceil")
@cases("TRUNC", "trunc")
@cases("SQR", "sqr")
@cases("SQRT", "sqrt")
@cases("SCALE", "scale", 0.7)
@cases("CLAMP", "clamp", -0.5, 0.75)
@cases("CONT", "cont")
@cases("DUP", "dup")
def special_one(s: Sketch, function: str, *values: float) -> Iterator[str]:
    """Special values in one tensor, in vectors and behind them."""
    for look in BESIDE if function not in ("clamp", "scale") else BESIDE[:1]:
        s.call(function, _special(s, look, 37, 5), *values)
        yield about((37, 5), f"special values{look}")


@cases("ADD", "add")
@cases("SUB", "sub")
@cases("MUL", "mul")
@cases("DIV", "div")
def special_two(s: Sketch, function: str) -> Iterator[str]:
    """Special values in two tensors, the second broadcast or with its axes in reverse."""
    for b in ((37, 5), (1, 5), (37, 1)):
        s.call(function, _special(s, "", 37, 5), _special(s, "", *b))
        yield f"ne=[37,5,1,1], b={list(b)}, special values"
    for axes in ((2, 1, 0, 3), (1, 0, 2, 3), (0, 2, 1, 3)):
        ne = [33, 5, 4, 2]
        under = [ne[axes.index(i)] if axes != (0, 2, 1, 3) else (33, 4, 5, 2)[i] for i in range(4)]
        s.call(function, s.leaf(33, 5, 4, 4), s.call("permute", s.leaf(*under, data="positive"), *axes))
        yield f"ne=[33,5,4,4], b=[33,5,4,2] with axes to {list(axes)}"


@cases("CPY", "f32 f16 bf16")
def special_copies(s: Sketch, kinds: str) -> Iterator[str]:
    """Special values between types of numbers."""
    for first, second in product(kinds.split(), repeat=2):
        s.call("cpy", _special(s, "", 37, 5, type=first), s.leaf(37, 5, type=second))
        yield f"{first} to {second}, special values"


@cases("GET_ROWS")
@cases("SET_ROWS", True)
def special_rows(s: Sketch, stored: bool = False) -> Iterator[str]:
    """Rows of special values, by ids."""
    for kind in ("f32", "f16", "bf16"):
        if stored:
            ids = s.leaf(5, type="i64", data="places:13")
            s.call("set_rows", s.leaf(37, 13, type=kind), _special(s, "", 37, 5), ids)
        else:
            s.call("get_rows", _special(s, "", 37, 11, type=kind), s.leaf(9, type="i32", data="ids:11"))
        yield f"{kind}, special values"


@cases("CONCAT", "concat")
@cases("REPEAT", "repeat")
def special_moves(s: Sketch, function: str) -> Iterator[str]:
    """Special values side by side, and over and over."""
    a = _special(s, "", 37, 5)
    if function == "concat":
        s.call(function, a, _special(s, "", 37, 5), 0)
    else:
        s.call(function, a, s.leaf(74, 10))
    yield "ne=[37,5,1,1], special values"


@cases("NORM", "norm", 1e-5, turned=True)
@cases("RMS_NORM", "rms_norm", 1e-5, turned=True)
@cases("L2_NORM", "l2_norm", 1e-6, turned=True)
@cases("GROUP_NORM", "group_norm", 4, 1e-5)
@cases("SOFT_MAX", "soft_max")
@cases("SUM_ROWS", "sum_rows")
@cases("MEAN", "mean")
@cases("CUMSUM", "cumsum")
def in_their_row(s: Sketch, function: str, *values: float, turned: bool = False) -> Iterator[str]:
    """NaN in every other row, or plane; rows whose elements lie apart."""
    ne = (37, 1, 12) if function == "group_norm" else (37, 6)
    s.call(function, s.leaf(*ne, data="NaN"), *values)
    yield about(ne, "NaN in some rows")
    for shape in ((33, 5, 2), (64, 7, 1)) if turned else ():
        s.call(function, s.transposed(*shape), *values)
        yield about(shape, "transposed")


@cases("ADD")
@cases("ADD1", True)
def in_blocks(s: Sketch, one: bool = False) -> Iterator[str]:
    """Sums that are stored in blocks."""
    for kind in ("q8_0", "q4_0", "q4_1", "q5_1", "q1_0"):
        x = s.leaf(256, 5, type=kind)
        s.call("add1" if one else "add", x, s.leaf(1) if one else s.leaf(256, 5))
        yield about((256, 5), kind)


POOL = (1, 4, 2, 8, 3)


@cases("ADD")
def one_pool(s: Sketch) -> Iterator[str]:
    """Several nodes, by one pool of threads of which each run takes another number."""
    first = s.call("add", s.leaf(64, 33), s.leaf(64, 33))
    s.call("add", first, s.leaf(64, 33))
    s.pool = POOL
    yield about((64, 33), f"{' '.join(map(str, POOL))} threads of one pool")


@cases("CONV_2D")
def turned_images(s: Sketch) -> Iterator[str]:
    """Images and kernels whose channels are neighbours in memory."""
    for kind, (step, pad, apart) in product(("f32", "f16"), WINDOWS):
        x = s.call("permute", s.leaf(4, 17, 9, 2), 2, 0, 1, 3)
        kernel = s.call("permute", s.leaf(5, 4, 3, 2, type=kind), 3, 2, 0, 1)
        s.call("conv_2d_direct", kernel, x, step, step, pad, pad, apart, apart)
        yield f"{kind}, channels that are neighbours, s={step} p={pad} d={apart}"


@cases("OUT_PROD")
def planes_of_blocks(s: Sketch) -> Iterator[str]:
    """Outer products of blocks, each plane for several of the second; blocks of one bit."""
    for kind, (n, outer) in product(("q4_0", "q8_0", "q1_0"), ((7, (1, 1)), (5, (2, 1)), (3, (2, 3)))):
        width = 256 if kind == "q1_0" else 64
        s.call("out_prod", s.leaf(width, n, 2, type=kind), s.leaf(9, n, 2 * outer[0], outer[1]))
        yield f"{kind}, [{width},{n},2,1] and [9,{n},{2 * outer[0]},{outer[1]}]"
