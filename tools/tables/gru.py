"""The table of accuracy in docs/gru.md, and its picture docs/gru.svg.

They take a minute and depend on the last bits of floats.
"""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
from tqdm import tqdm

import ggmlq as gq
from ggmlq.gru import SaturationWarning

from . import Options, Texts, table, voice
from ._sounds import HOP, RATE, batch

C, H, N, T = 128, 256, 64, 50
COLOURS = {"float32": "#888", "int8": "#c33", "mixed, h of 12 bits": "#27a"}
WIDE, HIGH, LEFT = 760, 190, 40


def texts(options: Options) -> Texts:
    """The table and the picture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        yield "docs/gru.md accuracy", accuracy()
        yield "docs/gru.svg", picture()


def random_gru(rng: np.random.Generator) -> gq.GRU:
    """Weights between -1 / sqrt(H) and 1 / sqrt(H)."""
    reach = 1 / np.sqrt(H)
    shapes = ((3 * H, C), (3 * H, H), 3 * H, 3 * H)
    return gq.GRU(*(rng.uniform(-reach, reach, shape).astype(np.float32) for shape in shapes))


def errors(y: Any, truth: Any) -> tuple[str, ...]:
    """The mean square of the error, the cosine, and the largest error."""
    error = y.astype(np.float64) - truth
    cosine = (y * truth).sum() / np.sqrt((y**2).sum() * (truth**2).sum())
    return f"{(error**2).mean():.2e}", f"{cosine:.6f}", f"{np.abs(error).max():.4f}"


def accuracy() -> str:
    """Errors against the float GRU, on inputs that calibration has not seen."""
    rng = np.random.default_rng(0)
    g = random_gru(rng)
    calibration, x = (rng.uniform(-0.7, 0.8, (T, N, C)).astype(np.float32) for _ in range(2))
    g.observe(calibration)
    truth = g(x.astype(np.float64))[0]
    ways = ("ema", "direct"), ("minmax", "direct"), ("minmax", "pwl16")
    cases = list(product(("int8", "mixed", "int16"), ways))
    rows = [(w, o, t, *errors(g.fixed(w, observer=o, tables=t)(x)[0], truth)) for w, (o, t) in tqdm(cases)]
    f = g.fixed("int8", observer="ema")
    for mistake, name, wrong in (
        ("shifts that cut off", "shifted_array", _floor),
        ("no compensation", "compensation", lambda s, w, a: 0 * w.sum(1)),
    ):
        with patch(f"ggmlq.reference.gru.{name}", wrong):
            y = f.parameters["h"].decode(gq.reference.gru(f, x)["h"])
        rows.append(("int8", "ema", f"direct, **{mistake}**", *errors(y, truth)))
    header = ("numbers", "observer", "tables", "mean squared error", "cosine", "largest error")
    data = f"C={C}, H={H}, N={N}, T={T}, weights uniform within ±1/√H, x uniform in -0.7 … 0.8, seed 0."
    return f"{data}\n\n{table(header, rows)}"


def _floor(v: Any, n: Any) -> Any:
    v, n = np.broadcast_arrays(np.asarray(v, np.int64), np.asarray(n, np.int64))
    return np.where(n > 0, v >> np.clip(n, 0, 62), v << np.clip(-n, 0, 62))


# --- the picture --------------------------------------------------------------------------------


def picture() -> str:
    """One sound: the frames in which somebody speaks, and the network's answer in floats and in integers."""
    g, speaks = voice.network()
    g.observe(batch(voice.CALIBRATION, 16)[0])
    x, truth = batch(voice.TEST, 2)
    runs = {name: g if name == "float32" else g.fixed(voice.NUMBERS[name]) for name in COLOURS}
    upper = [(name, 1 / (1 + np.exp(-speaks(run(x)[0])[:, 1]))) for name, run in runs.items()]
    unit = int(np.abs(g(x)[0][:, 1]).std(0).argmax())
    lower = [(name, run(x)[0][:, 1, unit]) for name, run in runs.items()]
    seconds = len(x) * HOP / RATE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {2 * HIGH + 20}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDE}" height="{2 * HIGH + 20}" fill="#fff"/>',
        *_panel(0, "probability that somebody speaks", upper, (0, 1), truth[:, 1]),
        *_panel(HIGH, f"unit {unit} of the state", lower, (-1, 1), truth[:, 1]),
        f'<text x="{WIDE - 10}" y="{2 * HIGH + 14}" text-anchor="end">{seconds:.1f} s</text>',
    ]
    for i, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{LEFT + 90 * i}" y="{2 * HIGH + 14}" fill="{colour}">{name}</text>')
    parts.append(
        f'<text x="{LEFT + 330}" y="{2 * HIGH + 14}" fill="#b90">shaded: somebody speaks</text></svg>'
    )
    return "\n".join(parts) + "\n"


def _panel(top: int, title: str, lines: list[Any], ends: tuple[float, float], truth: Any) -> list[str]:
    """Lines over time, with frames shaded in which somebody speaks."""
    low, high = ends
    across = (WIDE - LEFT - 10) / len(truth)
    parts = [f'<text x="{LEFT}" y="{top + 16}">{title}</text>']
    edges = np.flatnonzero(np.diff(np.concatenate([[0], truth.astype(int), [0]])))
    for a, b in edges.reshape(-1, 2).tolist():
        parts.append(f'<rect x="{LEFT + a * across:.1f}" y="{top + 24}" width="{(b - a) * across:.1f}" '
                     f'height="{HIGH - 34}" fill="#fe9" opacity="0.5"/>')  # fmt: skip
    for value in (low, (low + high) / 2, high):
        y = _height(value, low, high, top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDE - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')  # fmt: skip
    for name, values in lines:
        points = " ".join(
            f"{LEFT + i * across:.1f},{_height(v, low, high, top):.1f}" for i, v in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.3"/>')
    return parts


def _height(value: float, low: float, high: float, top: int) -> float:
    return top + HIGH - 10 - (HIGH - 34) * (float(value) - low) / (high - low)
