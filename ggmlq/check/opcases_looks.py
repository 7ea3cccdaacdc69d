"""Cases of one tensor: sizes at the edges of vectors, rows apart, permutations, results in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .sketch import Cases, OpCase, Sketch, Tensor

SIZES = (1, 15, 16, 17, 20, 31, 64, 100, 257)
SHAPES = ((17, 5, 3, 2), (100, 4, 1, 1), (64, 7, 2, 1), (20, 1, 5, 3))
Source = Callable[[Sketch, tuple[int, ...], str], Tensor]

LOOKS: dict[str, Source] = {
    "": lambda s, ne, data: s.leaf(*ne, data=data),
    "rows apart": lambda s, ne, data: s.apart(*ne, data=data),
    "permuted": lambda s, ne, data: s.permuted(*ne, data=data),
}


def shapes(looks: bool = True) -> Iterator[tuple[tuple[int, ...], str]]:
    """Shapes, each with a way to look at the memory."""
    for n in SIZES:
        yield (n, 3), ""
    for ne in SHAPES:
        for look in LOOKS if looks else [""]:
            yield ne, look


def about(ne: tuple[int, ...], look: str = "", more: str = "") -> str:
    """A case in words: its lengths, and what is special."""
    parts = [
        f"ne=[{','.join(map(str, (*ne, 1, 1, 1)[:4]))}]",
        *([look] if look else []),
        *([more] if more else []),
    ]
    return ", ".join(parts)


def one(
    op: str, function: str, kinds: str = "t", values: tuple[object, ...] = (), data: str = "normal",
    looks: bool = True, in_place: str = "", over_source: bool = False,
) -> Cases:  # fmt: skip
    """Cases of an operation of one tensor and some numbers."""

    def cases(seed: int) -> Iterator[OpCase]:
        for ne, look in shapes(looks):
            s = Sketch()
            s.call(function, kinds, LOOKS[look](s, ne, data), *values)
            yield s.case(op, about(ne, look), seed)
        for over in (0,) if over_source else ():
            s = Sketch()
            s.call(function, kinds, s.leaf(100, 6, 3, data=data), *values)
            yield s.case(op, about((100, 6, 3), "over its source"), seed, over)
        if "norm" in function:  # long rows of like elements: each counts as much as the others
            s = Sketch()
            s.call(function, kinds, s.leaf(1056, 3), *values)
            yield s.case(op, about((1056, 3)), seed)
        if in_place:
            s = Sketch()
            s.call(in_place, kinds, s.leaf(100, 6, data=data), *values)
            yield s.case(op, about((100, 6), "in place"), seed)

    return cases
