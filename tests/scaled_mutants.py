"""Kernels of scaled products in plain NumPy, right or with one mistake; nothing of the doctor is used."""

from __future__ import annotations

import numpy as np
from mutation import named

import ggmlq as gq

FLOATS = (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2"))
WHOLE = (("int8", "int8"), ("int8_full", "int8"), ("uint8", "uint8"), ("uint8", "int8_full"),
         ("int16", "int8"))  # fmt: skip
ASYMMETRIC = ("int8_full", "uint8", "uint16")
TILES = (
    ((1, 128), (128, 128)), ((1, 64), (4, 64)), ((1, None), (1, None)), ((None, None), (None, None)),
    ((1, 32), (1, 32)), ((2, 64), (8, 128)), ((1, 128), (1, None)), ((1, None), (4, 64)), ((4, 32), (2, 32)),
    ((1, 128), (4, 128)),
)  # fmt: skip
LENGTHS = (256, 320, 448, 512, 640, 777, 1024)


def drawn(rng, kind="any", few=0):
    """Operands of some codes, tiles and shape whose scales differ; ``few`` columns at least."""
    pairs = {"any": FLOATS + WHOLE, "float": FLOATS, "integer": WHOLE}[kind]
    codes, tiles = pairs[rng.integers(len(pairs))], TILES[rng.integers(len(TILES))]
    m, n = int(rng.integers(1, 9)), int(rng.integers(max(few, 4), 17))
    k = int(LENGTHS[rng.integers(len(LENGTHS))])
    scale = "e8m0" if rng.random() < 0.2 else "float32"
    order = "columns" if rng.random() < 0.3 else "rows"
    made = []
    for rows, code, tile in zip((m, n), codes, tiles, strict=True):
        sizes = (
            np.exp(rng.normal(0, 0.7, (rows, 1)))
            * np.exp(rng.normal(0, 0.7, (1, -(-k // 32)))).repeat(32, 1)[:, :k]
        )
        values = (rng.standard_normal((rows, k)) * sizes + 0.3).astype(np.float32)
        zeros = code in ASYMMETRIC and rng.random() < 0.8
        made.append(
            gq.quantize_scaled(values, code, tile, scale=scale, order=order, zeros=zeros, ragged="pad")
        )
    return made


class Operand:
    """Codes as numbers with the indices of their scales."""

    def __init__(self, s):
        self.s, self.code, self.raw = s, s.code.name, np.asarray(s.codes)
        self.m, self.k = s.shape
        self.r, self.c = s.tiling.r, s.tiling.c
        self.q = gq.codes[self.code].decode(self.raw).astype(np.float64)
        grid = gq.codes["e8m0"].decode(s.scales) if s.scale == "e8m0" else s.scales
        self.grid = np.asarray(grid, np.float64)
        self.i, self.g = np.arange(self.m) // self.r, np.arange(self.k) // self.c
        self.scale = self.at(self.i, self.g)
        self.zero = None if s.zeros is None else np.asarray(s.zeros, np.float64)[self.i][:, self.g]
        self.less = self.q if self.zero is None else self.q - self.zero

    def at(self, i, g):
        """Scales [rows, K] by these indices."""
        return self.grid[i][:, g]


def multiplied(a, b, *, q=None, scales=None, order=None):
    """Σ over groups in float32: a fused multiply-add each; ``order`` of the groups."""
    qa, qb = (a.less, b.less) if q is None else q
    sa, sb = (a.scale, b.scale) if scales is None else scales
    group = min(a.c, b.c)
    total = np.zeros((len(qa), len(qb)), np.float32)
    starts = np.arange(0, a.k, group)
    for start in starts if order is None else order(starts):
        part = slice(start, start + group)
        inner = (qa[:, part] @ qb[:, part].T).astype(np.float32)
        scale = np.outer(sa[:, start].astype(np.float32), sb[:, start].astype(np.float32))
        total = (total + inner.astype(np.float64) * scale).astype(np.float32)
    return total


# --- right ----------------------------------------------------------------------------------------


def right(a, b, rng):
    """One of the ways in which right kernels differ."""
    way = int(rng.integers(8))
    if way == 0:
        return gq.scaled_linear(a.s, b.s, kernel="cpu:naive")
    if way == 1:
        return gq.reference.scaled_linear(a.s, b.s)
    if way == 2:
        return multiplied(a, b, order=rng.permutation)
    if way == 3:  # 32 products at a time, the rest in float32
        total = np.zeros((a.m, b.m), np.float32)
        for k in range(0, a.k, 32):
            part = slice(k, k + 32)
            if a.c % 32 or b.c % 32:
                return multiplied(a, b)
            inner = (a.less[:, part] @ b.less[:, part].T).astype(np.float32)
            total += inner * np.outer(a.scale[:, k], b.scale[:, k]).astype(np.float32)
        return total
    if way == 4:  # dequantized first
        return (a.less * a.scale).astype(np.float32) @ (b.less * b.scale).astype(np.float32).T
    if way == 5:
        return multiplied(a, b).astype(np.float16)
    if way == 6:
        return multiplied(a, b).astype(np.float16).astype(np.float32)
    if a.s.code.kind == "float":  # as a tensor core adds, promoted in time
        return gq.reference.scaled_linear(a.s, b.s, "fp22", promote=128).astype(np.float32)
    bits = multiplied(a, b).view(np.uint32)  # to bfloat16, ties to even
    kept = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF0000)
    return kept.view(np.float32)


# --- scales ---------------------------------------------------------------------------------------


def _with_scales(a, b, which, change):
    """The product with other scales of x (1), of w (2) or of both (3); None where one has no others."""
    sides = [change(s) if which >> i & 1 else s.scale for i, s in enumerate((a, b))]
    return None if any(side is None for side in sides) else multiplied(a, b, scales=sides)


def scale_missing(a, b, rng):
    return _with_scales(a, b, rng.integers(1, 4), lambda s: s.scale**0)


def scale_inverse(a, b, rng):
    return _with_scales(a, b, rng.integers(1, 4), lambda s: s.scale**-1)


def scale_once(a, b, rng):
    """Those of the first group for all, of one operand or of both."""
    which, last = rng.integers(1, 4), rng.random() < 0.3
    return _with_scales(a, b, which, lambda s: s.at(s.i, s.g * 0 + (s.grid.shape[1] - 1 if last else 0)))


def scale_neighbour(a, b, rng):
    which, step, around = rng.integers(1, 4), int(rng.choice([-1, 1])), rng.random() < 0.5

    def change(s):
        n = s.grid.shape[1]
        return None if n < 3 else s.at(s.i, (s.g + step) % n if around else np.clip(s.g + step, 0, n - 1))

    return _with_scales(a, b, which, change)


def scale_rows(a, b, rng):
    """Row i under scale i instead of i // r, or of a neighbour."""
    which, how = 1 << rng.integers(2), int(rng.integers(3))

    def change(s):
        n, rows = len(s.grid), np.arange(s.m)
        return None if n < 2 else s.at((np.minimum(rows, n - 1), rows % n, (s.i + 1) % n)[how], s.g)

    return _with_scales(a, b, which, change)


def scale_transposed(a, b, rng):
    which, how = 1 << rng.integers(2), int(rng.integers(3))

    def change(s):
        (n, m), i, g = s.grid.shape, s.i[:, None], s.g[None]
        if min(n, m) < 2:
            return None
        if how == 2:
            return s.grid[np.minimum(g, n - 1), np.minimum(i, m - 1)]
        return s.grid.reshape(-1)[g * n + i] if how == 0 else s.grid.T.reshape(-1)[i * m + g]

    return _with_scales(a, b, which, change)


# --- zero points ----------------------------------------------------------------------------------


def _corrected(a, b, of_a, of_b, both, own_a=False, own_b=False):
    """The identity term by term, each group in float32."""
    group, total = min(a.c, b.c), np.zeros((a.m, b.m), np.float32)
    for start in range(0, a.k, group):
        part = slice(start, start + group)
        qa, qb = a.q[:, part], b.q[:, part]
        za = np.zeros(a.m) if a.zero is None else a.zero[:, start]
        zb = np.zeros(b.m) if b.zero is None else b.zero[:, start]
        sum_a, sum_b = qa.sum(axis=1)[:, None], qb.sum(axis=1)[None]
        inner = qa @ qb.T - of_a * za[:, None] * (sum_a if own_a else sum_b)
        inner = inner - of_b * zb[None] * (sum_b if own_b else sum_a)
        inner = inner + both * qa.shape[1] * np.outer(za, zb)
        total += (inner * np.outer(a.scale[:, start], b.scale[:, start])).astype(np.float32)
    return total


def zero_missing(a, b, rng):
    return _corrected(
        a, b, *((0, 1, 0), (1, 0, 0), (0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0))[rng.integers(6)]
    )


def zero_sign(a, b, rng):
    factors = ((-1, 1, -1), (1, -1, -1), (-1, 1, 1), (1, -1, 1), (-1, -1, 1), (1, 1, -1))
    return _corrected(a, b, *factors[rng.integers(6)])


def zero_other_sum(a, b, rng):
    own = ((True, False), (False, True), (True, True))[rng.integers(3)]
    return _corrected(a, b, 1, 1, 1, *own)


# --- codes ----------------------------------------------------------------------------------------


def _reread(a, b, rng, names):
    which = int(rng.integers(1, 4))
    taken = []
    for i, s in enumerate((a, b)):
        other = names.get(s.code)
        q = s.less
        if which >> i & 1:
            if other is None:
                return None
            q = gq.codes[other].decode(s.raw.view(gq.codes[other].dtype)).astype(np.float64)
            q = q if s.zero is None else q - s.zero
        taken.append(q)
    return multiplied(a, b, q=taken)


def signedness(a, b, rng):
    names = {"int8": "uint8", "int8_full": "uint8", "uint8": "int8_full", "int16": "uint16",
             "uint16": "int16"}  # fmt: skip
    return _reread(a, b, rng, names)


def code_misread(a, b, rng):
    return _reread(a, b, rng, {"e4m3": "e5m2", "e5m2": "e4m3"})


def no_saturation(a, b, rng):
    """Codes of x beyond the range; x comes quantized under a scale that is too small, or as floats."""
    k, m = a.k, int(rng.integers(3, 9))
    x = rng.standard_normal((m, k)).astype(np.float32)
    code = a.s.code
    if code.name in ("uint8", "int16"):
        return None
    largest = float(np.abs(x).max())
    x[: m // 2, int(rng.integers(k))] = largest * np.float32(rng.uniform(1.1, 1.9))
    scale = np.float32(largest / code.max * 1.02)
    made = gq.quantize_scaled(x, code, (None, None), scales=scale, ragged="pad")
    taken = Operand(made)
    if code.kind == "float":
        taken.less = code.decode(code.encode(x / scale, saturate=False)).astype(np.float64)
    else:
        taken.less = np.rint(x / scale).astype(np.int64).astype(np.int8).astype(np.float64)
    if (taken.less == taken.q).all():
        return None
    y = multiplied(taken, b)
    if rng.random() < 0.5:
        return y, made, {}
    return y, x, {"activations": (code, (None, None), scale)}


# --- sums -----------------------------------------------------------------------------------------


def sum_overflow(a, b, rng):
    """Sums that wrap at 16 or 32 bits."""
    bits = 32 if a.code == "int16" else 16
    group, total = min(a.c, b.c), np.zeros((a.m, b.m), np.float32)
    run = group if rng.random() < 0.6 or group % 32 else 32
    for start in range(0, a.k, group):
        inner = np.zeros((a.m, b.m))
        for at in range(start, min(start + group, a.k), run):
            part = slice(at, min(at + run, start + group))
            sums = (a.less[:, part] @ b.less[:, part].T).astype(np.int64)
            inner += sums.astype(np.int16 if bits == 16 else np.int32)
        total += (inner * np.outer(a.scale[:, start], b.scale[:, start])).astype(np.float32)
    return total


def no_promotion(a, b, rng):
    if min(a.c, b.c) < 256:
        return None
    return gq.reference.scaled_linear(a.s, b.s, "fp22").astype(np.float32)


def k_tail_dropped(a, b, rng):
    group = min(a.c, b.c)
    tails = (a.k % 128 or 64, a.k % group or min(group, a.k // 2), 1 + rng.integers(a.k // 4), 32)
    tail = int(rng.choice(tails))
    keep = np.arange(a.k) < a.k - tail
    return multiplied(a, b, q=(a.less * keep, b.less * keep))


# --- places ---------------------------------------------------------------------------------------


def transposed(a, b, rng):
    y = multiplied(a, b)
    return np.ascontiguousarray(y.T).reshape(y.shape)


def rows_permuted(a, b, rng):
    y = multiplied(a, b)
    order = np.arange(b.m)
    order[: b.m // 2 * 2] = order[: b.m // 2 * 2].reshape(-1, 2)[:, ::-1].reshape(-1)
    return y[:, order]


def n_tail(a, b, rng):
    y = multiplied(a, b)
    y[:, b.m - max(1, min(3, (b.m - 1) // 2)) :] = 0
    return y


def m_tail(a, b, rng):
    y = multiplied(a, b)
    y[a.m - max(1, min(3, (a.m - 1) // 2)) :] = 0
    return y


def scaled(a, b, rng):
    return multiplied(a, b) * np.float32(rng.choice([0.5, 2, -1, 1.01]))


INTEGER = ("zero-missing", "zero-sign", "zero-other-sum", "signedness", "sum-overflow")
FLOAT = ("code-misread", "no-promotion")
MUTANTS = {
    f.__name__.replace("_", "-"): f
    for f in (
        scale_missing, scale_inverse, scale_once, scale_neighbour, scale_rows, scale_transposed, zero_missing,
        zero_sign, zero_other_sum, signedness, code_misread, no_saturation, sum_overflow, no_promotion,
        k_tail_dropped, transposed, rows_permuted, n_tail, m_tail, scaled,
    )
}  # fmt: skip


def case(fault, rng):
    """y, x, w and how diagnose is called; drawn again until the mistake shows in y."""
    kind = "integer" if fault in INTEGER else "float" if fault in FLOAT else "any"
    while True:
        x, w = drawn(rng, kind)
        a, b = Operand(x), Operand(w)
        if fault in ("m-tail", "transposed") and a.m < 3:
            continue
        if fault in ("zero-missing", "zero-sign", "zero-other-sum") and a.zero is None and b.zero is None:
            continue
        with np.errstate(all="ignore"):
            found = MUTANTS[fault](a, b, rng)
        if found is None:
            continue
        y, x, more = found if isinstance(found, tuple) else (found, x, {})
        seen = x
        if more:
            code, tile, scales = more["activations"]
            seen = gq.quantize_scaled(x, code, tile, scales=scales, ragged="pad")
        if shows(y, gq.reference.scaled_linear(seen, w), 1e-5 if fault == "no-promotion" else 1e-2):
            return y, x, w, more


def shows(y, exact, share):
    """Whether y is wrong by this share of its typical size, in some elements."""
    with np.errstate(all="ignore"):
        far = ~(np.abs(y - exact) <= share * np.sqrt(np.mean(exact**2)))
    return far.sum() >= min(3, y.size)


def tried(cases):
    """(fault, name) of every case, counted; and the cases that were not named rightly."""
    return named((fault, (fault, seed), *case(fault, np.random.default_rng([seed, len(fault)])))
                 for fault, seed in cases)  # fmt: skip
