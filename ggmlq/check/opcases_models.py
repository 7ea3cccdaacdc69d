"""Cases of what models are made of: softmax, rope, recurrences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from .sketch import Cases, OpCase, Sketch

SIZES = (1, 15, 16, 17, 20, 64, 100, 257)
BASE, CONTEXT = 10000.0, 4096


MASKS = (("", 0.0, False), ("f16", 0.0, False), ("f32", 8.0, False), ("f32", 0.0, True))


def soft_max(seed: int) -> Iterator[OpCase]:
    """Rows with and without a mask, ALiBi and sinks."""
    for n in SIZES:
        for mask, bias, sinks in MASKS:
            s = Sketch()
            x = s.leaf(n, 5, 6, 2, data="wide")
            m = s.leaf(n, 5, type=mask, data="mask") if mask else None
            y = s.call("soft_max_ext", "ttff", x, m, 0.35, bias)
            if sinks:
                s.call("soft_max_add_sinks", "tt!", y, s.leaf(6))
            more = f"mask {mask or 'none'}, bias {bias:g}, sinks {sinks}"
            yield s.case("SOFT_MAX", f"ne=[{n},5,6,2], {more}", seed)
    for kind, outer in product(("f16", "f32"), ((1, 2), (6, 1), (3, 2))):  # masks of heads and of sequences
        s = Sketch()
        m = s.leaf(33, 5, *outer, type=kind, data="mask")
        s.call("soft_max_ext", "ttff", s.leaf(33, 5, 6, 2), m, 0.5, 2.0)
        yield s.case("SOFT_MAX", f"ne=[33,5,6,2], mask {kind} [33,5,{outer[0]},{outer[1]}], bias 2", seed)
    for heads in (3, 5, 12):
        s = Sketch()
        m = s.leaf(20, 4, type="f16", data="mask")
        s.call("soft_max_ext", "ttff", s.leaf(20, 4, heads), m, 0.5, 8.0)
        yield s.case("SOFT_MAX", f"ne=[20,4,{heads},1], mask f16, bias 8", seed)
    s = Sketch()
    s.call("soft_max_ext", "ttff", s.leaf(100, 5, 3), s.leaf(100, 64, type="f16", data="mask"), 0.5, 0.0)
    yield s.case("SOFT_MAX", "ne=[100,5,3,1], mask f16 of 64 rows", seed)
    for over in (None, 0):
        s = Sketch()
        s.call("soft_max" if over == 0 else "soft_max_inplace", "t", s.leaf(1056, 5, 3))
        yield s.case(
            "SOFT_MAX", "ne=[1056,5,3,1], " + ("in place" if over is None else "over its source"), seed, over
        )


ROPES = {
    "norm": (0, 0.0, False), "neox": (2, 0.0, False), "norm with factors": (0, 0.0, True),
    "neox with yarn": (2, 1.0, False), "norm with yarn and factors": (0, 0.7, True),
}  # fmt: skip


def rope_back(seed: int) -> Iterator[OpCase]:
    """Turns the other way, of several sequences."""
    for name, (mode, mix, factors) in ROPES.items():
        s = Sketch()
        at = s.leaf(7, type="i32", data="positions:3000")
        by = s.leaf(32, data="positive") if factors else None
        how = (64, mode, CONTEXT, BASE, 1.0, mix, 1.0, 32.0, 1.0)
        s.call("rope_ext_back", "tttiiiffffff", s.leaf(80, 3, 7, 2), at, by, *how)
        yield s.case("ROPE_BACK", f"{name}, f32, 64 of 80", seed)


WIDTHS = ((64, 64), (80, 32), (128, 128))  # of heads, and their turned part


def rope(seed: int) -> Iterator[OpCase]:
    """All modes, whole and in part, with YaRN and factors, on tensors and parts of them."""
    for (name, (mode, mix, factors)), (width, dims) in product(ROPES.items(), WIDTHS):
        for look in ("leaf", "apart", "permuted"):
            for kind in ("f32", "f16") if look == "leaf" else ("f32",):
                s = Sketch()
                x = getattr(s, look)(width, 3, 7, 1, type=kind)
                at = s.leaf(7, type="i32", data="positions:3000")
                by = s.leaf(dims // 2, data="positive") if factors else None
                scale = 0.25 if mix else 1.0
                how = (dims, mode, CONTEXT, BASE, scale, mix, 1.0, 32.0, 1.0)
                s.call("rope_ext", "tttiiiffffff", x, at, by, *how)
                yield s.case("ROPE", f"{name}, {kind}, {dims} of {width}, {look}", seed)
    for name, (mode, _, _) in list(ROPES.items())[:2]:
        for over in (None, 0):
            s = Sketch()
            at = s.leaf(7, type="i32", data="positions:3000")
            how = (64, mode, CONTEXT, BASE, 1.0, 0.0, 1.0, 32.0, 1.0)
            x = s.apart(80, 3, 7, 2) if over is None else s.leaf(80, 3, 7, 2)
            s.call("rope_ext_inplace" if over is None else "rope_ext", "tttiiiffffff", x, at, None, *how)
            more = "rows apart, in place" if over is None else "over its source"
            yield s.case("ROPE", f"{name}, 64 of 80, 2 sequences, {more}", seed, over)
    for name, mode, dims, sections in (
        ("multi", 8, 64, (16, 8, 8, 0)), ("interleaved", 40, 64, (12, 10, 10, 0)),
        ("vision", 24, 32, (16, 16, 0, 0)),
    ):  # fmt: skip
        s = Sketch()
        at = s.leaf(28, type="i32", data="positions:60")
        multi: tuple[object, ...] = (dims, sections, mode, CONTEXT, BASE, 1.0, 0.0, 1.0, 32.0, 1.0)
        s.call("rope_multi", "tttiIiiffffff", s.leaf(64, 3, 7), at, None, *multi)
        yield s.case("ROPE", f"{name}, {dims} of 64", seed)


def ssm_conv(seed: int) -> Iterator[OpCase]:
    """Kernels of 3 and 4 over one token and several."""
    for size, channels, tokens, sequences in (
        (4, 17, 1, 1), (4, 64, 9, 2), (3, 100, 5, 1), (4, 33, 7, 3), (4, 1, 1, 2), (9, 20, 3, 1),
    ):  # fmt: skip
        s = Sketch()
        s.call("ssm_conv", "tt", s.leaf(size - 1 + tokens, channels, sequences), s.leaf(size, channels))
        sizes = f"kernel {size}, {channels} channels, {tokens} tokens, {sequences} sequences"
        yield s.case("SSM_CONV", sizes, seed)


def ssm_scan(seed: int) -> Iterator[OpCase]:
    """Mamba 1 and 2, with one group of heads and several."""
    for width, dim, heads, groups, tokens, sequences, scalar in (
        (16, 1, 20, 1, 5, 2, False), (64, 16, 8, 1, 4, 1, True), (128, 16, 8, 4, 7, 2, True),
        (20, 4, 6, 2, 3, 1, True), (16, 8, 3, 3, 2, 3, True), (128, 64, 4, 2, 1, 1, True),
        (16, 1, 33, 1, 3, 1, False), (100, 5, 5, 1, 2, 2, True), (16, 1, 128, 1, 5, 2, False),
        (16, 1, 256, 1, 1, 3, False), (256, 32, 3, 1, 9, 1, True),
    ):  # fmt: skip
        s = Sketch()
        state, x = s.leaf(width, dim, heads, sequences), s.leaf(dim, heads, tokens, sequences)
        dt, a = s.leaf(heads, tokens, sequences), s.leaf(1 if scalar else width, heads, data="decay")
        b, c = (s.leaf(width, groups, tokens, sequences) for _ in "bc")
        ids = s.leaf(sequences, type="i32", data=f"places:{sequences}")
        s.call("ssm_scan", "tttttttl", state, x, dt, a, b, c, ids, 1)
        sizes = f"state {width}, heads {heads}x{dim}, {groups} groups, {tokens} tokens, {sequences} sequences"
        yield s.case("SSM_SCAN", sizes, seed)


# sizes and numbers of heads, tokens, sequences; heads that no number of threads divides
RUNS = (
    (64, 2, 5, 1), (32, 3, 6, 2), (64, 1, 1, 1), (64, 5, 4, 2), (64, 7, 3, 3), (128, 3, 2, 1), (16, 4, 3, 1),
    (96, 2, 3, 1),
)  # fmt: skip


def _linear(op: str, function: str, data: tuple[str, ...], more: tuple[object, ...] = ()) -> Cases:
    """Cases of operations on [size, heads, tokens] with a state at the end of their sources."""

    def cases(seed: int) -> Iterator[OpCase]:
        for size, heads, tokens, sequences in RUNS:
            s = Sketch()
            tensors = [
                s.leaf(size, heads, data=kind[1:])
                if kind[0] == "*"
                else s.leaf(size, heads, tokens, data=kind)
                for kind in data
            ]
            state = s.leaf(size * size * heads, sequences)
            s.call(function, "t" * (len(tensors) + 1) + "f" * len(more), *tensors, state, *more)
            yield s.case(op, f"heads {heads}x{size}, {tokens} tokens, {sequences} sequences", seed)

    return cases


def delta_net(seed: int) -> Iterator[OpCase]:
    """Gates of heads and of columns, keys shared by heads."""
    every = (
        (64, 4, 2, 5, 1, False), (32, 2, 2, 3, 2, True), (16, 3, 3, 1, 1, False), (64, 6, 2, 2, 3, False),
        (128, 2, 1, 70, 1, False), (64, 5, 5, 7, 2, False), (20, 2, 2, 3, 1, True),
    )  # fmt: skip
    for size, heads, keys, tokens, sequences, wide in every:
        s = Sketch()
        q, k = (s.call("l2_norm", "tf", s.leaf(size, keys, tokens, sequences), 1e-6) for _ in "qk")
        v = s.leaf(size, heads, tokens, sequences)
        g = s.leaf(size if wide else 1, heads, tokens, sequences, data="decay")
        beta = s.leaf(1, heads, tokens, sequences, data="gate")
        state = s.leaf(size, size, heads, sequences, data="small")
        s.call("gated_delta_net", "ttttttl", q, k, v, g, beta, state, 1)
        sizes = f"heads {heads}/{keys}x{size}, {tokens} tokens, {sequences} sequences"
        yield s.case("GATED_DELTA_NET", sizes, seed)


def solve_tri(seed: int) -> Iterator[OpCase]:
    """Triangles of some sizes with several right sides."""
    for n, k in ((1, 1), (5, 3), (16, 20), (33, 7), (64, 64), (7, 64), (20, 1)):
        s = Sketch()
        a = s.leaf(n, n, 2, 2, data="triangle")
        s.call("solve_tri", "ttbbb", a, s.leaf(k, n, 2, 2), True, True, False)
        yield s.case("SOLVE_TRI", f"n={n}, {k} columns", seed)


def add_id(seed: int) -> Iterator[OpCase]:
    """Biases of experts by ids."""
    for n in SIZES:
        s = Sketch()
        s.call("add_id", "ttt", s.leaf(n, 3, 5), s.leaf(n, 8), s.leaf(3, 5, type="i32", data="ids:8"))
        yield s.case("ADD_ID", f"ne=[{n},3,5,1], 8 experts", seed)


def models() -> dict[str, Cases]:
    """Cases of this file by operation."""
    wkv6 = ("small", "small", "small", "*small", "gate")
    gla = ("small", "small", "small", "gate")
    wkv7 = ("small", "gate", "small", "small", "small", "small")
    return {
        "SOFT_MAX": soft_max, "ROPE": rope, "ROPE_BACK": rope_back, "SSM_CONV": ssm_conv,
        "SSM_SCAN": ssm_scan, "RWKV_WKV6": _linear("RWKV_WKV6", "rwkv_wkv6", wkv6),
        "RWKV_WKV7": _linear("RWKV_WKV7", "rwkv_wkv7", wkv7),
        "GATED_LINEAR_ATTN": _linear("GATED_LINEAR_ATTN", "gated_linear_attn", gla, (0.25,)),
        "GATED_DELTA_NET": delta_net, "SOLVE_TRI": solve_tri, "ADD_ID": add_id,
    }  # fmt: skip
