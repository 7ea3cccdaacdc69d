#!/usr/bin/env python3
"""The pictures of docs/trace.md: the page of a run with a fault in ggml, and its chart of errors.

    python tools/trace_picture.py SOURCE WORK

SOURCE and WORK as for tools/trace_faults.py, which builds ggml with faults in it: here the last block of each
row of q6_K weights is not multiplied. docs/trace.svg is a chart as the page has it, docs/trace.png the page's
upper part as Chromium shows it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from _page import settle
from report_picture import DOCS, photograph
from trace_faults import build

from ggmlq.pages import depth_lines, document, write
from ggmlq.testing.models import Shape, tiny_model
from ggmlq.trace import trace
from ggmlq.trace.page import items, page

FAULT = 1
LAYERS = 12
LESS = {"q": "q4_K", "k": "q4_K", "v": "q6_K", "out": "q4_K", "gate": "q4_K", "up": "q4_K", "down": "q6_K"}
MORE = LESS | {"v": "q4_K", "down": "q4_K"}


def main() -> int:
    """Build, run, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    args = parser.parse_args()
    libs = build(args.source, args.work)
    os.environ["TRACE_FAULT"] = str(FAULT)
    mixed = [LESS if i % 3 == 0 or i >= LAYERS - 2 else MORE for i in range(LAYERS)]
    with tempfile.TemporaryDirectory() as folder:
        shape = Shape(width=512, hidden=1024, layers=LAYERS)
        model = tiny_model(Path(folder) / "model.gguf", mixed, shape)
        asked = trace(model, lib=libs, tokens=24, generate=2, threads=2)
        products = [p.without_arrays() for p in asked]
        write(
            page(products, model.name, f"ggml {asked.version}", asked.notes), str(Path(folder) / "run.html")
        )
        photograph(Path(folder) / "run.html", DOCS / "trace.png")
    drawn = [item for item in items([p for p in products if p.step]) if item.value]
    lines = depth_lines(drawn, "Error against depth: generated tokens", "share of the limit", limit=1.0)
    assert lines is not None
    return settle(DOCS / "trace.svg", document([lines]), False)


if __name__ == "__main__":
    sys.exit(main())
