"""Cases of windows of images, relative positions, and of DeepSeek's indexer and connections."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from .sketch import Cases, OpCase, Sketch

SIZES = (1, 15, 16, 17, 20, 64, 257)
IMAGES = ((14, 14, 7), (15, 13, 7), (5, 9, 4), (1, 1, 3), (64, 64, 14), (3, 8, 1))  # wide, high, window
EPS = 1e-6


def win_part(seed: int) -> Iterator[OpCase]:
    """Images that windows fill, and others."""
    for n, (wide, high, width) in product((1, 17, 64), IMAGES):
        s = Sketch()
        s.call("win_part", "ti", s.leaf(n, wide, high), width)
        yield s.case("WIN_PART", f"{wide}x{high} of {n}, windows of {width}", seed)


def win_unpart(seed: int) -> Iterator[OpCase]:
    """Windows to images that they fill, and others."""
    for n, (wide, high, width) in product((1, 17, 64), IMAGES):
        s = Sketch()
        windows = -(-wide // width) * -(-high // width)
        s.call("win_unpart", "tiii", s.leaf(n, width, width, windows), wide, high, width)
        yield s.case("WIN_UNPART", f"{wide}x{high} of {n}, windows of {width}", seed)


def get_rel_pos(seed: int) -> Iterator[OpCase]:
    """Tables of halves, square."""
    for width, n in product((1, 17, 64), (1, 2, 7, 14, 64)):
        s = Sketch()
        s.call("get_rel_pos", "tii", s.leaf(width, 2 * n - 1, type="f16"), n, n)
        yield s.case("GET_REL_POS", f"{n} positions, rows of {width}", seed)


def add_rel_pos(seed: int) -> Iterator[OpCase]:
    """Patches of images, each pixel with all others."""
    for n, patches in product((1, 2, 7, 14), (1, 2, 5)):
        for place in ("", "_inplace"):
            s = Sketch()
            x = s.leaf(n * n, n * n, patches)
            s.call(f"add_rel_pos{place}", "ttt", x, *(s.leaf(n, n, n, patches) for _ in "wh"))
            yield s.case("ADD_REL_POS", f"{patches} patches of {n}x{n}{', in place' if place else ''}", seed)


def lightning_indexer(seed: int) -> Iterator[OpCase]:
    """Keys of some types, heads, streams with a mask for each or one for all."""
    for kind, heads, (rows, n) in product(
        ("f32", "f16", "q8_0"), (1, 6), ((1, 1), (1, 257), (5, 33), (3, 64))
    ):
        yield _indexer(seed, kind, 64, heads, rows, n, 1, 1)
    for kind, streams, masks in product(("f16", "q4_0"), (2, 3), (0, 1)):
        yield _indexer(seed, kind, 128, 4, 7, 100, streams, 1 if masks else streams)
    yield _indexer(seed, "bf16", 32, 3, 2, 20, 1, 1)


def _indexer(
    seed: int, kind: str, width: int, heads: int, rows: int, n: int, streams: int, masks: int
) -> OpCase:
    s = Sketch()
    q, k = s.leaf(width, heads, rows, streams), s.leaf(width, 1, n, streams, type=kind)
    weights = s.leaf(heads, rows, 1, streams)
    s.call("lightning_indexer", "tttt", q, k, weights, s.leaf(n, rows, 1, masks, type="f16", data="mask"))
    about = f"{kind}, {heads} heads of {width}, {rows} of {n}, {streams} streams, {masks} masks"
    return s.case("LIGHTNING_INDEXER", about, seed)


def hc_comb(seed: int) -> Iterator[OpCase]:
    """Matrices of four streams."""
    for tokens, steps, data in product((1, 2, 17, 70), (1, 2, 20), ("normal", "wide")):
        s = Sketch()
        mixes, scale, base = s.leaf(24, tokens, data=data), s.leaf(3), s.leaf(24)
        s.call("dsv4_hc_comb", "tttfi", mixes, scale, base, EPS, steps)
        yield s.case("DSV4_HC_COMB", f"{tokens} tokens, {steps} steps, {data}", seed)


def hc_pre(seed: int) -> Iterator[OpCase]:
    """Sums of streams, and gated ones where the library has them."""
    for n, streams, tokens in product(SIZES, (1, 4), (1, 5)):
        s = Sketch()
        s.call("dsv4_hc_pre", "tt", s.leaf(n, streams, tokens), s.leaf(streams, tokens))
        yield s.case("DSV4_HC_PRE", f"{streams} streams of {n}, {tokens} tokens", seed)
    for n, tokens in product(SIZES, (1, 5)):
        s = Sketch()
        s.call("dsv4_hc_pre_gated", "ttf", s.leaf(n, 4, tokens), s.leaf(n, 4, tokens, data="wide"), 0.7)
        yield s.case("DSV4_HC_PRE", f"4 streams of {n}, {tokens} tokens, gated", seed)


def hc_post(seed: int) -> Iterator[OpCase]:
    """Streams from streams before and a new part."""
    for n, streams, tokens in product(SIZES, (1, 4), (1, 5)):
        s = Sketch()
        x, before = s.leaf(n, tokens), s.leaf(n, streams, tokens)
        s.call("dsv4_hc_post", "tttt", x, before, s.leaf(streams, tokens), s.leaf(streams, streams, tokens))
        yield s.case("DSV4_HC_POST", f"{streams} streams of {n}, {tokens} tokens", seed)


CASES: dict[str, Cases] = {
    "WIN_PART": win_part, "WIN_UNPART": win_unpart, "GET_REL_POS": get_rel_pos, "ADD_REL_POS": add_rel_pos,
    "LIGHTNING_INDEXER": lightning_indexer, "DSV4_HC_COMB": hc_comb, "DSV4_HC_PRE": hc_pre,
    "DSV4_HC_POST": hc_post,
}  # fmt: skip
