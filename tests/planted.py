"""Twelve wrong decoders a type, for the types with code books, tables or shared exponents.

Written in NumPy from ggml's structs, field by field. Only the grids' numbers come from the package; nothing
else is shared with the diagnosis.
"""

from __future__ import annotations

import numpy as np

from ggmlq.formats._grids import grid

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float64)
PARITY = np.array([bin(i).count("1") & 1 for i in range(128)])
SIGNS = (np.arange(128) | PARITY << 7).astype(np.int64)  # bits of a 7-bit index

same = lambda v: v
flipped = lambda v: np.unpackbits(
    np.packbits(np.unpackbits(v.astype(np.uint8)[..., None], axis=-1)[..., ::-1], axis=-1), axis=-1
)


def bits(byte, n=8):
    """[..., 8 bytes] to bits, the least significant first."""
    return (byte[..., None].astype(np.int64) >> np.arange(n)) & 1


def turned(byte):
    """Each byte with its bits in reverse."""
    return (bits(byte) << np.arange(7, -1, -1)).sum(axis=-1)


def nibbled(byte):
    return byte >> 4 | (byte & 15) << 4


def words(block, at, count, kind):
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(block[..., at : at + size * count]).view(kind).astype(np.int64)


def half(block, at):
    return words(block, at, 1, "<u2").astype(np.uint16).view(np.float16).astype(np.float64)


def made(d, sub, codes, group):
    """Values: d times a sub-scale each group, times codes."""
    scale = d * sub
    return (codes.reshape(*codes.shape[:-1], -1, group) * scale[..., None]).reshape(codes.shape)


def iq2_xxs(b, row=same, index=same, sign=same, signs=SIGNS, s=same, book="iq2_xxs", within=same, grids=same):
    qs = b[..., 2:66].reshape(*b.shape[:-1], 8, 8).astype(np.int64)
    rows = index(qs[..., :4].reshape(*b.shape[:-1], 32))
    word = words(b, 2, 16, "<u4")[..., 1::2]
    seven = (word[..., None] >> np.array([0, 7, 14, 21]) & 127).reshape(*b.shape[:-1], 32)
    minus = bits(sign(signs[seven])).reshape(*b.shape[:-1], 256)
    size = within(grids(grid(book).astype(np.float64))[row(rows) % 256]).reshape(*b.shape[:-1], 256)
    return made(half(b, 0), (s(word >> 28) + 0.5) / 4, np.where(minus, -size, size), 32)


def iq2_xs(b, row=same, index=same, sign=same, signs=SIGNS, s=same, book="iq2_xs", within=same, grids=same):
    qs = words(b, 2, 32, "<u2")
    minus = bits(sign(signs[qs >> 9])).reshape(*b.shape[:-1], 256)
    size = within(grids(grid(book).astype(np.float64))[row(index(qs & 511)) % 512]).reshape(
        *b.shape[:-1], 256
    )
    packed = b[..., 66:74].astype(np.int64)
    sub = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*b.shape[:-1], 16)
    return made(half(b, 0), (s(sub) + 0.5) / 4, np.where(minus, -size, size), 16)


def iq2_s(b, row=same, index=same, sign=same, high=same, s=same, book="iq2_s", within=same, grids=same):
    low, minus = (
        b[..., 2:34].astype(np.int64),
        bits(sign(b[..., 34:66].astype(np.int64))).reshape(*b.shape[:-1], 256),
    )
    two = (b[..., 66:74, None] >> np.array([0, 2, 4, 6]) & 3).astype(np.int64).reshape(*b.shape[:-1], 32)
    size = within(
        grids(grid(book).astype(np.float64))[row(index(low) | high(two) << 8) % len(grid(book))]
    ).reshape(*b.shape[:-1], 256)
    packed = b[..., 74:82].astype(np.int64)
    sub = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*b.shape[:-1], 16)
    return made(half(b, 0), (s(sub) + 0.5) / 4, np.where(minus, -size, size), 16)


def iq3_xxs(b, row=same, index=same, sign=same, signs=SIGNS, s=same, book="iq3_xxs", within=same, grids=same):
    rows, word = index(b[..., 2:66].astype(np.int64)), words(b, 66, 8, "<u4")
    seven = (word[..., None] >> np.array([0, 7, 14, 21]) & 127).reshape(*b.shape[:-1], 32)
    minus = bits(sign(signs[seven])).reshape(*b.shape[:-1], 256)
    size = within(grids(grid(book).astype(np.float64))[row(rows) % 256]).reshape(*b.shape[:-1], 256)
    return made(half(b, 0), (s(word >> 28) + 0.5) / 2, np.where(minus, -size, size), 32)


def iq3_s(b, row=same, index=same, sign=same, high=same, s=same, book="iq3_s", within=same, grids=same):
    low, ninth = b[..., 2:66].astype(np.int64), bits(b[..., 66:74]).reshape(*b.shape[:-1], 64)
    minus = bits(sign(b[..., 74:106].astype(np.int64))).reshape(*b.shape[:-1], 256)
    size = within(
        grids(grid(book).astype(np.float64))[row(index(low) | high(ninth) << 8) % len(grid(book))]
    ).reshape(*b.shape[:-1], 256)
    packed = b[..., 106:110].astype(np.int64)
    sub = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*b.shape[:-1], 8)
    return made(half(b, 0), 2 * s(sub) + 1, np.where(minus, -size, size), 32)


def iq1_s(b, row=same, index=same, sign=same, high=same, s=same, within=same, grids=same):
    qh = words(b, 34, 8, "<u2")
    three = (qh[..., None] >> np.array([0, 3, 6, 9]) & 7).reshape(*b.shape[:-1], 32)
    rows = row(index(b[..., 2:34].astype(np.int64)) | high(three) << 8) % 2048
    whole = within(grids(grid("iq1").astype(np.float64))[rows]).reshape(*b.shape[:-1], 8, 32)
    eighth = np.where(sign(qh >> 15), -0.125, 0.125)
    return made(
        half(b, 0), 2 * s(qh >> 12 & 7) + 1, (whole + eighth[..., None]).reshape(*b.shape[:-1], 256), 32
    )


def iq1_m(b, row=same, index=same, sign=same, high=same, s=same, within=same, grids=same):
    qh = (
        np.stack([b[..., 32:48] & 15, b[..., 32:48] >> 4], axis=-1)
        .astype(np.int64)
        .reshape(*b.shape[:-1], 32)
    )
    sc = words(b, 48, 4, "<u2")
    d = (sc[..., 0] >> 12 | sc[..., 1] >> 8 & 0xF0 | sc[..., 2] >> 4 & 0xF00 | sc[..., 3] & 0xF000).astype(
        np.uint16
    )
    rows = row(index(b[..., :32].astype(np.int64)) | high(qh & 7) << 8) % 2048
    whole = within(grids(grid("iq1").astype(np.float64))[rows])
    eighth = np.where(sign(qh >> 3), -0.125, 0.125)
    sub = (sc[..., None] >> np.array([0, 3, 6, 9]) & 7).reshape(*b.shape[:-1], 16)
    return made(
        d.view(np.float16).astype(np.float64)[..., None],
        2 * s(sub) + 1,
        (whole + eighth[..., None]).reshape(*b.shape[:-1], 256),
        16,
    )


def iq4_nl(b, table=IQ4, order=same, d=same, q=same):
    packed = b[..., 2:18].astype(np.int64)
    codes = q(order(np.concatenate([packed & 15, packed >> 4], axis=-1)))
    return d(half(b, 0)) * table[codes]


def iq4_xs(b, table=IQ4, order=same, s=same, q=same, high=same, zero=32):
    packed = b[..., 8:136].astype(np.int64).reshape(*b.shape[:-1], 8, 16)
    codes = q(order(np.concatenate([packed & 15, packed >> 4], axis=-1))).reshape(*b.shape[:-1], 256)
    low = b[..., 4:8].astype(np.int64)
    low = np.stack([low & 15, low >> 4], axis=-1).reshape(*b.shape[:-1], 8)
    two = words(b, 2, 1, "<u2") >> 2 * np.arange(8) & 3
    return made(half(b, 0), s(low | high(two) << 4) - zero, table[codes], 32)


def mxfp4(b, table=FP4, order=same, e=same, q=same, power=None):
    packed, byte = b[..., 1:17].astype(np.int64), b[..., :1].astype(np.int64)
    codes = q(order(np.concatenate([packed & 15, packed >> 4], axis=-1)))
    return (np.ldexp(1.0, e(byte) - 128) if power is None else power(byte)) * table[codes]


def ue4m3(byte):
    bits_, fraction = byte >> 3 & 15, byte & 7
    return np.where(
        byte == 127, 0, np.where(bits_, np.ldexp(1 + fraction / 8, bits_ - 8), np.ldexp(fraction / 8, -7))
    )


def nvfp4(b, table=FP4, order=same, e=same, q=same, power=ue4m3):
    packed = b[..., 4:36].astype(np.int64).reshape(*b.shape[:-1], 4, 8)
    codes = q(order(np.concatenate([packed & 15, packed >> 4], axis=-1))).reshape(*b.shape[:-1], 64)
    return made(np.ones((*b.shape[:-1], 1)), power(e(b[..., :4].astype(np.int64))), table[codes], 16)


by_bytes = lambda step: lambda v: np.roll(v, step, axis=-1)
pairs = lambda v: v.reshape(*v.shape[:-1], -1, 2)[..., ::-1].reshape(v.shape)
mistyped = lambda values: (
    lambda t: np.where(np.isin(np.arange(t.size).reshape(t.shape), list(values)), t + 2, t)
)


def interleaved(v):
    return v.reshape(*v.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(v.shape)


SEVEN = {
    "no signs": ("sign-bits", {"sign": lambda v: v * 0}),
    "bits of signs in reverse": ("sign-bits", {"sign": turned}),
    "signs of the neighbour": ("sign-bits", {"sign": pairs}),
    "signs by the raw index": ("sign-bits", {"signs": np.arange(128)}),
    "odd parity": ("sign-bits", {"signs": np.arange(128) | (1 - PARITY) << 7}),
    "s + 1 for s + 1/2": ("offset-twice", {"s": lambda v: v + 0.5}),
    "scales of the neighbour": ("sub-scale-order", {"s": pairs}),
    "scales without their highest bit": ("sub-scale-unpack", {"s": lambda v: v & 7}),
    "rows of the neighbour": ("grid-index", {"row": pairs}),
    "bytes of a row in reverse": ("grid-index", {"within": lambda v: v[..., ::-1]}),
    "another row": ("grid-index", {"index": lambda v: v + 1}),
    "even levels": (
        "code-book",
        {
            "grids": lambda t: np.choose(
                np.searchsorted(np.unique(t), t), np.unique(t)[0] * (1 + 2 * np.arange(len(np.unique(t))))
            )
        },
    ),
}
EIGHT = {name: case for name, case in SEVEN.items() if "signs" not in case[1] and name != "even levels"} | {
    "halves of sign bytes exchanged": ("sign-bits", {"sign": nibbled}),
    "high bits dropped": ("high-bits", {"high": lambda v: v * 0}),
    "high bits of the neighbour": ("high-bits", {"high": pairs}),
}
ONE = {
    "the shift has the other sign": ("sign-bits", {"sign": lambda v: 1 - v}),
    "the shift is always added": ("sign-bits", {"sign": lambda v: v * 0}),
    "the shift of the next group": ("sign-bits", {"sign": by_bytes(-1)}),
    "high bits dropped": ("high-bits", {"high": lambda v: v * 0}),
    "high bits of the neighbour": ("high-bits", {"high": pairs}),
    "high bits in reverse": ("high-bits", {"high": lambda v: (v & 1) << 2 | v & 2 | v >> 2}),
    "scales of the neighbour": ("sub-scale-order", {"s": pairs}),
    "scales without their highest bit": ("sub-scale-unpack", {"s": lambda v: v & 3}),
    "s for 2 s + 1": ("offset-missing", {"s": lambda v: v - 0.5}),
    "rows of the neighbour": ("grid-index", {"row": pairs}),
    "bytes of a row in reverse": ("grid-index", {"within": lambda v: v[..., ::-1]}),
    "another row": ("grid-index", {"index": lambda v: v - 1}),
}
LEVELS = {
    "the table off by one": ("code-book", {"table": "next"}),
    "one entry mistyped": ("code-book", {"table": "one"}),
    "two entries exchanged": ("code-book", {"table": "two"}),
    "evenly spaced": ("code-book", {"table": "even"}),
    "no signs": ("code-book", {"table": "abs"}),
    "interleaved": ("nibble-order", {"order": interleaved}),
    "halves exchanged": ("nibbles-exchanged", {"order": lambda v: np.roll(v, v.shape[-1] // 2, axis=-1)}),
}  # fmt: skip
EXPONENTS = {
    "one too high": ("exponent-bias", {"e": "more"}),
    "one too low": ("exponent-bias", {"e": "less"}),
    "one too high where it is odd": ("exponent-bias", {"e": "odd"}),
    "as an integer": ("exponent-bias", {"power": lambda v: v * 1.0}),
}  # fmt: skip
CASES = {
    "iq2_xxs": SEVEN, "iq2_xs": SEVEN, "iq3_xxs": SEVEN,
    "iq2_s": EIGHT | {"the grid of iq2_xs": ("code-book", {"book": "iq2_xs"})},
    "iq3_s": EIGHT | {"150 entries mistyped": ("code-book", {"grids": mistyped(range(300, 450))})},
    "iq1_s": ONE, "iq1_m": ONE,
    "iq4_nl": LEVELS | {
        "bfloat16 d": ("scale-misread", {"d": "bf16"}), "d without sign": ("scale-misread", {"d": np.abs}),
        "the table of mxfp4": ("code-book", {"table": FP4}),
        "codes less 8": ("code-book", {"table": np.arange(16) - 8.0}),
        "twice": ("scaled", {"d": lambda v: 2 * v}),
    },
    "iq4_xs": LEVELS | {
        "high bits of scales dropped": ("sub-scale-unpack", {"high": lambda v: v * 0}),
        "scales of the neighbour": ("sub-scale-order", {"s": pairs}),
        "no 32": ("offset-missing", {"zero": 0}),
        "high bits of the neighbour": ("sub-scale-unpack", {"high": pairs}),
        "codes less 8": ("code-book", {"table": np.arange(16) - 8.0}),
    },
    "mxfp4": LEVELS | EXPONENTS | {"the table of iq4_nl": ("code-book", {"table": IQ4})},
    "nvfp4": LEVELS | EXPONENTS | {
        "without its fraction": ("exponent-bias", {"power": lambda v: np.ldexp(1.0, (v >> 3 & 15) - 8)}),
    },
}  # fmt: skip
TABLES = {
    "next": lambda t: np.roll(t, -1), "one": lambda t: np.where(np.arange(16) == 11, t + 3, t),
    "two": lambda t: t[[0, 1, 2, 4, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]],
    "even": lambda t: np.linspace(-127, 113, 16) if t[0] else np.r_[np.arange(8), -np.arange(8)] * 12 / 7,
    "abs": np.abs,
}  # fmt: skip
STEPS = {"more": lambda v: v + 1, "less": lambda v: v - 1, "odd": lambda v: v + v % 2}


def decoded(name, raw, planted=None):
    """Rows of values [N, K] of raw blocks [N, bytes], with one of CASES planted."""
    how = dict(CASES[name][planted][1]) if planted else {}
    if isinstance(how.get("table"), str):
        how["table"] = TABLES[how["table"]](IQ4 if name.startswith("iq4") else FP4)
    power = how.pop("e", None)
    if isinstance(power, str) and name == "nvfp4":
        factor = {"more": lambda v: 2.0, "less": lambda v: 0.5, "odd": lambda v: 1.0 + v % 2}[power]
        how["power"] = lambda v: ue4m3(v) * factor(v)
    elif power is not None:
        how["e"] = STEPS[power]
    if how.get("d") == "bf16" if isinstance(how.get("d"), str) else False:
        how["d"] = lambda v: (
            (v.astype(np.float16).view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        )
    size = {"iq2_xxs": 66, "iq2_xs": 74, "iq2_s": 82, "iq3_xxs": 98, "iq3_s": 110, "iq1_s": 50, "iq1_m": 56,
            "iq4_nl": 18, "iq4_xs": 136, "mxfp4": 17, "nvfp4": 36}[name]  # fmt: skip
    blocks = raw.reshape(len(raw), -1, size)
    return globals()[name](blocks, **how).reshape(len(raw), -1)
