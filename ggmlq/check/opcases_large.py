"""Large cases of operations: more rows than a grid has blocks along an axis, more than 2^31 elements.

A case of more than 2^31 elements takes many GiB in this process and in the library's; where so many are not
free, it is not run, and the report says how many it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .sketch import Cases, OpCase, Sketch

MANY = 65537  # rows: a grid has 65535 blocks along its second and third axis
LONG, TALL = 1 << 16, (1 << 15) + 1  # together more than 2^31
COPIES = 8  # of all tensors, in both processes
MEMORY = Path("/proc/meminfo")
SHAPES = ((20, MANY, 1, 1), (16, 3, MANY, 1), (8, 2, 3, MANY // 3))
PLAIN: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "SCALE": ("scale", "tf", (0.7,)), "SQR": ("sqr", "t", ()), "CLAMP": ("clamp", "tff", (-0.5, 0.75)),
    "SILU": ("silu", "t", ()), "GELU": ("gelu", "t", ()), "RELU": ("relu", "t", ()),
    "NORM": ("norm", "tf", (1e-5,)), "RMS_NORM": ("rms_norm", "tf", (1e-5,)),
    "L2_NORM": ("l2_norm", "tf", (1e-6,)),
    "SOFT_MAX": ("soft_max", "t", ()), "SUM_ROWS": ("sum_rows", "t", ()), "MEAN": ("mean", "t", ()),
    "CUMSUM": ("cumsum", "t", ()), "ARGSORT": ("argsort", "ti", (1,)), "SWIGLU": ("swiglu", "t", ()),
}  # fmt: skip


def plain(op: str) -> Cases:
    """Cases of one tensor with many rows, planes and sequences."""
    function, kinds, values = PLAIN[op]

    def cases(seed: int) -> Iterator[OpCase]:
        for ne in SHAPES:
            s = Sketch()
            s.call(function, kinds, s.leaf(*ne), *values)
            yield s.case(op, f"large, ne={list(ne)}", seed)

    return cases


def pairs(op: str) -> Cases:
    """Cases of two tensors, the second repeated."""

    def cases(seed: int) -> Iterator[OpCase]:
        for ne in SHAPES:
            for b in (ne, (ne[0], 1, 1, 1), (1, *ne[1:])):
                s = Sketch()
                s.call(op.lower(), "tt", s.leaf(*ne), s.leaf(*b, data="positive"))
                yield s.case(op, f"large, ne={list(ne)}, b={list(b)}", seed)
        s = Sketch()
        s.call(op.lower(), "tt", s.leaf(LONG, TALL, type="f16", data="tiled"), s.leaf(LONG, type="f16"))
        yield s.case(op, f"large, ne=[{LONG},{TALL},1,1], f16 and f16", seed)

    return cases


def moves(seed: int) -> Iterator[OpCase]:
    """Copies of many rows, permuted and into halves and blocks."""
    for ne in SHAPES[:2]:
        for kind in ("f32", "f16"):
            s = Sketch()
            s.call("cpy", "tt", s.permuted(*ne), s.leaf(*ne, type=kind))
            yield s.case("CPY", f"large, ne={list(ne)}, permuted, f32 to {kind}", seed)
    s = Sketch()
    s.call("cpy", "tt", s.leaf(32, MANY), s.leaf(32, MANY, type="q8_0"))
    yield s.case("CPY", f"large, ne=[32,{MANY},1,1], f32 to q8_0", seed)
    s = Sketch()
    s.call("cpy", "tt", s.leaf(LONG, TALL, type="f16", data="tiled"), s.leaf(LONG, TALL, type="f16"))
    yield s.case("CPY", f"large, ne=[{LONG},{TALL},1,1], f16 to f16", seed)


def conts(seed: int) -> Iterator[OpCase]:
    """Permuted and transposed tensors of many rows in one piece."""
    for ne in SHAPES:
        for look in ("permuted", "transposed"):
            s = Sketch()
            s.call("cont", "t", getattr(s, look)(*ne))
            yield s.case("CONT", f"large, ne={list(ne)}, {look}", seed)


def get_rows(seed: int) -> Iterator[OpCase]:
    """Many rows by ids, out of many."""
    for kind in ("f32", "f16", "q8_0"):
        s = Sketch()
        ids = s.leaf(MANY, type="i32", data=f"ids:{MANY}")
        s.call("get_rows", "tt", s.leaf(32, MANY, type=kind), ids)
        yield s.case("GET_ROWS", f"large, {kind}, ne=[32,{MANY},1,1], {MANY} rows", seed)


def set_rows(seed: int) -> Iterator[OpCase]:
    """Many rows stored by ids."""
    for kind in ("f32", "f16", "q8_0"):
        s = Sketch()
        places = s.leaf(MANY, type="i64", data=f"places:{MANY + 9}")
        s.call("set_rows", "ttt", s.leaf(32, MANY + 9, type=kind), s.leaf(32, MANY), places)
        yield s.case("SET_ROWS", f"large, {kind}, {MANY} rows", seed)


def concats(seed: int) -> Iterator[OpCase]:
    """Two tensors of many rows along each axis."""
    for axis in range(3):
        s = Sketch()
        s.call("concat", "tti", s.leaf(16, MANY, 2), s.leaf(16, MANY, 2), axis)
        yield s.case("CONCAT", f"large, ne=[16,{MANY},2,1] twice, axis {axis}", seed)


def needs(case: OpCase) -> int:
    """Bytes that a case takes in both processes."""
    sizes = (leaf.bytes for leaf in case.program.leaves)
    return COPIES * sum(sizes)


def free() -> int | None:
    """Bytes of memory that are free, where the system says."""
    if not MEMORY.exists():
        return None
    for line in MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


LARGE: dict[str, Cases] = {
    **{op: plain(op) for op in PLAIN}, **{op: pairs(op) for op in ("ADD", "SUB", "MUL", "DIV")},
    "CPY": moves, "CONT": conts, "GET_ROWS": get_rows, "SET_ROWS": set_rows, "CONCAT": concats,
}  # fmt: skip
