"""Cases of operations that move elements: copies into all types, rows by ids, parts, paddings."""

from __future__ import annotations

from collections.abc import Iterator

from ..formats import FORMATS
from .sketch import Sketch, cases

PLAIN = ("f32", "f16", "bf16")
BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
DECODED = (*BLOCKS, "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "mxfp4")


@cases("CPY")
def copies(s: Sketch) -> Iterator[str]:
    """Copies of tensors, parts and permutations into every type of a cache."""
    for kind in (*PLAIN, *BLOCKS):
        for source in ("f32", "f16") if kind in PLAIN else ("f32",):
            for look, named in (("leaf", "plain"), ("apart", "rows apart"), ("permuted", "permuted")):
                a = getattr(s, look)(64, 5, 3, data="mixed", type=source)
                s.call("cpy", a, s.leaf(64, 5, 3, type=kind))
                yield f"{source} to {kind}, {named}"
    for n in (1, 17, 100):
        s.call("cpy", s.transposed(n, 7, 2), s.leaf(n, 7, 2))
        yield f"ne=[{n},7,2,1], transposed"
        s.call("cpy", s.leaf(n, 6, 2), s.leaf(2 * n, 3, 2))
        yield f"ne=[{n},6,2,1] into [{2 * n},3,2,1]"
        s.call("cpy", s.leaf(n, 6, 2), s.apart(n, 6, 2))
        yield f"ne=[{n},6,2,1] into rows apart"
    for kind in BLOCKS:
        for look in ("leaf", "permuted", "apart"):
            s.call("cpy", getattr(s, look)(64, 5, 3, type=kind), s.leaf(64, 5, 3, type=kind))
            yield f"{kind} to {kind}, {look}"
        s.call("cpy", s.leaf(64, 5, 3, type=kind), s.leaf(64, 5, 3))
        yield f"{kind} to f32"
        s.call("cpy", s.leaf(64, 5, 3, type="f16"), s.leaf(64, 5, 3, type=kind))
        yield f"f16 to {kind}"
    for first, second in (("f32", "i32"), ("i32", "f32"), ("bf16", "f32"), ("bf16", "f16"), ("i32", "i32")):
        for look in ("leaf", "permuted"):
            data = "ids:99" if first == "i32" else "wide"
            s.call("cpy", getattr(s, look)(33, 5, 3, type=first, data=data), s.leaf(33, 5, 3, type=second))
            yield f"{first} to {second}, {look}"
    s.call("cpy", s.permuted(40, 37, 5, 2), s.leaf(40, 37, 5, 2, type="f16"))
    yield "f32 to f16, ne=[40,37,5,2], permuted"


@cases("CONT")
def conts(s: Sketch) -> Iterator[str]:
    """Tensors in one piece from permuted, transposed and cut ones."""
    for ne in ((1, 5, 3, 2), (17, 5, 3, 2), (64, 7, 2, 1), (100, 33, 1, 1)):
        for look in ("permuted", "rows apart", "transposed"):
            for kind in PLAIN:
                s.call("cont", getattr(s, look.replace("rows ", ""))(*ne, type=kind))
                yield f"ne={list(ne)}, {kind}, {look}"
    for kind in ("q8_0", "q4_0", "q4_1"):
        s.call("cont", s.permuted(64, 5, 3, 2, type=kind))
        yield f"ne=[64,5,3,2], {kind}, permuted"
    for order in ((1, 2, 0, 3), (2, 0, 1, 3), (3, 2, 1, 0), (0, 3, 1, 2)):
        s.call("cont", s.call("permute", s.leaf(17, 5, 3, 2), *order))
        yield f"ne=[17,5,3,2], f32, axes to {list(order)}"
    for order in ((1, 2, 0, 3), (2, 0, 1, 3), (1, 0, 2, 3)):  # many planes: a GPU's block takes several
        for kind in ("f32", "f16"):
            s.call("cont", s.call("permute", s.leaf(70, 66, 19, type=kind), *order))
            yield f"ne=[70,66,19,1], {kind}, axes to {list(order)}"


@cases("DUP")
def dups(s: Sketch) -> Iterator[str]:
    """Copies of their own."""
    kinds = ("f32", "leaf"), ("f32", "permuted"), ("f16", "apart"), ("q8_0", "leaf"), ("i32", "leaf")
    for kind, look in kinds:
        s.call("dup", getattr(s, look)(64, 5, 3, type=kind, data="ids:9" if kind == "i32" else "normal"))
        yield f"{kind}, {look}"


@cases("GET_ROWS")
def get_rows(s: Sketch) -> Iterator[str]:
    """Rows of every type by ids, some of them twice."""
    for kind in (*PLAIN, *DECODED):
        n = max(FORMATS[kind].block_size, 1)
        for width in (n, 3 * n) if n > 1 else (1, 17, 100):
            ids = s.leaf(9, type="i32", data="ids:11")
            s.call("get_rows", s.leaf(width, 11, type=kind), ids)
            yield f"{kind}, ne=[{width},11,1,1], 9 rows"
    for kind in ("f16", "q8_0", "q4_0"):
        s.call("get_rows", s.leaf(64, 7, 3, type=kind), s.leaf(4, 3, type="i32", data="ids:7"))
        yield f"{kind}, ne=[64,7,3,1], ids [4,3]"
    s.call("get_rows", s.leaf(20, 7, type="i32", data="ids:99"), s.leaf(5, type="i32", data="ids:7"))
    yield "i32, ne=[20,7,1,1]"
    s.call("get_rows", s.leaf(1, 9, 5), s.leaf(4, 5, type="i32", data="ids:9"))
    yield "f32, ne=[1,9,5,1], ids [4,5]"
    s.call("get_rows", s.leaf(20, 7, 3, 2), s.leaf(4, 3, 2, type="i32", data="ids:7"))
    yield "f32, ne=[20,7,3,2], ids [4,3,2]"
    s.call("get_rows", s.apart(20, 7), s.leaf(5, type="i32", data="ids:7"))
    yield "f32, ne=[20,7,1,1], rows apart"


@cases("SET_ROWS")
def set_rows(s: Sketch) -> Iterator[str]:
    """Rows stored by ids in a cache of every type; other rows stay as they are."""
    for kind in (*PLAIN, *BLOCKS):
        for width in (32, 96) if kind in BLOCKS else (1, 17, 100):
            for ids in ("i64", "i32"):
                cache = s.leaf(width, 13, 2, type=kind)
                places = s.leaf(5, type=ids, data="places:13")
                s.call("set_rows", cache, s.leaf(width, 5, 2, data="mixed"), places)
                yield f"{kind}, ne=[{width},13,2,1], 5 rows, {ids}"
    for kind, source, look in (
        ("f16", "f32", "apart"), ("f16", "f32", "permuted"), ("q8_0", "f32", "permuted"),
        ("f32", "f32", "apart"), ("f16", "f16", "leaf"), ("f32", "f16", "leaf"),
        ("q8_0", "f16", "leaf"),
    ):  # fmt: skip
        places = s.leaf(5, type="i64", data="places:13")
        fresh = getattr(s, look)(64, 5, 3, type=source)
        s.call("set_rows", s.leaf(64, 13, 3, type=kind), fresh, places)
        yield f"{source} into {kind}, {look}"
    for kind in ("f16", "q4_0"):  # places of their own for each plane
        places = s.leaf(5, 3, type="i64", data="places:13")
        s.call("set_rows", s.leaf(64, 13, 6, 2, type=kind), s.leaf(64, 5, 6, 2), places)
        yield f"{kind}, ne=[64,13,6,2], ids [5,3]"


@cases("ACC", "acc")
@cases("SET", "set")
def parts(s: Sketch, function: str) -> Iterator[str]:
    """Cases of a part of a tensor, at its beginning and inside."""
    for offset, suffix in ((0, ""), (20 * 4 * 2 + 12, ""), (20 * 4, "_inplace")):
        a, b = s.leaf(20, 9, 3), s.leaf(15, 5, 2)
        s.call(f"{function}{suffix}", a, b, 80, 720, 2160, offset)
        yield f"ne=[20,9,3,1], part [15,5,2] at {offset}{suffix}"
    s.call(function, s.leaf(20, 9, 3, 2), s.leaf(15, 5, 2, 2), 80, 720, 2160, 720 + 80)
    yield "ne=[20,9,3,2], part [15,5,2,2] at 800"


@cases("CONCAT")
def concats(s: Sketch) -> Iterator[str]:
    """Two tensors along each axis."""
    for axis in range(4):
        for kind in ("f32", "f16", "i32"):
            for look in ("leaf", "apart"):
                a, b = [17, 5, 3, 2], [17, 5, 3, 2]
                b[axis] += 2
                data = "ids:99" if kind == "i32" else "normal"
                first, second = (getattr(s, look)(*ne, type=kind, data=data) for ne in (a, b))
                s.call("concat", first, second, axis)
                yield f"{kind}, {a} and {b}, axis {axis}, {look}"
        for kind in ("q8_0", "q4_0", "bf16"):
            a, b = [64, 5, 3, 2], [64, 5, 3, 2]
            b[axis] += 32 if axis == 0 else 2
            s.call("concat", s.leaf(*a, type=kind), s.leaf(*b, type=kind), axis)
            yield f"{kind}, {a} and {b}, axis {axis}"
        s.call("concat", s.permuted(17, 5, 3, 2), s.leaf(17, 5, 3, 2), axis)
        yield f"f32, [17, 5, 3, 2] permuted and [17, 5, 3, 2], axis {axis}"


@cases("REPEAT")
def repeats(s: Sketch) -> Iterator[str]:
    """Tensors repeated along each axis, and along all."""
    for times in ((2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (3, 2, 2, 2)):
        for kind in PLAIN[:2]:
            ne = (17, 5, 2, 2)
            whole = [a * b for a, b in zip(ne, times, strict=True)]
            s.call("repeat_4d", s.leaf(*ne, type=kind), *whole)
            yield f"{kind}, {list(ne)} times {list(times)}"
        for look in ("leaf", "apart", "permuted"):
            s.call("repeat", getattr(s, look)(*ne), s.leaf(*whole))
            yield f"f32, {list(ne)} as {whole}, {look}"


Numbers = tuple[tuple[int, ...], ...]
SHIFTS = ((3, 0, 0, 0), (-1, 2, 0, 0), (0, 4, 1, 1), (5, -3, -2, 1))


@cases("PAD_REFLECT_1D", "pad_reflect_1d", ((3, 2), (0, 16), (1, 0)))
@cases("ROLL", "roll", SHIFTS, looks=("leaf", "apart"))
@cases("TRI", "tri", ((0,), (1,), (2,), (3,)), (17, 17, 3, 2))
@cases("DIAG", "diag", ((),), (17, 1, 3, 2))
@cases("DIAG_MASK_INF", "diag_mask_inf", ((0,), (4,)), (17, 9, 3, 1))
@cases("DIAG_MASK_ZERO", "diag_mask_zero", ((0,), (4,)), (17, 9, 3, 1))
def single(
    s: Sketch, function: str, every: Numbers, ne: tuple[int, ...] = (17, 5, 3, 2),
    looks: tuple[str, ...] = ("leaf",),
) -> Iterator[str]:  # fmt: skip
    """Cases of one tensor with each of some sets of numbers."""
    for values in every:
        for look in looks:
            s.call(function, getattr(s, look)(*ne), *values)
            yield f"ne={list(ne)}, {list(values)}" + ("" if look == "leaf" else f", {look}")


@cases("PAD")
def pads(s: Sketch) -> Iterator[str]:
    """Zeros before and behind, the other end of the tensor, and what libraries before 2025 have."""
    sizes = ((0, 3, 0, 0, 0, 0, 0, 0), (1, 2, 3, 0, 0, 1, 2, 1), (0, 0, 0, 0, 2, 2, 0, 1))
    yield from single(s, "pad_ext", sizes, looks=("leaf", "apart", "permuted"))
    for about in single(s, "pad", ((3, 0, 0, 0), (1, 2, 3, 1), (0, 4, 0, 0))):
        yield f"{about}, behind"
    for about in single(s, "pad_ext_circular", sizes):
        yield f"{about}, circular"
