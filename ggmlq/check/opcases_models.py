"""Cases of what models are made of: softmax, rope, recurrences, attention, an indexer, streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from .sketch import Sketch, Tensor, cases

SIZES = (1, 15, 16, 17, 20, 64, 100, 257)
BASE, CONTEXT = 10000.0, 4096


MASKS = (("", 0.0, False), ("f16", 0.0, False), ("f32", 8.0, False), ("f32", 0.0, True))


@cases("SOFT_MAX")
def soft_max(s: Sketch) -> Iterator[str]:
    """Rows with and without a mask, ALiBi and sinks."""
    for n in SIZES:
        for mask, bias, sinks in MASKS:
            x = s.leaf(n, 5, 6, 2, data="wide")
            m = s.leaf(n, 5, type=mask, data="mask") if mask else None
            y = s.call("soft_max_ext", x, m, 0.35, bias)
            if sinks:
                s.call("soft_max_add_sinks", y, s.leaf(6))
            yield f"ne=[{n},5,6,2], mask {mask or 'none'}, bias {bias:g}, sinks {sinks}"
    for kind, outer in product(("f16", "f32"), ((1, 2), (6, 1), (3, 2))):  # masks of heads and of sequences
        m = s.leaf(33, 5, *outer, type=kind, data="mask")
        s.call("soft_max_ext", s.leaf(33, 5, 6, 2), m, 0.5, 2.0)
        yield f"ne=[33,5,6,2], mask {kind} [33,5,{outer[0]},{outer[1]}], bias 2"
    for heads in (3, 5, 12):
        m = s.leaf(20, 4, type="f16", data="mask")
        s.call("soft_max_ext", s.leaf(20, 4, heads), m, 0.5, 8.0)
        yield f"ne=[20,4,{heads},1], mask f16, bias 8"
    for n, sinks in product((20, 100), (False, True)):  # rows that see nothing: 0 where there is a sink
        y = s.call("soft_max_ext", s.leaf(n, 5, 6, 2), s.leaf(n, 5, data="hidden"), 0.35, 0.0)
        if sinks:
            s.call("soft_max_add_sinks", y, s.leaf(6))
        yield f"ne=[{n},5,6,2], rows that see nothing, sinks {sinks}"
    s.call("soft_max_ext", s.leaf(100, 5, 3), s.leaf(100, 64, type="f16", data="mask"), 0.5, 0.0)
    yield "ne=[100,5,3,1], mask f16 of 64 rows"
    for over in (None, 0):
        s.call("soft_max" if over == 0 else "soft_max_inplace", s.leaf(1056, 5, 3))
        s.over = over
        yield "ne=[1056,5,3,1], " + ("in place" if over is None else "over its source")


ROPES = {
    "norm": (0, 0.0, False), "neox": (2, 0.0, False), "norm with factors": (0, 0.0, True),
    "neox with yarn": (2, 1.0, False), "norm with yarn and factors": (0, 0.7, True),
}  # fmt: skip


@cases("ROPE_BACK")
def rope_back(s: Sketch) -> Iterator[str]:
    """Rotations the other way, of several sequences."""
    for name, (mode, mix, factors) in ROPES.items():
        at = s.leaf(7, type="i32", data="positions:3000")
        by = s.leaf(32, data="positive") if factors else None
        how = (64, mode, CONTEXT, BASE, 1.0, mix, 1.0, 32.0, 1.0)
        s.call("rope_ext_back", s.leaf(80, 3, 7, 2), at, by, *how)
        yield f"{name}, f32, 64 of 80"


WIDTHS = ((64, 64), (80, 32), (128, 128))  # of heads, and their rotated part


@cases("ROPE")
def rope(s: Sketch) -> Iterator[str]:
    """All modes, whole and in part, with YaRN and factors, on tensors and parts of them."""
    for (name, (mode, mix, factors)), (width, dims) in product(ROPES.items(), WIDTHS):
        for look in ("leaf", "apart", "permuted"):
            for kind in ("f32", "f16") if look == "leaf" else ("f32",):
                x = getattr(s, look)(width, 3, 7, 1, type=kind)
                at = s.leaf(7, type="i32", data="positions:3000")
                by = s.leaf(dims // 2, data="positive") if factors else None
                scale = 0.25 if mix else 1.0
                how = (dims, mode, CONTEXT, BASE, scale, mix, 1.0, 32.0, 1.0)
                s.call("rope_ext", x, at, by, *how)
                yield f"{name}, {kind}, {dims} of {width}, {look}"
    for name, (mode, _, _) in list(ROPES.items())[:2]:
        for over in (None, 0):
            at = s.leaf(7, type="i32", data="positions:3000")
            how = (64, mode, CONTEXT, BASE, 1.0, 0.0, 1.0, 32.0, 1.0)
            x = s.apart(80, 3, 7, 2) if over is None else s.leaf(80, 3, 7, 2)
            s.call("rope_ext_inplace" if over is None else "rope_ext", x, at, None, *how)
            more = "rows apart, in place" if over is None else "over its source"
            s.over = over
            yield f"{name}, 64 of 80, 2 sequences, {more}"
    for name, mode, dims, sections in (
        ("multi", 8, 64, (16, 8, 8, 0)), ("interleaved", 40, 64, (12, 10, 10, 0)),
        ("vision", 24, 32, (16, 16, 0, 0)),
    ):  # fmt: skip
        at = s.leaf(28, type="i32", data="positions:60")
        multi: tuple[object, ...] = (dims, sections, mode, CONTEXT, BASE, 1.0, 0.0, 1.0, 32.0, 1.0)
        s.call("rope_multi", s.leaf(64, 3, 7), at, None, *multi)
        yield f"{name}, {dims} of 64"


@cases("SSM_CONV")
def ssm_conv(s: Sketch) -> Iterator[str]:
    """Kernels of 3 and 4 over one token and several."""
    for size, channels, tokens, sequences in (
        (4, 17, 1, 1), (4, 64, 9, 2), (3, 100, 5, 1), (4, 33, 7, 3), (4, 1, 1, 2), (9, 20, 3, 1),
    ):  # fmt: skip
        s.call("ssm_conv", s.leaf(size - 1 + tokens, channels, sequences), s.leaf(size, channels))
        yield f"kernel {size}, {channels} channels, {tokens} tokens, {sequences} sequences"


@cases("SSM_SCAN")
def ssm_scan(s: Sketch) -> Iterator[str]:
    """Mamba 1 and 2, with one group of heads and several."""
    for width, dim, heads, groups, tokens, sequences, scalar in (
        (16, 1, 20, 1, 5, 2, False), (64, 16, 8, 1, 4, 1, True), (128, 16, 8, 4, 7, 2, True),
        (20, 4, 6, 2, 3, 1, True), (16, 8, 3, 3, 2, 3, True), (128, 64, 4, 2, 1, 1, True),
        (16, 1, 33, 1, 3, 1, False), (100, 5, 5, 1, 2, 2, True), (16, 1, 128, 1, 5, 2, False),
        (16, 1, 256, 1, 1, 3, False), (256, 32, 3, 1, 9, 1, True),
    ):  # fmt: skip
        state, x = s.leaf(width, dim, heads, sequences), s.leaf(dim, heads, tokens, sequences)
        dt, a = s.leaf(heads, tokens, sequences), s.leaf(1 if scalar else width, heads, data="decay")
        b, c = (s.leaf(width, groups, tokens, sequences) for _ in "bc")
        ids = s.leaf(sequences, type="i32", data=f"places:{sequences}")
        s.call("ssm_scan", state, x, dt, a, b, c, ids, 1)
        yield f"state {width}, heads {heads}x{dim}, {groups} groups, {tokens} tokens, {sequences} sequences"


# sizes and numbers of heads, tokens, sequences; heads that no number of threads divides
RUNS = (
    (64, 2, 5, 1), (32, 3, 6, 2), (64, 1, 1, 1), (64, 5, 4, 2), (64, 7, 3, 3), (128, 3, 2, 1), (16, 4, 3, 1),
    (96, 2, 3, 1),
)  # fmt: skip


@cases("RWKV_WKV6", "rwkv_wkv6", "small small small *small gate")
@cases("RWKV_WKV7", "rwkv_wkv7", "small gate small small small small")
@cases("GATED_LINEAR_ATTN", "gated_linear_attn", "small small small gate", 0.25)
def linear_attention(s: Sketch, function: str, data: str, *more: float) -> Iterator[str]:
    """Cases of tensors [size, heads, tokens], without tokens after a star, and a state behind them."""
    for size, heads, tokens, sequences in RUNS:
        tensors = [
            s.leaf(size, heads, data=kind[1:]) if kind[0] == "*" else s.leaf(size, heads, tokens, data=kind)
            for kind in data.split()
        ]
        s.call(function, *tensors, s.leaf(size * size * heads, sequences), *more)
        yield f"heads {heads}x{size}, {tokens} tokens, {sequences} sequences"


@cases("GATED_DELTA_NET")
def delta_net(s: Sketch) -> Iterator[str]:
    """Gates of heads and of columns, keys shared by heads."""
    every = (
        (64, 4, 2, 5, 1, False), (32, 2, 2, 3, 2, True), (16, 3, 3, 1, 1, False), (64, 6, 2, 2, 3, False),
        (128, 2, 1, 70, 1, False), (64, 5, 5, 7, 2, False), (20, 2, 2, 3, 1, True),
    )  # fmt: skip
    for size, heads, keys, tokens, sequences, wide in every:
        q, k = (s.call("l2_norm", s.leaf(size, keys, tokens, sequences), 1e-6) for _ in "qk")
        v = s.leaf(size, heads, tokens, sequences)
        g = s.leaf(size if wide else 1, heads, tokens, sequences, data="decay")
        beta = s.leaf(1, heads, tokens, sequences, data="gate")
        state = s.leaf(size, size, heads, sequences, data="small")
        s.call("gated_delta_net", q, k, v, g, beta, state, 1)
        yield f"heads {heads}/{keys}x{size}, {tokens} tokens, {sequences} sequences"


@cases("SOLVE_TRI")
def solve_tri(s: Sketch) -> Iterator[str]:
    """Triangles of some sizes with several right sides."""
    for n, k in ((1, 1), (5, 3), (16, 20), (33, 7), (64, 64), (7, 64), (20, 1)):
        a = s.leaf(n, n, 2, 2, data="triangle")
        s.call("solve_tri", a, s.leaf(k, n, 2, 2), True, True, False)
        yield f"n={n}, {k} columns"


@cases("ADD_ID")
def add_id(s: Sketch) -> Iterator[str]:
    """Biases of experts by ids."""
    for n in SIZES:
        s.call("add_id", s.leaf(n, 3, 5), s.leaf(n, 8), s.leaf(3, 5, type="i32", data="ids:8"))
        yield f"ne=[{n},3,5,1], 8 experts"


FEWER_SIZES = (1, 15, 16, 17, 20, 64, 257)


@cases("LIGHTNING_INDEXER")
def lightning_indexer(s: Sketch) -> Iterator[str]:
    """Keys of some types, heads, streams with a mask for each or one for all."""
    lengths = ((1, 1), (1, 257), (5, 33), (3, 64))
    every = [(kind, 64, heads, *sizes, 1, 1)
             for kind, heads, sizes in product(("f32", "f16", "q8_0"), (1, 6), lengths)]  # fmt: skip
    for kind, streams, one_mask in product(("f16", "q4_0"), (2, 3), (False, True)):
        every.append((kind, 128, 4, 7, 100, streams, 1 if one_mask else streams))
    for kind, width, heads, rows, n, streams, masks in (*every, ("bf16", 32, 3, 2, 20, 1, 1)):
        q, k = s.leaf(width, heads, rows, streams), s.leaf(width, 1, n, streams, type=kind)
        weights = s.leaf(heads, rows, 1, streams)
        s.call("lightning_indexer", q, k, weights, s.leaf(n, rows, 1, masks, type="f16", data="mask"))
        yield f"{kind}, {heads} heads of {width}, {rows} of {n}, {streams} streams, {masks} masks"


@cases("DSV4_HC_COMB")
def hc_comb(s: Sketch) -> Iterator[str]:
    """Matrices of four streams."""
    for tokens, steps, data in product((1, 2, 17, 70), (1, 2, 20), ("normal", "wide")):
        mixes, scale, base = s.leaf(24, tokens, data=data), s.leaf(3), s.leaf(24)
        s.call("dsv4_hc_comb", mixes, scale, base, 1e-6, steps)
        yield f"{tokens} tokens, {steps} steps, {data}"


@cases("DSV4_HC_PRE")
def hc_pre(s: Sketch) -> Iterator[str]:
    """Sums of streams, and gated ones where the library has them."""
    for n, streams, tokens in product(FEWER_SIZES, (1, 4), (1, 5)):
        s.call("dsv4_hc_pre", s.leaf(n, streams, tokens), s.leaf(streams, tokens))
        yield f"{streams} streams of {n}, {tokens} tokens"
    for n, tokens in product(FEWER_SIZES, (1, 5)):
        s.call("dsv4_hc_pre_gated", s.leaf(n, 4, tokens), s.leaf(n, 4, tokens, data="wide"), 0.7)
        yield f"4 streams of {n}, {tokens} tokens, gated"


@cases("DSV4_HC_POST")
def hc_post(s: Sketch) -> Iterator[str]:
    """Streams from streams before and a new part."""
    for n, streams, tokens in product(FEWER_SIZES, (1, 4), (1, 5)):
        x, before = s.leaf(n, tokens), s.leaf(n, streams, tokens)
        s.call("dsv4_hc_post", x, before, s.leaf(streams, tokens), s.leaf(streams, streams, tokens))
        yield f"{streams} streams of {n}, {tokens} tokens"


# --- attention: types of a cache, how it lies, heads that share it, masks, tiles of queries --------


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

    def draw(self, s: Sketch) -> None:
        """Draw the attention into a sketch."""
        q = s.permuted(self.width[0], self.rows, self.heads[0], self.streams)
        k, v = self._cache(s)
        mask = None
        if self.mask:
            tall = -(-self.rows // PADDED) * PADDED
            streams = 1 if self.one_mask else self.streams
            mask = s.leaf(self.n, tall, self.mask_heads, streams, type="f16", data=self.mask)
        scale = self.width[0] ** -0.5
        y = s.call("flash_attn_ext", q, k, v, mask, scale, self.bias, self.cap)
        if self.sinks:
            s.call("flash_attn_ext_add_sinks", y, s.leaf(self.heads[0]))

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
    for w in (32, 40, 72, 80, 96, 112, 128, 256):
        yield replace(plain, width=(w, w), heads=(3, 1), n=64)
    yield replace(plain, width=(192, 128), heads=(3, 1), n=64)
    yield replace(plain, width=(576, 512), heads=(4, 1), n=40, rows=3, lies="v in k")
    # as a cache lies
    for kind, rows in product(("f16", "q8_0", "f32"), (1, 20)):
        yield replace(plain, k=kind, rows=rows, lies="as a cache")
    # many rows: tiles of queries and of positions, whole blocks of them hidden
    blocks = (64, 128, "causal:64"), (65, 200, "causal:135"), (130, 512, "causal:0"), (70, 96, "mask")
    for rows, n, mask in blocks:
        for kind in ("f16", "q8_0", "f32"):
            yield replace(plain, k=kind, rows=rows, n=n, mask=mask, heads=(2, 1))
    for kind, n in (("f16", 100), ("f32", 100), ("f16", 5)):  # positions that fill no tile, and nothing hides
        yield replace(plain, k=kind, rows=70, n=n, mask="", cap=5.0)
    tall = replace(plain, rows=80, n=160, mask="causal:80", heads=(3, 1))
    yield from (replace(tall, sinks=True), replace(tall, cap=20.0), replace(tall, bias=8.0, heads=(3, 3)))
    yield from (replace(tall, width=(80, 80)), replace(tall, streams=2), replace(tall, width=(192, 128)))
    yield replace(tall, lies="as a cache")
    # one row and many positions: parts of a cache for each thread
    long = (513, "f16", (1, 1)), (1024, "f16", (2, 1)), (1024, "q8_0", (4, 1)), (777, "f32", (8, 2))
    for n, kind, heads in long:
        yield replace(plain, k=kind, n=n, rows=1, heads=heads)
    yield from (replace(plain, n=1024, rows=1, sinks=True), replace(plain, n=1024, rows=1, mask="causal:300"))
    for kind, rows in product(("f16", "q8_0", "f32"), (1, 7, 70)):  # rows that see nothing
        yield replace(plain, k=kind, rows=rows, n=64, mask="hidden", heads=(4, 2))
    yield from (replace(plain, mask="hidden", sinks=True), replace(plain, mask="hidden", cap=5.0))
    yield replace(plain, mask="hidden", n=1024, rows=1)
    for heads in ((3, 3), (6, 3), (12, 4), (5, 1)):  # slopes of numbers of heads that are no powers of two
        yield replace(plain, bias=8.0, heads=heads, rows=2)


@cases("FLASH_ATTN_EXT")
def attention(s: Sketch) -> Iterator[str]:
    """Caches of numbers and blocks, heads that share them, masks, ALiBi, a cap, sinks, streams, tiles."""
    for one in every():
        one.draw(s)
        yield one.about()
