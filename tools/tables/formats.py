"""The table of types in docs/formats.md, from their files, and that of speeds in bench/notes/cpu_formats.md.

Speed is measured by: python bench/bench_formats.py --json bench/results/formats.json
"""

from __future__ import annotations

import re
import sys

from ggmlq.formats import FORMATS, BlockFormat, Format

from . import RESULTS, Options, Texts, load, table

TYPES = ("type", "id", "block", "bytes", "bits", "value", "group", "encode")
SPEED = (
    "type", "decode, Gw/s", "ggml", "ratio", "all threads", "encode, Mw/s", "ggml", "ratio", "all threads",
)  # fmt: skip


def texts(options: Options) -> Texts:
    """Both tables, one line a format in each."""
    yield "docs/formats.md types", table(TYPES, map(line, FORMATS.values()))
    run = load(RESULTS / "formats.json")
    rows = [
        [name, *rates(figures, "decode", 1000), *rates(figures, "encode", 1)]
        for name, figures in run["Mw/s"].items()
    ]
    facts = run["ggmlq"]
    note = (
        f"{facts['cpu']['name']}, {run['threads']} threads; ggml {run['libggml']}; Python "
        f"{facts['python']}, NumPy {facts['packages']['numpy']}, Numba {facts['packages']['numba']}; "
        f"ggmlq at {run['commit']}."
    )
    yield "bench/notes/cpu_formats.md speed", f"{table(SPEED, rows)}\n\n{note}"


def line(fmt: Format) -> list[object]:
    """The cells of a format in the table of types."""
    stem = fmt.name.lower() if isinstance(fmt, BlockFormat) else "scalars"
    return [
        f"[{fmt.name}](../ggmlq/formats/{stem}.py)", fmt.id, fmt.block_size, fmt.dtype.itemsize,
        f"{fmt.bits_per_weight:g}", formula(fmt), getattr(fmt, "group", ""),
        "yes" if fmt.can_quantize else "",
    ]  # fmt: skip


def formula(fmt: Format) -> str:
    """The value formula in the first line of the format's file."""
    if not isinstance(fmt, BlockFormat):
        return ""
    match = re.search(r"``value = (.+?)``", sys.modules[fmt.unpack.__module__].__doc__ or "")
    assert match, f"{fmt.name}: the docstring states no formula"
    return f"`{match[1]}`"


def rates(figures: dict[str, float], verb: str, unit: int) -> list[str]:
    """The rates of ggmlq and of ggml, their ratio, and the rate of ggmlq on all threads."""
    values = [figures.get(f"{verb}{peer}") for peer in ("", ", ggml", ", all threads")]
    ours, theirs, shared = (None if value is None else value / unit for value in values)
    ratio = f"{ours / theirs:.1f}" if ours and theirs else ""
    return [digits(ours), digits(theirs), ratio, digits(shared)]


def digits(rate: float | None) -> str:
    """A rate with as many digits as are known of it."""
    if rate is None:
        return ""
    return f"{rate:.2f}" if rate < 10 else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"
