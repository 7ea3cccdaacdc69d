#!/usr/bin/env python3
"""Write the tables of docs/gru.md, its list of mistakes, and its picture docs/gru.svg.

    python tools/gru_table.py [--check]

--check compares the list of mistakes alone; the rest takes a minute and depends on the last bits of floats.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import voice
from _page import put, settle, table
from _voice import HOP, RATE, batch
from tqdm import tqdm

import ggmlq as gq
from ggmlq.faults.gru import GRU_FAULTS
from ggmlq.gru import SaturationWarning

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "gru.md"
MARK = "<!-- {}: tools/gru_table.py -->"
C, H, N, T = 128, 256, 64, 50
COLOURS = {"float32": "#888", "int8": "#c33", "mixed, h of 12 bits": "#27a"}
WIDE, HIGH, LEFT = 760, 190, 40


def random_gru(rng: np.random.Generator) -> gq.GRU:
    """Weights between -1 / sqrt(H) and 1 / sqrt(H)."""
    reach = 1 / np.sqrt(H)
    shapes = ((3 * H, C), (3 * H, H), 3 * H, 3 * H)
    return gq.GRU(*(rng.uniform(-reach, reach, shape).astype(np.float32) for shape in shapes))


def error(y: Any, want: Any) -> tuple[str, ...]:
    """Mean square, cosine, the largest."""
    far = y.astype(np.float64) - want
    cosine = (y * want).sum() / np.sqrt((y**2).sum() * (want**2).sum())
    return f"{(far**2).mean():.2e}", f"{cosine:.6f}", f"{np.abs(far).max():.4f}"


def accuracy() -> str:
    """Errors against the float GRU, on inputs that calibration has not seen."""
    rng = np.random.default_rng(0)
    g = random_gru(rng)
    seen, x = (rng.uniform(-0.7, 0.8, (T, N, C)).astype(np.float32) for _ in range(2))
    g.observe(seen)
    want = g(x.astype(np.float64))[0]
    ways = [
        (w, o, t) for w in ("int8", "mixed", "int16") for o in ("ema", "minmax") for t in ("direct", "pwl16")
    ]
    rows = [(w, o, t, *error(g.fixed(w, observer=o, tables=t)(x)[0], want)) for w, o, t in tqdm(ways)]
    f = g.fixed("int8")
    for words, name, wrong in (
        ("shifts that cut off", "shifted_array", _floor),
        ("no compensation", "compensation", lambda s, w, a: 0 * w.sum(1)),
    ):
        with patch(f"ggmlq.reference.gru.{name}", wrong):
            y = f.parameters["h"].decode(gq.reference.gru(f, x)["h"])
        rows.append(("int8", "ema", f"direct, **{words}**", *error(y, want)))
    head = ("numbers", "observer", "tables", "mean squared error", "cosine", "largest error")
    said = f"C={C}, H={H}, N={N}, T={T}, weights uniform within ±1/√H, x uniform in -0.7 … 0.8, seed 0."
    return f"{said}\n\n{table(head, rows)}"


def _floor(v: Any, n: Any) -> Any:
    v, n = np.broadcast_arrays(np.asarray(v, np.int64), np.asarray(n, np.int64))
    return np.where(n > 0, v >> np.clip(n, 0, 62), v << np.clip(-n, 0, 62))


def faults() -> str:
    """All mistakes that the doctor names."""
    return table(
        ("id", "what it is", "look at"),
        [(f"`{f.id}`", f.says, f.look) for f in GRU_FAULTS.values() if f.look],
    )


# --- the picture --------------------------------------------------------------------------------


def picture() -> str:
    """One sound: whether somebody speaks, and what the network says of it in floats and in integers."""
    g, heard = voice.network()
    g.observe(batch(voice.HEARD, 16)[0])
    x, want = batch(voice.NEW, 2)
    runs = {name: g if name == "float32" else g.fixed(voice.WAYS[name]) for name in COLOURS}
    upper = [(name, 1 / (1 + np.exp(-heard(run(x)[0])[:, 1]))) for name, run in runs.items()]
    unit = int(np.abs(g(x)[0][:, 1]).std(0).argmax())
    lower = [(name, run(x)[0][:, 1, unit]) for name, run in runs.items()]
    seconds = len(x) * HOP / RATE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {2 * HIGH + 20}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDE}" height="{2 * HIGH + 20}" fill="#fff"/>',
        *_panel(0, "probability that somebody speaks", upper, (0, 1), want[:, 1]),
        *_panel(HIGH, f"unit {unit} of the state", lower, (-1, 1), want[:, 1]),
        f'<text x="{WIDE - 10}" y="{2 * HIGH + 14}" text-anchor="end">{seconds:.1f} s</text>',
    ]
    for i, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{LEFT + 90 * i}" y="{2 * HIGH + 14}" fill="{colour}">{name}</text>')
    parts.append(
        f'<text x="{LEFT + 330}" y="{2 * HIGH + 14}" fill="#b90">shaded: somebody speaks</text></svg>'
    )
    return "\n".join(parts) + "\n"


def _panel(
    top: int, title: str, lines: list[tuple[str, Any]], ends: tuple[float, float], want: Any
) -> list[str]:
    low, high = ends
    across = (WIDE - LEFT - 10) / len(want)
    parts = [f'<text x="{LEFT}" y="{top + 16}">{title}</text>']
    edges = np.flatnonzero(np.diff(np.concatenate([[0], want.astype(int), [0]])))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare the list of mistakes, write nothing")
    args = parser.parse_args()
    fresh = put(PAGE.read_text(), MARK.format("faults"), f"\n{faults()}\n")
    if not args.check:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SaturationWarning)
            fresh = put(fresh, MARK.format("accuracy"), f"\n{accuracy()}\n")
            fresh = put(fresh, MARK.format("voice"), f"\n{table(voice.HEADER, voice.rows())}\n")
            (DOCS / "gru.svg").write_text(picture())
    return settle(PAGE, fresh, args.check)


if __name__ == "__main__":
    sys.exit(main())
