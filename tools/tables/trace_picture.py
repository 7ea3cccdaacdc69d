"""The pictures of docs/trace.md: the page of a run with a fault in ggml, and its chart of errors.

SOURCE and WORK as for tools/trace_faults.py, which builds ggml with faults in it: here the last block of each
row of q6_K weights is not multiplied. docs/trace.svg is a chart as the page has it, docs/trace.png the page's
upper part as Chromium shows it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from trace_faults import build

from ggmlq.pages import depth_lines, document, write
from ggmlq.testing.models import Shape, tiny_model
from ggmlq.trace import trace
from ggmlq.trace.page import items, page

from . import Options, Texts
from .report import photograph

OPTIONS = {"source": {"type": Path, "metavar": "SOURCE"}, "work": {"type": Path, "metavar": "WORK"}}
FAULT = 1
LAYERS = 12
LESS = {"q": "q4_K", "k": "q4_K", "v": "q6_K", "out": "q4_K", "gate": "q4_K", "up": "q4_K", "down": "q6_K"}
MORE = LESS | {"v": "q4_K", "down": "q4_K"}


def texts(options: Options) -> Texts:
    """The page, then the chart of generated tokens."""
    libs = build(options.source, options.work)
    os.environ["TRACE_FAULT"] = str(FAULT)
    layers = [LESS if i % 3 == 0 or i >= LAYERS - 2 else MORE for i in range(LAYERS)]
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder) / "model.gguf", layers, Shape(width=512, hidden=1024, layers=LAYERS))
        run = trace(model, lib=libs, tokens=24, generate=2, threads=2, nodes="products")
        products = [product.without_arrays() for product in run]
        html = Path(folder) / "run.html"
        write(page(products, model.name, f"ggml {run.version}", run.notes), str(html))
        yield "docs/trace.png", photograph(html)
    generated = [item for item in items([product for product in products if product.step]) if item.value]
    lines = depth_lines(generated, "Error against depth: generated tokens", "share of the limit", limit=1.0)
    assert lines is not None
    yield "docs/trace.svg", document([lines])
