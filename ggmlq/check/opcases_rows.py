"""Cases of operations on rows: norms, sums, orders."""

from __future__ import annotations

from collections.abc import Iterator

from .opcases_looks import LOOKS, SIZES, about, one
from .sketch import Cases, OpCase, Sketch


def group_norm(seed: int) -> Iterator[OpCase]:
    """Cases of groups of channels, the last of them smaller."""
    for ne, groups in (((5, 7, 12, 2), 4), ((20, 3, 7, 1), 3), ((1, 1, 32, 1), 32), ((17, 1, 8, 1), 1)):
        for look in LOOKS:
            s = Sketch()
            s.call("group_norm", "tif", LOOKS[look](s, ne, "mixed"), groups, 1e-5)
            yield s.case("GROUP_NORM", about(ne, look, f"{groups} groups"), seed)


def orders(op: str, function: str, kinds: str, every: tuple[tuple[object, ...], ...]) -> Cases:
    """Cases of orders of rows, with equal elements among them."""

    def cases(seed: int) -> Iterator[OpCase]:
        for values in every:
            for n in (*SIZES, 1056):
                for data in ("normal", "equal"):
                    s = Sketch()
                    s.call(function, kinds, s.leaf(n, 4, data=data), *values)
                    more = f"{data}, {list(values)}" if values else data
                    yield s.case(op, about((n, 4), "", more), seed)
            if values:
                s = Sketch()
                s.call(function, kinds, s.leaf(33, 4, 3, 2), *values)
                yield s.case(op, about((33, 4, 3, 2), "", str(list(values))), seed)

    return cases


def top_k(seed: int) -> Iterator[OpCase]:
    """Cases of the largest elements of rows, all of them and one."""
    for n, k in ((1, 1), (16, 1), (17, 4), (64, 8), (100, 100), (257, 6), (2000, 40)):
        s = Sketch()
        s.call("top_k", "ti", s.leaf(n, 5), k)
        yield s.case("TOP_K", about((n, 5), "", f"k={k}"), seed)


def counts(seed: int) -> Iterator[OpCase]:
    """Cases of equal elements of two rows."""
    for n in SIZES:
        s = Sketch()
        s.call("count_equal", "tt", *(s.leaf(n, 3, type="i32", data="ids:3") for _ in "ab"))
        yield s.case("COUNT_EQUAL", about((n, 3)), seed)


def rows() -> dict[str, Cases]:
    """Cases of this file by operation."""
    return {
        "NORM": one("NORM", "norm", "tf", (1e-5,), "mixed", in_place="norm_inplace"),
        "RMS_NORM": one(
            "RMS_NORM", "rms_norm", "tf", (1e-2,), "mixed", in_place="rms_norm_inplace", over_source=True
        ),
        "L2_NORM": one("L2_NORM", "l2_norm", "tf", (1e-6,), "mixed", in_place="l2_norm_inplace"),
        "GROUP_NORM": group_norm, "SUM": one("SUM", "sum", looks=False),
        "SUM_ROWS": one("SUM_ROWS", "sum_rows"), "MEAN": one("MEAN", "mean"),
        "CUMSUM": one("CUMSUM", "cumsum"), "ARGMAX": orders("ARGMAX", "argmax", "t", ((),)),
        "ARGSORT": orders("ARGSORT", "argsort", "ti", ((1,), (0,))), "TOP_K": top_k, "COUNT_EQUAL": counts,
    }  # fmt: skip
