"""Cases of gradients: also with the result in the memory of a source, as an allocator of graphs puts it."""

from __future__ import annotations

from collections.abc import Iterator

from .sketch import Cases, OpCase, Sketch

SIZES = (1, 15, 17, 64, 100)


def pairs(op: str, function: str, values: tuple[float, ...] = (), share: str = "normal") -> Cases:
    """Cases of a gradient and the value that it belongs to."""

    def cases(seed: int) -> Iterator[OpCase]:
        for n in SIZES:
            for over in (None, 0):
                s = Sketch()
                s.call(
                    function, "tt" + "f" * len(values), s.leaf(n, 5, 3), s.leaf(n, 5, 3, data=share), *values
                )
                about = f"ne=[{n},5,3,1]" + ("" if over is None else ", over its first source")
                yield s.case(op, about, seed, over)

    return cases


def repeat_back(seed: int) -> Iterator[OpCase]:
    """Tensors that were repeated along each axis, and along all."""
    for times in ((2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (3, 2, 2, 2)):
        ne = (17, 5, 2, 2)
        s = Sketch()
        whole = [a * b for a, b in zip(ne, times, strict=True)]
        s.call("repeat_back", "tt", s.leaf(*whole), s.leaf(*ne))
        yield s.case("REPEAT_BACK", f"{list(ne)} times {list(times)}", seed)


def get_rows_back(seed: int) -> Iterator[OpCase]:
    """Rows that were taken once, twice and not at all."""
    for n in SIZES:
        s = Sketch()
        ids = s.leaf(9, type="i32", data="ids:11")
        s.call("get_rows_back", "ttt", s.leaf(n, 9), ids, s.leaf(n, 11))
        yield s.case("GET_ROWS_BACK", f"ne=[{n},11,1,1], 9 rows", seed)


CASES: dict[str, Cases] = {
    "SILU_BACK": pairs("SILU_BACK", "silu_back"),
    "RMS_NORM_BACK": pairs("RMS_NORM_BACK", "rms_norm_back", (1e-5,)),
    "SOFT_MAX_BACK": pairs("SOFT_MAX_BACK", "soft_max_ext_back", (0.7, 0.0), "share"),
    "REPEAT_BACK": repeat_back, "GET_ROWS_BACK": get_rows_back,
}  # fmt: skip
