"""Cases of operations that move elements: copies into all types, rows by ids, parts, paddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..formats import FORMATS
from .sketch import Cases, OpCase, Sketch

PLAIN = ("f32", "f16", "bf16")
BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
DECODED = (*BLOCKS, "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "mxfp4")


def copies(seed: int) -> Iterator[OpCase]:
    """Copies of tensors, parts and permutations into every type of a cache."""
    for kind in (*PLAIN, *BLOCKS):
        for source in ("f32", "f16") if kind in PLAIN else ("f32",):
            for look in ("", "rows apart", "permuted"):
                s = Sketch()
                make = {"": s.leaf, "rows apart": s.apart, "permuted": s.permuted}[look]
                a = make(64, 5, 3, data="mixed", type=source)
                s.call("cpy", "tt", a, s.leaf(64, 5, 3, type=kind))
                yield s.case("CPY", f"{source} to {kind}, {look or 'plain'}", seed)
    for n in (1, 17, 100):
        s = Sketch()
        s.call("cpy", "tt", s.transposed(n, 7, 2), s.leaf(n, 7, 2))
        yield s.case("CPY", f"ne=[{n},7,2,1], transposed", seed)
        s = Sketch()
        s.call("cpy", "tt", s.leaf(n, 6, 2), s.leaf(2 * n, 3, 2))
        yield s.case("CPY", f"ne=[{n},6,2,1] into [{2 * n},3,2,1]", seed)
        s = Sketch()
        s.call("cpy", "tt", s.leaf(n, 6, 2), s.apart(n, 6, 2))
        yield s.case("CPY", f"ne=[{n},6,2,1] into rows apart", seed)
    for kind in BLOCKS:
        for look in ("leaf", "permuted", "apart"):
            s = Sketch()
            s.call("cpy", "tt", getattr(s, look)(64, 5, 3, type=kind), s.leaf(64, 5, 3, type=kind))
            yield s.case("CPY", f"{kind} to {kind}, {look}", seed)
        s = Sketch()
        s.call("cpy", "tt", s.leaf(64, 5, 3, type=kind), s.leaf(64, 5, 3))
        yield s.case("CPY", f"{kind} to f32", seed)
        s = Sketch()
        s.call("cpy", "tt", s.leaf(64, 5, 3, type="f16"), s.leaf(64, 5, 3, type=kind))
        yield s.case("CPY", f"f16 to {kind}", seed)
    for first, second in (("f32", "i32"), ("i32", "f32"), ("bf16", "f32"), ("bf16", "f16"), ("i32", "i32")):
        for look in ("leaf", "permuted"):
            s = Sketch()
            data = "ids:99" if first == "i32" else "wide"
            s.call(
                "cpy", "tt", getattr(s, look)(33, 5, 3, type=first, data=data), s.leaf(33, 5, 3, type=second)
            )
            yield s.case("CPY", f"{first} to {second}, {look}", seed)
    s = Sketch()
    s.call("cpy", "tt", s.permuted(40, 37, 5, 2), s.leaf(40, 37, 5, 2, type="f16"))
    yield s.case("CPY", "f32 to f16, ne=[40,37,5,2], permuted", seed)


def conts(seed: int) -> Iterator[OpCase]:
    """Tensors in one piece from permuted, transposed and cut ones."""
    for ne in ((1, 5, 3, 2), (17, 5, 3, 2), (64, 7, 2, 1), (100, 33, 1, 1)):
        for look in ("permuted", "rows apart", "transposed"):
            for kind in PLAIN:
                s = Sketch()
                s.call("cont", "t", getattr(s, look.replace("rows ", ""))(*ne, type=kind))
                yield s.case("CONT", f"ne={list(ne)}, {kind}, {look}", seed)
    for kind in ("q8_0", "q4_0", "q4_1"):
        s = Sketch()
        s.call("cont", "t", s.permuted(64, 5, 3, 2, type=kind))
        yield s.case("CONT", f"ne=[64,5,3,2], {kind}, permuted", seed)
    for order in ((1, 2, 0, 3), (2, 0, 1, 3), (3, 2, 1, 0), (0, 3, 1, 2)):
        s = Sketch()
        s.call("cont", "t", s.call("permute", "tiiii", s.leaf(17, 5, 3, 2), *order))
        yield s.case("CONT", f"ne=[17,5,3,2], f32, axes to {list(order)}", seed)
    for order in ((1, 2, 0, 3), (2, 0, 1, 3), (1, 0, 2, 3)):  # many planes: a GPU's block takes several
        for kind in ("f32", "f16"):
            s = Sketch()
            s.call("cont", "t", s.call("permute", "tiiii", s.leaf(70, 66, 19, type=kind), *order))
            yield s.case("CONT", f"ne=[70,66,19,1], {kind}, axes to {list(order)}", seed)


def dups(seed: int) -> Iterator[OpCase]:
    """Copies of their own."""
    for kind, look in (
        ("f32", "leaf"),
        ("f32", "permuted"),
        ("f16", "apart"),
        ("q8_0", "leaf"),
        ("i32", "leaf"),
    ):
        s = Sketch()
        s.call("dup", "t", getattr(s, look)(64, 5, 3, type=kind, data="ids:9" if kind == "i32" else "normal"))
        yield s.case("DUP", f"{kind}, {look}", seed)


def get_rows(seed: int) -> Iterator[OpCase]:
    """Rows of every type by ids, some of them twice."""
    for kind in (*PLAIN, *DECODED):
        n = max(FORMATS[kind].block_size, 1)
        for width in (n, 3 * n) if n > 1 else (1, 17, 100):
            s = Sketch()
            ids = s.leaf(9, type="i32", data="ids:11")
            s.call("get_rows", "tt", s.leaf(width, 11, type=kind), ids)
            yield s.case("GET_ROWS", f"{kind}, ne=[{width},11,1,1], 9 rows", seed)
    for kind in ("f16", "q8_0", "q4_0"):
        s = Sketch()
        s.call("get_rows", "tt", s.leaf(64, 7, 3, type=kind), s.leaf(4, 3, type="i32", data="ids:7"))
        yield s.case("GET_ROWS", f"{kind}, ne=[64,7,3,1], ids [4,3]", seed)
    s = Sketch()
    s.call("get_rows", "tt", s.leaf(20, 7, type="i32", data="ids:99"), s.leaf(5, type="i32", data="ids:7"))
    yield s.case("GET_ROWS", "i32, ne=[20,7,1,1]", seed)
    s = Sketch()
    s.call("get_rows", "tt", s.leaf(1, 9, 5), s.leaf(4, 5, type="i32", data="ids:9"))
    yield s.case("GET_ROWS", "f32, ne=[1,9,5,1], ids [4,5]", seed)
    s = Sketch()
    s.call("get_rows", "tt", s.leaf(20, 7, 3, 2), s.leaf(4, 3, 2, type="i32", data="ids:7"))
    yield s.case("GET_ROWS", "f32, ne=[20,7,3,2], ids [4,3,2]", seed)
    s = Sketch()
    s.call("get_rows", "tt", s.apart(20, 7), s.leaf(5, type="i32", data="ids:7"))
    yield s.case("GET_ROWS", "f32, ne=[20,7,1,1], rows apart", seed)


def set_rows(seed: int) -> Iterator[OpCase]:
    """Rows stored by ids in a cache of every type; other rows stay as they are."""
    for kind in (*PLAIN, *BLOCKS):
        for width in (32, 96) if kind in BLOCKS else (1, 17, 100):
            for ids in ("i64", "i32"):
                s = Sketch()
                cache = s.leaf(width, 13, 2, type=kind)
                places = s.leaf(5, type=ids, data="places:13")
                s.call("set_rows", "ttt", cache, s.leaf(width, 5, 2, data="mixed"), places)
                yield s.case("SET_ROWS", f"{kind}, ne=[{width},13,2,1], 5 rows, {ids}", seed)
    for kind, source, look in (
        ("f16", "f32", "apart"), ("f16", "f32", "permuted"), ("q8_0", "f32", "permuted"),
        ("f32", "f32", "apart"), ("f16", "f16", "leaf"), ("f32", "f16", "leaf"),
        ("q8_0", "f16", "leaf"),
    ):  # fmt: skip
        s = Sketch()
        places = s.leaf(5, type="i64", data="places:13")
        fresh = getattr(s, look)(64, 5, 3, type=source)
        s.call("set_rows", "ttt", s.leaf(64, 13, 3, type=kind), fresh, places)
        yield s.case("SET_ROWS", f"{source} into {kind}, {look}", seed)
    for kind in ("f16", "q4_0"):  # places of their own for each plane
        s = Sketch()
        places = s.leaf(5, 3, type="i64", data="places:13")
        s.call("set_rows", "ttt", s.leaf(64, 13, 6, 2, type=kind), s.leaf(64, 5, 6, 2), places)
        yield s.case("SET_ROWS", f"{kind}, ne=[64,13,6,2], ids [5,3]", seed)


def parts(function: str, op: str) -> Cases:
    """Cases of ACC and SET: a part of a tensor, at its beginning and inside."""

    def cases(seed: int) -> Iterator[OpCase]:
        for offset, suffix in ((0, ""), (20 * 4 * 2 + 12, ""), (20 * 4, "_inplace")):
            s = Sketch()
            a, b = s.leaf(20, 9, 3), s.leaf(15, 5, 2)
            s.call(f"{function}{suffix}", "ttzzzz", a, b, 80, 720, 2160, offset)
            yield s.case(op, f"ne=[20,9,3,1], part [15,5,2] at {offset}{suffix}", seed)

    return cases


def concats(seed: int) -> Iterator[OpCase]:
    """Two tensors along each axis."""
    for axis in range(4):
        for kind in ("f32", "f16", "i32"):
            for look in ("leaf", "apart"):
                a, b = [17, 5, 3, 2], [17, 5, 3, 2]
                b[axis] += 2
                s = Sketch()
                data = "ids:99" if kind == "i32" else "normal"
                first, second = (getattr(s, look)(*ne, type=kind, data=data) for ne in (a, b))
                s.call("concat", "tti", first, second, axis)
                yield s.case("CONCAT", f"{kind}, {a} and {b}, axis {axis}, {look}", seed)
        for kind in ("q8_0", "q4_0", "bf16"):
            a, b = [64, 5, 3, 2], [64, 5, 3, 2]
            b[axis] += 32 if axis == 0 else 2
            s = Sketch()
            s.call("concat", "tti", s.leaf(*a, type=kind), s.leaf(*b, type=kind), axis)
            yield s.case("CONCAT", f"{kind}, {a} and {b}, axis {axis}", seed)
        s = Sketch()
        s.call("concat", "tti", s.permuted(17, 5, 3, 2), s.leaf(17, 5, 3, 2), axis)
        yield s.case("CONCAT", f"f32, [17, 5, 3, 2] permuted and [17, 5, 3, 2], axis {axis}", seed)


def repeats(seed: int) -> Iterator[OpCase]:
    """Tensors repeated along each axis, and along all."""
    for times in ((2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (3, 2, 2, 2)):
        for kind in PLAIN[:2]:
            ne = (17, 5, 2, 2)
            s = Sketch()
            whole = [a * b for a, b in zip(ne, times, strict=True)]
            s.call("repeat_4d", "tllll", s.leaf(*ne, type=kind), *whole)
            yield s.case("REPEAT", f"{kind}, {list(ne)} times {list(times)}", seed)
        for look in ("leaf", "apart", "permuted"):
            s = Sketch()
            s.call("repeat", "tt", getattr(s, look)(*ne), s.leaf(*whole))
            yield s.case("REPEAT", f"f32, {list(ne)} as {whole}, {look}", seed)


def single(
    op: str,
    function: str,
    kinds: str,
    every: tuple[tuple[object, ...], ...],
    ne: tuple[int, ...] = (17, 5, 3, 2),
    looks: tuple[str, ...] = ("leaf",),
) -> Cases:
    """Cases of one tensor with each of some sets of numbers."""

    def cases(seed: int) -> Iterator[OpCase]:
        for values in every:
            for look in looks:
                s = Sketch()
                s.call(function, kinds, getattr(s, look)(*ne), *values)
                about = f"ne={list(ne)}, {list(values)}" + ("" if look == "leaf" else f", {look}")
                yield s.case(op, about, seed)

    return cases


def pads(seed: int) -> Iterator[OpCase]:
    """Zeros before and behind, the other end of the tensor, and what libraries before 2025 have."""
    sizes = ((0, 3, 0, 0, 0, 0, 0, 0), (1, 2, 3, 0, 0, 1, 2, 1), (0, 0, 0, 0, 2, 2, 0, 1))
    yield from single("PAD", "pad_ext", "tiiiiiiii", sizes, looks=("leaf", "apart", "permuted"))(seed)
    for case in single("PAD", "pad", "tiiii", ((3, 0, 0, 0), (1, 2, 3, 1), (0, 4, 0, 0)))(seed):
        yield replace(case, about=f"{case.about}, behind")
    for case in single("PAD", "pad_ext_circular", "tiiiiiiii", sizes, (17, 5, 3, 2))(seed):
        yield replace(case, about=f"{case.about}, circular")


def moves() -> dict[str, Cases]:
    """Cases of this file by operation."""
    shifts = ((3, 0, 0, 0), (-1, 2, 0, 0), (0, 4, 1, 1), (5, -3, -2, 1))
    return {
        "CPY": copies, "CONT": conts, "DUP": dups, "GET_ROWS": get_rows, "SET_ROWS": set_rows,
        "ACC": parts("acc", "ACC"), "SET": parts("set", "SET"), "CONCAT": concats, "REPEAT": repeats,
        "PAD": pads,
        "PAD_REFLECT_1D": single("PAD_REFLECT_1D", "pad_reflect_1d", "tii", ((3, 2), (0, 16), (1, 0))),
        "ROLL": single("ROLL", "roll", "tiiii", shifts, looks=("leaf", "apart")),
        "TRI": single("TRI", "tri", "ti", ((0,), (1,), (2,), (3,)), (17, 17, 3, 2)),
        "DIAG": single("DIAG", "diag", "t", ((),), (17, 1, 3, 2)),
        "DIAG_MASK_INF": single("DIAG_MASK_INF", "diag_mask_inf", "ti", ((0,), (4,)), (17, 9, 3, 1)),
        "DIAG_MASK_ZERO": single("DIAG_MASK_ZERO", "diag_mask_zero", "ti", ((0,), (4,)), (17, 9, 3, 1)),
    }  # fmt: skip
