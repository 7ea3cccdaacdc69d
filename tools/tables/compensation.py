"""The table of bench/notes/ladder.md: the first experiment's error figures beside our own.

The experiment multiplied M=512 rows of activations with N=K=4096 weights and gave one NMSE against
the product of the floats. It names neither its data nor its encoder; the columns here do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import ggmlq as gq
from ggmlq.reference import activations, linear, multiply, rule, weights

from . import Options, Texts, table

OPTIONS = {"--rows": {"type": int, "default": 512, "help": "rows of activations (default: 512)"}}
SIZE = 4096
MMVQ = rule("q4_0", "ggml-mmvq")
CODE_SUMS = replace(MMVQ, sums="codes")  # s = d·Σq, not rounded
FIRST_FIGURES = {
    "W4A16": "4.65e-3",
    "W4A8, −8·s, s = Σx": "4.66e-3",
    "W4A8, no compensation": "> 1e-2",
    "W4A8, 8 off each code and −8·s": "> 1e-2",
    "Q8_0 weights": "1.4e-5",
}


def texts(options: Options) -> Texts:
    """The experiment's figures in the first column."""
    runs = [("uniform", "amax/7"), ("uniform", "ggml's"), ("normal", "amax/7"), ("normal", "ggml's")]
    errors = [figures(data, encoder, options.rows) for data, encoder in runs]
    rows = []
    for name in errors[0]:
        cells = [f"{run[name]:.2e}".replace("e-0", "e-").replace("e+00", "") for run in errors]
        rows.append([name, FIRST_FIGURES.get(name, ""), *cells])
    header = ["", "first experiment", *(f"{data}, {encoder}" for data, encoder in runs)]
    yield "bench/notes/ladder.md", table(header, rows)


def figures(data: str, encoder: str, m: int) -> dict[str, float]:
    """NMSE of each way to multiply, against the product of the floats."""
    rng = np.random.default_rng(1)
    shapes = ((SIZE, SIZE), (m, SIZE))
    if data == "uniform":
        w, x = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    else:
        w, x = (rng.standard_normal(shape, np.float32) for shape in shapes)
    true = x.astype(np.float64) @ w.T.astype(np.float64)
    q = symmetric_q4_0(w) if encoder == "amax/7" else gq.quantize(w, "q4_0")
    return {
        "W4A16": gq.nmse(linear(x, q, "f16"), true),
        "W4A8, −8·s, s = Σx": gq.nmse(linear(x, q, MMVQ), true),
        "W4A8, −8·s, s = d·Σq": gq.nmse(linear(x, q, CODE_SUMS), true),
        "W4A8, 8 off each code": gq.nmse(linear(x, q, "ggml-mmq"), true),
        "W4A8, no compensation": gq.nmse(times_offset(x, q, 0), true),
        "W4A8, 8 off each code and −8·s": gq.nmse(times_offset(x, q, 2), true),
        "Q8_0 weights": gq.nmse(linear(x, gq.quantize(w, "q8_0")), true),
    }


def symmetric_q4_0(w: np.ndarray) -> gq.QuantArray:
    """Blocks of q4_0 with d = amax / 7 and codes -7 … 7, as many hand-written encoders make them."""
    runs = w.reshape(len(w), -1, 32)
    d = np.abs(runs).max(axis=-1) / np.float32(7)
    codes = (np.rint(runs / d[..., None]) + 8).astype(np.uint8)
    q = gq.quantize(w, "q4_0").copy()
    q.blocks["d"] = d
    q.blocks["qs"] = codes[..., :16] | codes[..., 16:] << 4
    return q


def times_offset(x: np.ndarray, q: gq.QuantArray, times: int) -> np.ndarray:
    """A product that takes the offset off never (0: codes 0 … 15 as stored) or twice."""
    w = weights(q, MMVQ)
    return multiply(replace(w, offset=times * w.offset), activations(x, q.format, MMVQ), MMVQ)
