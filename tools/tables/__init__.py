"""Parts that several tables share: Markdown, results of benchmarks, llama.cpp's times, charts of matplotlib.

A table is a file of this folder, which tools/table.py runs. Results of benchmarks lie in bench/results.
"""

from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
LLAMA = ROOT / "bench" / "baseline" / "ggml_cuda_h200.json"
PICTURE: dict[str, Any] = {
    "--picture": {"action": "store_true", "help": "draw the picture instead; needs the extra `plot`"}
}
Options = Namespace  # values of the arguments that a table names in its OPTIONS
Texts = Iterator[tuple[str, str | bytes]]  # documents, and what belongs into them


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *lines])


def shares(beside: Iterable[Any]) -> str:
    """A table of the shares of drawn cells (bench/drawn.py) in which ours is ahead of a peer."""
    rows = [[s.name, s.count, f"{s.ahead:.0%}", f"{s.mean:.2f}", f"{s.least:.2f}", s.worst] for s in beside]
    return table(["", "cells", "ahead", "mean", "least", "in"], rows)


@cache
def load(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text())


def llama(name: str, m: int, n: int, k: int) -> float | None:
    """llama.cpp's microseconds on the reference card, where they were measured."""
    return _llama_times().get((name.lower(), m, n, k))


def llama_card() -> str:
    """The card that llama.cpp was measured on, and its driver."""
    return str(load(LLAMA)["device"])


@cache
def _llama_times() -> dict[tuple[str, int, int, int], float]:
    rows = load(LLAMA)["rows"]
    return {(row["type"].lower(), row["M"], row["N"], row["K"]): float(row["us"]) for row in rows}


def chart(columns: int = 1, **settings: Any) -> tuple[Any, Any]:
    """A figure of matplotlib and its axes; drawn again, it is the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ggmlq"
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, layout="constrained", **settings)


def svg(figure: Any) -> str:
    """A figure of matplotlib as the text of an SVG file."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
