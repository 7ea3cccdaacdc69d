"""The output of `ggmlq demo`: a table with bars of speed, the meaning of its columns, and JSON."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from ..base.terminal import is_terminal
from ..base.text import count, table
from ..base.threads import num_threads
from .measure import Row

# --- bars of block characters ----------------------------------------------------------------

EIGHTHS = " ▏▎▍▌▋▊▉█"
MARK = "│"  # where something else stands on the same scale
LEAST, MOST = 8, 48  # columns: fewer tell nothing, more are no easier to read


def room(beside: int) -> int:
    """The columns left for bars beside a table of ``beside`` columns; 0 in a pipe, or if bars cannot show."""
    if not is_terminal(sys.stdout) or not _can_print(EIGHTHS + MARK):
        return 0
    left = shutil.get_terminal_size().columns - beside - 1  # the last column would wrap in some terminals
    return min(left, MOST) if left >= LEAST else 0


def bar(value: float, most: float, columns: int, mark: float | None = None) -> str:
    """A bar of value on a scale from 0 to most, with a mark on the same scale."""
    eighths = round(8 * columns * value / most)
    cells = list(EIGHTHS[-1] * (eighths // 8) + EIGHTHS[eighths % 8] * (eighths % 8 > 0))
    if mark is not None:
        at = min(columns - 1, math.floor(columns * mark / most))
        cells += [" "] * (at + 1 - len(cells))
        cells[at] = MARK
    return "".join(cells)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


# --- the table -------------------------------------------------------------------------------

COLUMNS = {
    "loss": "lost by the type: Σ(q − w)² / Σw² over its weights",
    "error": "of the kernel: the worst row of weights against the same arithmetic in float64,\n"
    "Σ(y − right)² / (Σ‖x‖²·‖w‖² / K); right is up to {bound}",
    "GFLOP/s": "{clock}",
    "× NumPy": "as fast as x @ w.T in NumPy with weights in float32, on this CPU",
    "llama.cpp": "{theirs}",
}
CLOCK = {
    "cpu": "of x @ q.T on {threads}, the fastest of its runs",
    "cuda": "of x @ q.T on {device}, by its own clock, many in a row",
}
THEIRS = "GFLOP/s of its CPU backend on as many threads, the better of its two layouts"
NO_PEER = "is not installed here: pip install llama-cpp-python puts its CPU backend beside this"


def text(rows: Sequence[Row]) -> str:
    """A table, with bars of speed beside it where a terminal is wide enough."""
    cells = [_cells(row) for row in rows]
    header = [name for name in cells[0] if any(line[name] for line in cells) or name == ""]
    lines = [[line[name] or "-" for name in header] for line in cells]
    columns = room(max(map(len, table(header, lines).splitlines())) + 2)
    if columns:
        rates = [(1 / row.seconds, 1 / row.theirs if row.theirs else None) for row in rows]
        most = max(rate for pair in rates for rate in pair if rate is not None)
        header.append((f"({MARK} llama.cpp)" if "llama.cpp" in header else "")[:columns])
        for line, (ours, theirs) in zip(lines, rates, strict=True):
            line.append(bar(ours, most, columns, theirs))
    return table(header, lines)


def _cells(row: Row) -> dict[str, str]:
    q = row.layer.q
    from_model = row.layer.original is None
    return {
        "tensor": row.layer.name if from_model else "",
        "shape": " x ".join(map(str, q.shape)) if from_model else "",
        "type": q.format.name,
        "bits": f"{q.format.bits_per_weight:.4g}",
        "loss": "" if row.loss is None else f"{row.loss:.1e}",
        "error": f"{row.judgement.worst:.1e}",
        " ": "right" if row.judgement.right else "WRONG",
        "ms": f"{row.seconds * 1e3:.2f}",
        "GFLOP/s": _figure(row.gflop / row.seconds),
        "× NumPy": _figure(row.numpy / row.seconds),
        "llama.cpp": "" if row.theirs is None else _figure(row.gflop / row.theirs),
    }


def _figure(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def legend(rows: Sequence[Row], device: str) -> str:
    """The meaning of the columns that need one."""
    bounds = " or ".join(dict.fromkeys(f"{row.judgement.bound:.0e}" for row in reversed(rows)))
    clock = CLOCK[device.partition(":")[0]].format(threads=count(num_threads(), "thread"), device=device)
    theirs = THEIRS if any(row.theirs is not None for row in rows) else NO_PEER
    words = {
        name: meaning.format(bound=bounds, clock=clock, theirs=theirs) for name, meaning in COLUMNS.items()
    }
    if all(row.loss is None for row in rows):
        del words["loss"]
    width = max(map(len, words))
    return "\n".join(
        f"{name:{width}} " + meaning.replace("\n", "\n" + " " * (width + 1))
        for name, meaning in words.items()
    )


def kernel_lines(rows: Sequence[Row]) -> list[str]:
    """The kernels that were taken and why, a line each."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        reasons.setdefault((row.choice.kernel, row.choice.why), {})[row.layer.q.format.name] = None
    return [
        f"kernel {kernel} for {', '.join(types)}: it is {why}" for (kernel, why), types in reasons.items()
    ]


def facts(rows: Sequence[Row], device: str, library: str | None) -> dict[str, Any]:
    """All figures of the demo as JSON has them."""
    return {
        "device": device,
        "threads": num_threads(),
        "llama_cpp": library,
        "right": all(row.judgement.right for row in rows),
        "layers": [
            {
                "name": row.layer.name,
                "note": row.layer.note,
                "type": row.layer.q.format.name,
                "bits_per_weight": row.layer.q.format.bits_per_weight,
                "shape": list(row.layer.q.shape),
                "tokens": row.tokens,
                "kernel": row.choice.kernel,
                "why": row.choice.why,
                "loss": row.loss,
                "error": row.judgement.worst,
                "bound": row.judgement.bound,
                "right": row.judgement.right,
                "first_seconds": row.first,
                "seconds": row.seconds,
                "gflops": row.gflop / row.seconds,
                "numpy_seconds": row.numpy,
                "times_numpy": row.numpy / row.seconds,
                "llama_cpp_seconds": row.theirs,
            }
            for row in rows
        ],
    }
