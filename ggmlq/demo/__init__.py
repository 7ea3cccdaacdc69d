"""`ggmlq demo` and `ggmlq ladder`: products on the user's machine, judged in float64 and timed.

measure.py   layers, random or a model's: the product, its verdict, the time beside NumPy and llama.cpp
table.py     all of them as a table with bars, as JSON, and what the columns mean
climb.py     the ladder: each rung's verdict and time beside the roofs, what each gained here and why
book.py      a page for each rung; book.json: instructions of inner loops, and figures
exercises/   files with a hole for those who learn, and their judge
"""

from .measure import Layer, Row, measured, model_layers, peer, random_layer
from .table import facts, kernel_lines, legend, text

__all__ = [
    "Layer",
    "Row",
    "facts",
    "kernel_lines",
    "legend",
    "measured",
    "model_layers",
    "peer",
    "random_layer",
    "text",
]
