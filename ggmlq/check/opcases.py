"""Seeded cases of operations: sizes at the edges of vectors and tiles, strides, views, permutations.

``CASES[op]`` is a function of a seed; all cases of an operation take a few seconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from . import opcases_attention, opcases_gradients, opcases_windows
from .opcases_images import images
from .opcases_looks import LOOKS, SIZES, about, one, shapes
from .opcases_models import models
from .opcases_moves import moves
from .opcases_rows import rows
from .sketch import Cases, OpCase, Sketch

UNARY = [
    "abs",
    "sgn",
    "neg",
    "step",
    "tanh",
    "elu",
    "relu",
    "sigmoid",
    "gelu",
    "gelu_quick",
    "silu",
    "hardswish",
    "hardsigmoid",
    "exp",
    "expm1",
    "softplus",
    "gelu_erf",
    "floor",
    "ceil",
    "round",
    "trunc",
]
NO_BF16 = ("gelu", "gelu_quick", "gelu_erf", "silu")  # functions that ggml has of other types alone
GATED = ["reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick"]


def two(op: str, function: str, data: str = "normal") -> Cases:
    """Cases of an operation of two tensors, the second repeated along some axes."""

    def cases(seed: int) -> Iterator[OpCase]:
        for ne, look in shapes():
            s = Sketch()
            s.call(function, "tt", LOOKS[look](s, ne, "normal"), s.leaf(*ne, data=data))
            yield s.case(op, about(ne, look), seed)
        for b in ((1, 1, 1, 1), (20, 1, 1, 1), (20, 6, 1, 1), (20, 3, 4, 1), (1, 6, 4, 2), (10, 2, 2, 1)):
            s = Sketch()
            s.call(function, "tt", s.leaf(20, 6, 4, 2), s.leaf(*b, data=data))
            yield s.case(op, about((20, 6, 4, 2), "", f"b={list(b)}"), seed)
        for look in ("rows apart", "permuted"):
            s = Sketch()
            s.call(function, "tt", s.leaf(20, 6, 4, 2), LOOKS[look](s, (20, 3, 2, 2), data))
            yield s.case(op, about((20, 6, 4, 2), "", f"b=[20,3,2,2] {look}"), seed)
        for types in (("f16", "f16"), ("f16", "f32"), ("bf16", "f32"), ("bf16", "bf16")):
            for ne in ((33, 5, 1, 1), (17, 4, 3, 2)):
                s = Sketch()
                s.call(function, "tt", s.leaf(*ne, type=types[0]), s.leaf(*ne, type=types[1], data=data))
                yield s.case(op, about(ne, "", " and ".join(types)), seed)
        for over in (0, 1):
            s = Sketch()
            s.call(function, "tt", s.leaf(100, 6, 3), s.leaf(100, 6, 3, data=data))
            yield s.case(op, about((100, 6, 3), f"over source {over}"), seed, over)
        s = Sketch()
        s.call(f"{function}_inplace", "tt", s.leaf(100, 6), s.leaf(100, 1, data=data))
        yield s.case(op, about((100, 6), "in place"), seed)

    return cases


def behind(op: str, function: str, kinds: str, values: tuple[object, ...]) -> Cases:
    """Cases of one tensor, also behind a sum that takes all threads."""
    plain = one(op, function, kinds, values)

    def cases(seed: int) -> Iterator[OpCase]:
        yield from plain(seed)
        s = Sketch()
        s.call(function, kinds, s.leaf(33, 4, type="f16"), *values)
        yield s.case(op, about((33, 4), "", "f16"), seed)
        s = Sketch()
        s.call(function, kinds, s.call("add", "tt", s.leaf(64, 33), s.leaf(64, 33)), *values)
        yield s.case(op, about((64, 33), "", "behind ADD"), seed)

    return cases


def unary(seed: int, op: str) -> Iterator[OpCase]:
    """Cases of a function of each element: also halves, and in place."""
    for ne, look in shapes():
        s = Sketch()
        s.call(op, "t", LOOKS[look](s, ne, "wide"))
        yield s.case(op.upper(), about(ne, look), seed)
    kinds = [("f16", ""), ("f16", "rows apart"), *([("bf16", "")] if op not in NO_BF16 else [])]
    for kind, look in kinds:
        s = Sketch()
        x = s.apart(100, 5, 3, type=kind, data="wide") if look else s.leaf(257, 3, type=kind, data="wide")
        s.call(op, "t", x)
        yield s.case(op.upper(), about((100, 5, 3) if look else (257, 3), look, kind), seed)
    s = Sketch()
    s.call(op, "t", s.leaf(100, 6, data="wide"))
    yield s.case(op.upper(), about((100, 6), "over its source"), seed, 0)


def gated(seed: int, op: str) -> Iterator[OpCase]:
    """Cases of gated functions: one tensor in halves, either order, or two."""
    for n in SIZES:
        s = Sketch()
        s.call(f"{op}_split", "tt", s.leaf(n, 5, data="wide"), s.leaf(n, 5))
        yield s.case(op.upper(), about((n, 5), "", "two tensors"), seed)
        for suffix in ("", "_swapped"):
            s = Sketch()
            s.call(f"{op}{suffix}", "t", s.leaf(2 * n, 5, data="wide"))
            yield s.case(op.upper(), about((2 * n, 5), "", f"halves{suffix}"), seed)
    s = Sketch()
    s.call(f"{op}_split", "tt", *(s.leaf(33, 5, type="f16") for _ in "ab"))
    yield s.case(op.upper(), about((33, 5), "", "f16, two tensors"), seed)
    s = Sketch()
    s.call(op, "t", s.leaf(66, 5, 3, type="f16"))
    yield s.case(op.upper(), about((66, 5, 3), "", "f16, halves"), seed)


def oai(seed: int) -> Iterator[OpCase]:
    """Cases of gpt-oss's gate, some beyond its limit."""
    for n in SIZES:
        s = Sketch()
        s.call("swiglu_oai", "ttff", s.leaf(n, 5, data="wide"), s.leaf(n, 5, data="wide"), 1.702, 7.0)
        yield s.case("SWIGLU_OAI", about((n, 5)), seed)


def clamped(seed: int) -> Iterator[OpCase]:
    """Cases of the gate with a limit."""
    for n in SIZES:
        s = Sketch()
        s.call("swiglu_clamp", "ttf", s.leaf(n, 5, data="wide"), s.leaf(n, 5, data="wide"), 7.0)
        yield s.case("SWIGLU_CLAMP", about((n, 5)), seed)


SCALES: list[tuple[str, str, tuple[object, ...]]] = [
    ("scale_bias", "tff", (0.7, -1.3)), ("scale", "tf", (0.7,)),  # libraries before July 2025 have no bias
]  # fmt: skip


def scale(seed: int) -> Iterator[OpCase]:
    """Cases of a factor, with and without a bias."""
    for function, kinds, values in SCALES:
        in_place = f"{function}_inplace"
        cases = one("SCALE", function, kinds, values, looks=False, in_place=in_place, over_source=True)
        for case in cases(seed):
            yield replace(case, about=f"{case.about}, {function}")


def arange(seed: int) -> Iterator[OpCase]:
    """Cases of numbers in a row."""
    for start, stop, step in ((0.0, 17.0, 1.0), (1.5, 40.0, 0.5), (-3.0, 61.0, 0.3)):
        s = Sketch()
        s.call("arange", "fff", start, stop, step)
        yield s.case("ARANGE", f"{start:g} to {stop:g} by {step:g}", seed)


def add1(seed: int) -> Iterator[OpCase]:
    """Cases of one number added to all."""
    for ne, look in shapes(looks=False):
        s = Sketch()
        s.call("add1", "tt", LOOKS[look](s, ne, "normal"), s.leaf(1))
        yield s.case("ADD1", about(ne, look), seed)


CASES: dict[str, Cases] = {
    "ADD": two("ADD", "add"), "SUB": two("SUB", "sub"), "MUL": two("MUL", "mul"),
    "DIV": two("DIV", "div", "positive"), "ADD1": add1, "SCALE": scale, "ARANGE": arange,
    "FILL": one("FILL", "fill", "tf", (-2.5,), looks=False, in_place="fill_inplace"),
    "CLAMP": behind("CLAMP", "clamp", "tff", (-0.5, 0.75)),
    "SQR": one("SQR", "sqr", over_source=True), "SQRT": one("SQRT", "sqrt", data="positive"),
    "LOG": one("LOG", "log", data="positive"),
    "SIN": one("SIN", "sin", data="wide"), "COS": one("COS", "cos", data="wide"),
    "LEAKY_RELU": one("LEAKY_RELU", "leaky_relu", "tfb", (0.1, False), looks=False),
    "XIELU": one("XIELU", "xielu", "tffff", (0.8, 0.3, 0.5, -1e-6), looks=False),
    "SWIGLU_OAI": oai, "SWIGLU_CLAMP": clamped,
}  # fmt: skip


def _bound(function: Callable[[int, str], Iterator[OpCase]], op: str) -> Cases:
    return lambda seed: function(seed, op)


CASES |= {op.upper(): _bound(unary, op) for op in UNARY} | {op.upper(): _bound(gated, op) for op in GATED}
CASES |= {**rows(), **moves(), **models(), **images(), **opcases_attention.CASES, **opcases_gradients.CASES}
CASES |= opcases_windows.CASES
