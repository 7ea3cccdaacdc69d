"""GRUs that several tests share: random ones, a scalar loop in float64, and the worked example."""

from __future__ import annotations

import math

import numpy as np

import ggmlq as gq
from ggmlq.fixed import QFormat, table_of
from ggmlq.gru.cell import TABLE_OF, Cell

PARTS = ("W", "R", "bx", "br")
ODD = {"x": {"bits": 4}, "h": {"bits": 12}, "R": {"bits": 11}, "g_pre": {"bits": 9}, "rRh": {"signed": False}}
UNSIGNED = {
    "x": {"signed": False},
    "h": {"signed": False},
    "z_out": {"signed": True},
    "g_out": {"symmetric": False},
}


def arrays(rng, c, h, scale=1.0, dtype=np.float32):
    """W, R, bx, br."""
    reach = scale / math.sqrt(h)
    return [
        rng.uniform(-reach, reach, shape).astype(dtype) for shape in ((3 * h, c), (3 * h, h), 3 * h, 3 * h)
    ]


def made(rng, c, h, both=False, scale=1.0):
    """A float GRU."""
    if not both:
        return gq.GRU(*arrays(rng, c, h, scale))
    return gq.GRU(*zip(arrays(rng, c, h, scale), arrays(rng, c, h, scale), strict=True))


def inputs(rng, t, n, c):
    """An x [T, N, C] as in the measurements of the document."""
    return rng.uniform(-0.7, 0.8, (t, n, c)).astype(np.float32)


def fixed(rng, t, n, c, h, widths="mixed", both=False, **how):
    """A calibrated FixedGRU, its GRU, and the x it was calibrated on."""
    g, x = made(rng, c, h, both), inputs(rng, t, n, c)
    g.observe(x)
    return g.fixed(widths, **how), g, x


def scalar_gru(W, R, bx, br, x, h0):
    """One number after the other."""
    t, n, c = x.shape
    units = R.shape[1]
    h, out = h0.astype(float).copy(), np.zeros((t, n, units))
    for step in range(t):
        for i in range(n):
            before = h[i].copy()
            for j in range(units):
                a = [
                    sum(W[g * units + j, k] * x[step, i, k] for k in range(c)) + bx[g * units + j]
                    for g in range(3)
                ]
                b = [
                    sum(R[g * units + j, k] * before[k] for k in range(units)) + br[g * units + j]
                    for g in range(3)
                ]
                z, r = (1 / (1 + math.exp(-(a[g] + b[g]))) for g in range(2))
                h[i, j] = z * before[j] + (1 - z) * math.tanh(a[2] + r * b[2])
        out[step] = h
    return out


def worked():
    """The worked example: C = 2, H = 1, all 8 bits, direct tables; and x of two steps."""
    plain = {
        "x": (7, -10), "h": (7, 5), "Wx": (6, 3), "Rh": (6, -4), "z_pre": (5, 2), "r_pre": (5, -1),
        "g_pre": (6, 0),
        "z_out": (8, 0), "r_out": (7, 0), "g_out": (7, 0), "Rh_add_br": (6, 1), "rRh": (7, -2), "old": (7, 0),
        "new": (7, 6),
    }  # fmt: skip
    formats = {name: QFormat(*pair, 8, name not in ("z_out", "r_out")) for name, pair in plain.items()}
    for name, exponents in (("W", (7, 7, 6)), ("R", (7, 6, 7)), ("bx", (8, 8, 8)), ("br", (8, 8, 8))):
        formats[name] = QFormat(np.array(exponents), 0, 8, True)
    codes = {
        "W": np.array([(50, -30), (20, 77), (-64, 33)], np.int8),
        "R": np.array([[40], [-25], [60]], np.int8),
        "bx": np.array([12, -7, 30], np.int8),
        "br": np.array([-20, 5, 9], np.int8),
    }
    for table, (source, target) in TABLE_OF.items():
        function = "tanh" if table == "table_g" else "sigmoid"
        codes[table] = table_of(function, "direct", formats[source], formats[target])
    cell = Cell(formats, codes, dict.fromkeys(plain, (-1.0, 1.0)), dict.fromkeys(formats, 0.0))
    x = formats["x"].decode(np.array([[[100, -50]], [[-128, 127]]]))
    return gq.gru.FixedGRU((cell,), "direct", "half_away", False), x


WORKED = {  # by step
    "x": [[100, -50], [-128, 127]],
    "Wx": [[29, 0, -62], [-36, 35, 97]],
    "Rh": [[-4, -4, -4], [-10, 3, -13]],
    "z_pre": [[14], [-22]], "r_pre": [[-3], [19]],
    "z_out": [[152], [82]], "r_out": [[62], [83]],
    "Rh_add_br": [[3], [-6]], "rRh": [[0], [-11]],
    "g_pre": [[-56], [97]], "g_out": [[-90], [116]],
    "old": [[0], [-12]], "new": [[-31], [85]],
    "h": [[-32], [72]],
}  # fmt: skip
