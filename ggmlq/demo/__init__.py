"""`ggmlq demo` and `ggmlq ladder`: products on the user's machine, judged in float64 and timed.

layers.py    which layers: a random one in several types, written to a file and opened, or those of a model
measure.py   one layer: the product, its verdict, and the time beside NumPy's float32 and llama.cpp
table.py     all of them as a table, as JSON, and what the columns mean; chart.py draws bars beside it
climb.py     the ladder: each rung's verdict and time beside the roofs of the machine
lessons.py   its lines, what each rung gained here and why, and its picture
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
