"""Cases of attention: types of a cache, how it lies, heads that share it, masks, tiles of queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from .sketch import Cases, OpCase, Sketch, Tensor

PADDED = 64  # rows of a mask come in multiples of it, which some years ask for


@dataclass(frozen=True)
class Attention:
    """One attention: its sizes, types, and what it has beside queries, keys and values."""

    k: str = "f16"
    v: str = ""  # as k
    heads: tuple[int, int] = (4, 2)  # of queries, and of keys and values
    width: tuple[int, int] = (64, 64)  # of keys, and of values
    n: int = 96
    rows: int = 5
    streams: int = 1
    mask: str = "mask"  # the kind of its data, or none
    mask_heads: int = 1  # masks of their own
    one_mask: bool = False  # for all streams
    bias: float = 0.0
    cap: float = 0.0
    sinks: bool = False
    lies: str = "plain"  # "as a cache": heads inside positions, and positions left behind; "v in k"

    def about(self) -> str:
        """The attention in words: what every one has, then what this one has beside."""
        kinds = self.k if self.v in ("", self.k) else f"{self.k} and {self.v}"
        wide = f"{self.width[0]}" if self.width[0] == self.width[1] else f"{self.width[0]}/{self.width[1]}"
        head = f"{kinds}, heads {self.heads[0]}/{self.heads[1]}x{wide}, {self.rows} of {self.n}"
        more = [
            (self.streams > 1, f"{self.streams} streams"), (self.mask != "mask", self.mask or "no mask"),
            (self.mask_heads > 1, "masks of heads"), (self.one_mask, "one mask"),
            (self.bias, f"bias {self.bias:g}"),
            (self.cap, f"cap {self.cap:g}"), (self.sinks, "sinks"), (self.lies != "plain", self.lies),
        ]  # fmt: skip
        return ", ".join([head, *(text for there, text in more if there)])

    def case(self, seed: int) -> OpCase:
        """The attention as a case."""
        s = Sketch()
        q = s.permuted(self.width[0], self.rows, self.heads[0], self.streams)
        k, v = self._cache(s)
        mask = None
        if self.mask:
            tall = -(-self.rows // PADDED) * PADDED
            streams = 1 if self.one_mask else self.streams
            mask = s.leaf(self.n, tall, self.mask_heads, streams, type="f16", data=self.mask)
        scale = self.width[0] ** -0.5
        y = s.call("flash_attn_ext", "ttttfff", q, k, v, mask, scale, self.bias, self.cap)
        if self.sinks:
            s.call("flash_attn_ext_add_sinks", "tt!", y, s.leaf(self.heads[0]))
        return s.case("FLASH_ATTN_EXT", self.about(), seed)

    def _cache(self, s: Sketch) -> tuple[Tensor, Tensor]:
        lengths = self.n, self.heads[1], self.streams
        kinds = self.k, self.v or self.k
        if self.lies == "v in k":  # values are a part of the keys, as in MLA
            k = s.leaf(self.width[0], *lengths, type=self.k)
            return k, s.part(k, self.width[1], *lengths)
        make = s.cached if self.lies == "as a cache" else s.leaf
        k, v = (make(w, *lengths, type=kind) for w, kind in zip(self.width, kinds, strict=True))
        return k, v


def every() -> Iterator[Attention]:
    """All attentions of the default cases."""
    kinds = ("f16", "q8_0", "q4_0", "f32")
    for kind, heads, n, rows in product(kinds, ((4, 4), (6, 2)), (1, 33, 256), (1, 7)):
        yield Attention(kind, heads=heads, n=n, rows=rows)
    plain = Attention()
    yield from (replace(plain, bias=8.0), replace(plain, cap=5.0), replace(plain, sinks=True))
    yield from (replace(plain, mask=""), replace(plain, k="bf16", heads=(4, 1)))
    for kind in ("q4_1", "q5_0", "q5_1", "iq4_nl"):
        yield replace(plain, k=kind)
    for k, v in (("q8_0", "q4_0"), ("f16", "q8_0"), ("q8_0", "f16"), ("f16", "f32"), ("f32", "f16")):
        yield replace(plain, k=k, v=v, rows=3)
    # streams of a cache, with a mask for each or one for all; masks of heads
    for kind in ("f16", "q8_0"):
        yield from (replace(plain, k=kind, streams=3), replace(plain, k=kind, streams=2, one_mask=True))
    yield replace(plain, streams=2, heads=(2, 2), mask_heads=2)
    yield replace(plain, streams=1, heads=(4, 2), mask_heads=4)
    yield replace(plain, streams=3, heads=(3, 1), bias=4.0, rows=1)
    # widths of heads, and values of another width
    for w in (
        (32, 32),
        (40, 40),
        (72, 72),
        (80, 80),
        (96, 96),
        (112, 112),
        (128, 128),
        (256, 256),
        (192, 128),
    ):
        yield replace(plain, width=w, heads=(3, 1), n=64)
    yield replace(plain, width=(576, 512), heads=(4, 1), n=40, rows=3, lies="v in k")
    # as a cache lies
    for kind, rows in product(("f16", "q8_0", "f32"), (1, 20)):
        yield replace(plain, k=kind, rows=rows, lies="as a cache")
    # many rows: tiles of queries and of positions, whole blocks of them hidden
    for rows, n, mask in (
        (64, 128, "causal:64"),
        (65, 200, "causal:135"),
        (130, 512, "causal:0"),
        (70, 96, "mask"),
    ):
        for kind in ("f16", "q8_0", "f32"):
            yield replace(plain, k=kind, rows=rows, n=n, mask=mask, heads=(2, 1))
    for kind, n in (("f16", 100), ("f32", 100), ("f16", 5)):  # positions that fill no tile, and nothing hides
        yield replace(plain, k=kind, rows=70, n=n, mask="", cap=5.0)
    tall = replace(plain, rows=80, n=160, mask="causal:80", heads=(3, 1))
    yield from (replace(tall, sinks=True), replace(tall, cap=20.0), replace(tall, bias=8.0, heads=(3, 3)))
    yield from (replace(tall, width=(80, 80)), replace(tall, streams=2), replace(tall, width=(192, 128)))
    yield replace(tall, lies="as a cache")
    # one row and many positions: parts of a cache for each thread
    for n, kind, heads in (
        (513, "f16", (1, 1)),
        (1024, "f16", (2, 1)),
        (1024, "q8_0", (4, 1)),
        (777, "f32", (8, 2)),
    ):
        yield replace(plain, k=kind, n=n, rows=1, heads=heads)
    yield from (replace(plain, n=1024, rows=1, sinks=True), replace(plain, n=1024, rows=1, mask="causal:300"))
    for heads in ((3, 3), (6, 3), (12, 4), (5, 1)):  # slopes of numbers of heads that are no powers of two
        yield replace(plain, bias=8.0, heads=heads, rows=2)


def attention(seed: int) -> Iterator[OpCase]:
    """Caches of numbers and blocks, heads that share them, masks, ALiBi, a cap, sinks, streams, tiles."""
    for one in every():
        yield one.case(seed)


CASES: dict[str, Cases] = {"FLASH_ATTN_EXT": attention}
