"""Seeded cases of operations element by element and on rows: edges of vectors and tiles, strides, views.

All cases of an operation take a few seconds at most. ``CASES`` has those of all operations, also of the files
``opcases_*.py``; ``LARGE`` has others of more rows than a grid has blocks along an axis, and of more than
2^31 elements. One of these takes many GiB; where so many are not free, it is not run, and the report says
how many it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .sketch import CASES, LARGE, Sketch, Tensor, about, cases

__all__ = ["CASES", "LARGE"]

SIZES = (1, 15, 16, 17, 20, 31, 64, 100, 257)
SHAPES = ((17, 5, 3, 2), (100, 4, 1, 1), (64, 7, 2, 1), (20, 1, 5, 3))
LOOKS = {"": "leaf", "rows apart": "apart", "permuted": "permuted"}  # ways to look at memory


def looked(s: Sketch, look: str, ne: tuple[int, ...], data: str = "normal") -> Tensor:
    """A tensor at which one looks so."""
    tensor: Tensor = getattr(s, LOOKS[look])(*ne, data=data)
    return tensor


def shapes(looks: bool = True) -> Iterator[tuple[tuple[int, ...], str]]:
    """Shapes, each with a way to look at the memory."""
    for n in SIZES:
        yield (n, 3), ""
    for ne in SHAPES:
        for look in LOOKS if looks else [""]:
            yield ne, look


# --- one tensor -----------------------------------------------------------------------------------


@cases("FILL", "fill", -2.5, looks=False, in_place=True)
@cases("SQR", "sqr", over_source=True)
@cases("SQRT", "sqrt", data="positive")
@cases("LOG", "log", data="positive")
@cases("SIN", "sin", data="wide")
@cases("COS", "cos", data="wide")
@cases("LEAKY_RELU", "leaky_relu", 0.1, False, looks=False)
@cases("XIELU", "xielu", 0.8, 0.3, 0.5, -1e-6, looks=False)
@cases("NORM", "norm", 1e-5, data="mixed", in_place=True)
@cases("RMS_NORM", "rms_norm", 1e-2, data="mixed", in_place=True, over_source=True)
@cases("L2_NORM", "l2_norm", 1e-6, data="mixed", in_place=True)
@cases("SUM", "sum", looks=False)
@cases("SUM_ROWS", "sum_rows")
@cases("MEAN", "mean")
@cases("CUMSUM", "cumsum")
def one(
    s: Sketch, function: str, *values: Any, data: str = "normal", looks: bool = True, in_place: bool = False,
    over_source: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Cases of an operation of one tensor and some numbers."""
    for ne, look in shapes(looks):
        s.call(function, looked(s, look, ne, data), *values)
        yield about(ne, look)
    if over_source:
        s.call(function, s.leaf(100, 6, 3, data=data), *values)
        s.over = 0
        yield about((100, 6, 3), "over its source")
    if "norm" in function:  # long rows of like elements: each counts as much as the others
        s.call(function, s.leaf(1056, 3), *values)
        yield about((1056, 3))
    if in_place:
        s.call(f"{function}_inplace", s.leaf(100, 6, data=data), *values)
        yield about((100, 6), "in place")


@cases("CLAMP", "clamp", -0.5, 0.75)
def behind(s: Sketch, function: str, *values: float) -> Iterator[str]:
    """Cases of one tensor, also behind a sum that takes all threads."""
    yield from one(s, function, *values)
    s.call(function, s.leaf(33, 4, type="f16"), *values)
    yield about((33, 4), "f16")
    s.call(function, s.call("add", s.leaf(64, 33), s.leaf(64, 33)), *values)
    yield about((64, 33), "behind ADD")


@cases("SCALE")
def scale(s: Sketch) -> Iterator[str]:
    """Cases of a factor, with and without a bias, which libraries before July 2025 do not have."""
    for function, *values in (("scale_bias", 0.7, -1.3), ("scale", 0.7)):
        for named in one(s, str(function), *values, looks=False, in_place=True, over_source=True):
            yield f"{named}, {function}"


NO_BF16 = ("gelu", "gelu_quick", "gelu_erf", "silu")  # functions that ggml has of other types alone


def unary(s: Sketch, function: str) -> Iterator[str]:
    """Cases of a function of each element: also halves, and in place."""
    for ne, look in shapes():
        s.call(function, looked(s, look, ne, "wide"))
        yield about(ne, look)
    for kind, look in (("f16", ""), ("f16", "rows apart"), ("bf16", "")):
        if kind == "bf16" and function in NO_BF16:
            continue
        ne = (100, 5, 3) if look else (257, 3)
        s.call(function, getattr(s, LOOKS[look])(*ne, type=kind, data="wide"))
        yield about(ne, look, kind)
    s.call(function, s.leaf(100, 6, data="wide"))
    s.over = 0
    yield about((100, 6), "over its source")


for _name in (
    "abs", "sgn", "neg", "step", "tanh", "elu", "relu", "sigmoid", "gelu", "gelu_quick", "silu", "hardswish",
    "hardsigmoid", "exp", "expm1", "softplus", "gelu_erf", "floor", "ceil", "round", "trunc",
):  # fmt: skip
    cases(_name.upper(), _name)(unary)


@cases("ARANGE")
def arange(s: Sketch) -> Iterator[str]:
    """Cases of numbers in a row."""
    for start, stop, step in ((0.0, 17.0, 1.0), (1.5, 40.0, 0.5), (-3.0, 61.0, 0.3)):
        s.call("arange", start, stop, step)
        yield f"{start:g} to {stop:g} by {step:g}"


# --- two tensors ----------------------------------------------------------------------------------


@cases("ADD", "add")
@cases("SUB", "sub")
@cases("MUL", "mul")
@cases("DIV", "div", "positive")
def two(s: Sketch, function: str, data: str = "normal") -> Iterator[str]:
    """Cases of an operation of two tensors, the second repeated along some axes."""
    for ne, look in shapes():
        s.call(function, looked(s, look, ne), s.leaf(*ne, data=data))
        yield about(ne, look)
    for b in ((1, 1, 1, 1), (20, 1, 1, 1), (20, 6, 1, 1), (20, 3, 4, 1), (1, 6, 4, 2), (10, 2, 2, 1)):
        s.call(function, s.leaf(20, 6, 4, 2), s.leaf(*b, data=data))
        yield about((20, 6, 4, 2), f"b={list(b)}")
    for look in ("rows apart", "permuted"):
        s.call(function, s.leaf(20, 6, 4, 2), looked(s, look, (20, 3, 2, 2), data))
        yield about((20, 6, 4, 2), f"b=[20,3,2,2] {look}")
    for types in (("f16", "f16"), ("f16", "f32"), ("bf16", "f32"), ("bf16", "bf16")):
        for ne in ((33, 5, 1, 1), (17, 4, 3, 2)):
            s.call(function, s.leaf(*ne, type=types[0]), s.leaf(*ne, type=types[1], data=data))
            yield about(ne, " and ".join(types))
    for over in (0, 1):
        s.call(function, s.leaf(100, 6, 3), s.leaf(100, 6, 3, data=data))
        s.over = over
        yield about((100, 6, 3), f"over source {over}")
    s.call(f"{function}_inplace", s.leaf(100, 6), s.leaf(100, 1, data=data))
    yield about((100, 6), "in place")


@cases("ADD1")
def add1(s: Sketch) -> Iterator[str]:
    """Cases of one number added to all."""
    for ne, look in shapes(looks=False):
        s.call("add1", looked(s, look, ne), s.leaf(1))
        yield about(ne, look)


@cases("REGLU", "reglu")
@cases("GEGLU", "geglu")
@cases("SWIGLU", "swiglu")
@cases("GEGLU_ERF", "geglu_erf")
@cases("GEGLU_QUICK", "geglu_quick")
def gated(s: Sketch, function: str) -> Iterator[str]:
    """Cases of gated functions: one tensor in halves, either order, or two."""
    for n in SIZES:
        s.call(f"{function}_split", s.leaf(n, 5, data="wide"), s.leaf(n, 5))
        yield about((n, 5), "two tensors")
        for suffix in ("", "_swapped"):
            s.call(f"{function}{suffix}", s.leaf(2 * n, 5, data="wide"))
            yield about((2 * n, 5), f"halves{suffix}")
    s.call(f"{function}_split", *(s.leaf(33, 5, type="f16") for _ in "ab"))
    yield about((33, 5), "f16, two tensors")
    s.call(function, s.leaf(66, 5, 3, type="f16"))
    yield about((66, 5, 3), "f16, halves")


@cases("SWIGLU_OAI", "swiglu_oai", 1.702, 7.0)
@cases("SWIGLU_CLAMP", "swiglu_clamp", 7.0)
def limited(s: Sketch, function: str, *values: float) -> Iterator[str]:
    """Cases of gates with a limit, some beyond it."""
    for n in SIZES:
        s.call(function, s.leaf(n, 5, data="wide"), s.leaf(n, 5, data="wide"), *values)
        yield about((n, 5))


# --- rows -----------------------------------------------------------------------------------------


@cases("GROUP_NORM")
def group_norm(s: Sketch) -> Iterator[str]:
    """Cases of groups of channels, the last of them smaller."""
    for ne, groups in (((5, 7, 12, 2), 4), ((20, 3, 7, 1), 3), ((1, 1, 32, 1), 32), ((17, 1, 8, 1), 1)):
        for look in LOOKS:
            s.call("group_norm", looked(s, look, ne, "mixed"), groups, 1e-5)
            yield about(ne, look, f"{groups} groups")


@cases("ARGMAX", "argmax", ())
@cases("ARGSORT", "argsort", (1,), (0,))
def orders(s: Sketch, function: str, *every: tuple[int, ...]) -> Iterator[str]:
    """Cases of orders of rows, with equal elements among them."""
    for values in every:
        for n in (*SIZES, 1056):
            for data in ("normal", "equal"):
                s.call(function, s.leaf(n, 4, data=data), *values)
                yield about((n, 4), data, f"{list(values)}" if values else "")
        if values:
            s.call(function, s.leaf(33, 4, 3, 2), *values)
            yield about((33, 4, 3, 2), str(list(values)))


@cases("TOP_K")
def top_k(s: Sketch) -> Iterator[str]:
    """Cases of the largest elements of rows, all of them and one."""
    for n, k in ((1, 1), (16, 1), (17, 4), (64, 8), (100, 100), (257, 6), (2000, 40)):
        s.call("top_k", s.leaf(n, 5), k)
        yield about((n, 5), f"k={k}")


@cases("COUNT_EQUAL")
def counts(s: Sketch) -> Iterator[str]:
    """Cases of equal elements of two rows."""
    for n in SIZES:
        s.call("count_equal", *(s.leaf(n, 3, type="i32", data="ids:3") for _ in "ab"))
        yield about((n, 3))


# --- gradients, also with the result in the memory of a source, where allocators of graphs put it ---


FEWER_SIZES = (1, 15, 17, 64, 100)


@cases("SILU_BACK", "silu_back")
@cases("RMS_NORM_BACK", "rms_norm_back", 1e-5)
@cases("SOFT_MAX_BACK", "soft_max_ext_back", 0.7, 0.0, data="share")
def gradients(s: Sketch, function: str, *values: float, data: str = "normal") -> Iterator[str]:
    """Cases of a gradient and the value that it belongs to."""
    for n in FEWER_SIZES:
        for over in (None, 0):
            s.call(function, s.leaf(n, 5, 3), s.leaf(n, 5, 3, data=data), *values)
            s.over = over
            yield about((n, 5, 3), "" if over is None else "over its first source")


@cases("REPEAT_BACK")
def repeat_back(s: Sketch) -> Iterator[str]:
    """Tensors that were repeated along each axis, and along all."""
    for times in ((2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (3, 2, 2, 2)):
        ne = (17, 5, 2, 2)
        whole = [a * b for a, b in zip(ne, times, strict=True)]
        s.call("repeat_back", s.leaf(*whole), s.leaf(*ne))
        yield f"{list(ne)} times {list(times)}"


@cases("GET_ROWS_BACK")
def get_rows_back(s: Sketch) -> Iterator[str]:
    """Rows that were taken once, twice and not at all."""
    for n in FEWER_SIZES:
        ids = s.leaf(9, type="i32", data="ids:11")
        s.call("get_rows_back", s.leaf(n, 9), ids, s.leaf(n, 11))
        yield f"ne=[{n},11,1,1], 9 rows"


# --- large ones -----------------------------------------------------------------------------------


MANY = 65537  # rows: a grid has 65535 blocks along its second and third axis
LONG, TALL = 1 << 16, (1 << 15) + 1  # together more than 2^31
LARGE_SHAPES = ((20, MANY, 1, 1), (16, 3, MANY, 1), (8, 2, 3, MANY // 3))


@cases("SCALE", "scale", 0.7, large=True)
@cases("SQR", "sqr", large=True)
@cases("CLAMP", "clamp", -0.5, 0.75, large=True)
@cases("SILU", "silu", large=True)
@cases("GELU", "gelu", large=True)
@cases("RELU", "relu", large=True)
@cases("NORM", "norm", 1e-5, large=True)
@cases("RMS_NORM", "rms_norm", 1e-5, large=True)
@cases("L2_NORM", "l2_norm", 1e-6, large=True)
@cases("SOFT_MAX", "soft_max", large=True)
@cases("SUM_ROWS", "sum_rows", large=True)
@cases("MEAN", "mean", large=True)
@cases("CUMSUM", "cumsum", large=True)
@cases("ARGSORT", "argsort", 1, large=True)
@cases("SWIGLU", "swiglu", large=True)
def large_one(s: Sketch, function: str, *values: Any) -> Iterator[str]:
    """Cases of one tensor with many rows, planes and sequences."""
    for ne in LARGE_SHAPES:
        s.call(function, s.leaf(*ne), *values)
        yield f"ne={list(ne)}"


@cases("ADD", "add", large=True)
@cases("SUB", "sub", large=True)
@cases("MUL", "mul", large=True)
@cases("DIV", "div", large=True)
def large_two(s: Sketch, function: str) -> Iterator[str]:
    """Cases of two tensors, the second repeated."""
    for ne in LARGE_SHAPES:
        for b in (ne, (ne[0], 1, 1, 1), (1, *ne[1:])):
            s.call(function, s.leaf(*ne), s.leaf(*b, data="positive"))
            yield f"ne={list(ne)}, b={list(b)}"
    s.call(function, s.leaf(LONG, TALL, type="f16", data="tiled"), s.leaf(LONG, type="f16"))
    yield f"ne=[{LONG},{TALL},1,1], f16 and f16"


@cases("CPY", large=True)
def large_copies(s: Sketch) -> Iterator[str]:
    """Copies of many rows, permuted and into halves and blocks."""
    for ne in LARGE_SHAPES[:2]:
        for kind in ("f32", "f16"):
            s.call("cpy", s.permuted(*ne), s.leaf(*ne, type=kind))
            yield f"ne={list(ne)}, permuted, f32 to {kind}"
    s.call("cpy", s.leaf(32, MANY), s.leaf(32, MANY, type="q8_0"))
    yield f"ne=[32,{MANY},1,1], f32 to q8_0"
    s.call("cpy", s.leaf(LONG, TALL, type="f16", data="tiled"), s.leaf(LONG, TALL, type="f16"))
    yield f"ne=[{LONG},{TALL},1,1], f16 to f16"


@cases("CONT", large=True)
def large_conts(s: Sketch) -> Iterator[str]:
    """Permuted and transposed tensors of many rows in one piece."""
    for ne in LARGE_SHAPES:
        for look in ("permuted", "transposed"):
            s.call("cont", getattr(s, look)(*ne))
            yield f"ne={list(ne)}, {look}"


@cases("GET_ROWS", large=True)
def large_get_rows(s: Sketch) -> Iterator[str]:
    """Many rows by ids, out of many."""
    for kind in ("f32", "f16", "q8_0"):
        ids = s.leaf(MANY, type="i32", data=f"ids:{MANY}")
        s.call("get_rows", s.leaf(32, MANY, type=kind), ids)
        yield f"{kind}, ne=[32,{MANY},1,1], {MANY} rows"


@cases("SET_ROWS", large=True)
def large_set_rows(s: Sketch) -> Iterator[str]:
    """Many rows stored by ids."""
    for kind in ("f32", "f16", "q8_0"):
        places = s.leaf(MANY, type="i64", data=f"places:{MANY + 9}")
        s.call("set_rows", s.leaf(32, MANY + 9, type=kind), s.leaf(32, MANY), places)
        yield f"{kind}, {MANY} rows"


@cases("CONCAT", large=True)
def large_concats(s: Sketch) -> Iterator[str]:
    """Two tensors of many rows along each axis."""
    for axis in range(3):
        s.call("concat", s.leaf(16, MANY, 2), s.leaf(16, MANY, 2), axis)
        yield f"ne=[16,{MANY},2,1] twice, axis {axis}"


# They fill CASES, the special ones behind all others.
from . import opcases_edges, opcases_images, opcases_models, opcases_moves, opcases_special  # noqa: E402, F401
