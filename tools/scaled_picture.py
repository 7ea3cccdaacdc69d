#!/usr/bin/env python3
"""Draw docs/scaled.svg: scaled products beside DeepGEMM and cuBLASLt, and each rung of the ladder.

python tools/scaled_picture.py      # needs matplotlib, extra `plot`

Times are those of bench/results/scaled_peers_turns_h200.json and, for shapes that it has not, of the run
before it; those of the rungs stand in docs/scaled.md, which is read.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "scaled.md", ROOT / "docs" / "scaled.svg"
RESULTS = [ROOT / "bench" / "results" / f"scaled_peers{more}_h200.json" for more in ("", "_turns")]
OURS, PEERS = "#4878a8", {"deep_gemm": ("DeepGEMM", "#c05020"), "cuBLASLt": ("cuBLASLt", "#6a9a50")}


def figures() -> dict[tuple[str, str], dict[str, float]]:
    """Microseconds by kind of codes and shape, then by whose they are; a later run counts."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for path in RESULTS:
        run: dict[tuple[str, str], dict[str, float]] = {}
        for line in json.loads(path.read_text())["figures"]:
            run.setdefault((line["case"], line["shape"]), {})[line["of"]] = line["us"]
        found |= {key: of for key, of in run.items() if len(of) > 1}
    return found


def rungs() -> list[tuple[str, float, float]]:
    """Name, int8 and FP8 at the largest shape, from the page's table; 0 where there is none."""
    lines = re.findall(r"^\| `cuda:([^|]+)` \|([^|]+)\|[^|]+\|([^|]+)\|", PAGE.read_text(), re.MULTILINE)
    made = [(name.replace("`, `cuda:", ", "), *map(_number, both)) for name, *both in lines]
    return [(name, a, b) for name, a, b in made if a or b]


def _number(text: str) -> float:
    digits = text.strip(" *–")
    return float(digits) if digits else 0.0


def draw() -> None:
    """The ladder on the left, ratios to peers on the right."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 6.4), layout="constrained", width_ratios=(2, 3))
    _ladder(left)
    _ratios(right)
    figure.savefig(PICTURE, metadata={"Date": None})


def _ladder(axes: Any) -> None:
    made = rungs()
    for shift, (what, color) in enumerate((("int8", "#88a8c8"), ("FP8", OURS))):
        values = [line[1 + shift] for line in made]
        places = [i + 0.4 * shift - 0.2 for i in range(len(made))]
        axes.barh(places, values, 0.38, color=color, label=what)
        for place, value in zip(places, values, strict=True):
            if value:
                axes.text(value + 15, place, f"{value:.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(made)), [name for name, *_ in made], fontsize=8)
    axes.set(title="4096 × 7168 × 16384", xlabel="TOPS, TFLOP/s", xlim=(0, 1950))
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="lower right")


def _ratios(axes: Any) -> None:
    lines = [(f"{case} {shape.replace('x', ' × ')}", of) for (case, shape), of in figures().items()]
    for name, (label, color) in PEERS.items():
        at = [(i, of[name] / of["ggmlq"]) for i, (_, of) in enumerate(lines) if name in of]
        axes.plot([ratio for _, ratio in at], [i for i, _ in at], "o", color=color, label=f"beside {label}")
    axes.axvline(1, color="#555", lw=0.8)
    axes.set_yticks(range(len(lines)), [name for name, _ in lines], fontsize=7)
    axes.set(title="times as fast", xscale="log", xlim=(0.85, 4))
    axes.set_xticks([0.9, 1, 1.2, 1.5, 2, 3], ["0.9", "1", "1.2", "1.5", "2", "3"])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.grid(axis="x", lw=0.3)
    axes.legend(fontsize=8, loc="lower right")


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    sys.exit(draw())
