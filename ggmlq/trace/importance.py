"""An importance matrix from a run of llama.cpp: the sums of squared activations of each weight's column.

It follows llama-imatrix. A text is cut into chunks of equal length; the rest at the end is not used. Each
chunk begins with the tokens that begin every text, and runs in a context of its own. Weights of layers count;
the output tensor counts only with ``output=True``, as its importance makes every other tensor's look small.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.progress import Progress
from ..errors import GGUFError, ShapeError
from ..gguf.imatrix import TOKENS, Collector
from ..llama.captured import Node
from .runs import Run
from .settings import TIMEOUT, settings
from .tracer import PRODUCTS

LAYERS, OUTPUT = "blk.*", "output.weight"


def imatrix(
    model: str | Path, text: str | None = None, *, tokens: Sequence[int] | None = None,
    lib: str | Path | None = None, chunk_size: int = TOKENS, chunks: int | None = None, output: bool = False,
    dataset: str = "", threads: int = 0, timeout: float = TIMEOUT, bar: bool | None = False,
) -> Collector:  # fmt: skip
    """Run a text through a model in a libllama of yours; the sums of squared activations.

    Parameters
    ----------
    model : str or Path
        A GGUF file.
    text : str, optional
        What is run; or ``tokens``.
    tokens : sequence of int, optional
        The same as tokens, as they are.
    lib : str or Path, optional
        A libllama, a libggml or a build folder; by default as for :func:`trace`.
    chunk_size : int
        Tokens of a chunk.
    chunks : int, optional
        At most so many.
    output : bool
        Count the output tensor too.
    dataset : str
        What the text is called in the file.
    threads, timeout, bar
        As for :func:`trace`.

    Returns
    -------
    Collector
        ``.imatrix()`` is what a quantizer takes, ``.save(path)`` writes it, ``.merge(other)`` adds more.
    """
    request = f"imatrix of {model}"
    if (text is None) == (tokens is None):
        raise ShapeError(f"{request}: a text or its tokens are run; pass one of them")
    if chunk_size < 2 or (chunks is not None and chunks < 1):
        raise ShapeError(
            f"{request}: chunk_size={chunk_size}, chunks={chunks}; a chunk has 2 tokens or more, and one at "
            "least is run; 512 is usual"
        )
    select = (LAYERS, OUTPUT) if output else (LAYERS,)
    run = Run(
        settings(
            model,
            lib=lib,
            tokens=1,
            select=select,
            threads=threads,
            timeout=timeout,
            verify=False,
            nodes="products",
        )
    )
    try:
        begin: list[int] = []
        if text is not None:
            tokens, begin = run.tokens_of(text)
        assert tokens is not None
        collector, parts = (
            Collector(chunk_size),
            _cut(request, [int(token) for token in tokens], begin, chunk_size, chunks),
        )
        collector.datasets = [dataset] if dataset else []
        progress = Progress(len(parts), "running", " chunks", bar)
        for part in parts:
            for node in run.nodes(tokens=part, through=True):
                if isinstance(node, Node) and node.op in PRODUCTS:
                    _add(collector, node)
            progress.advance(1)
        progress.close()
    finally:
        run.close()
    return collector


def _cut(request: str, tokens: list[int], begin: list[int], size: int, most: int | None) -> list[list[int]]:
    """Whole chunks, each with the beginning of a text in the place of its first tokens."""
    count = len(tokens) // size
    if not count:
        raise GGUFError(
            f"{request}: the text has {len(tokens)} tokens, a chunk {size}; pass a longer text, or a smaller "
            "chunk_size"
        )
    starts = range(0, count * size, size)[:most]
    return [begin + tokens[at + len(begin) : at + size] for at in starts]


def _add(collector: Collector, node: Node) -> None:
    """Add the activations of one product."""
    x, matrices = node.floats("x"), int(node.tensors["w"]["ne"][2])
    if node.op == "MUL_MAT_ID":
        collector.add(node.weights, x[0], np.array(node.strided("i")[0, 0]), matrices)
    elif matrices == 1:
        collector.add(node.weights, x)
    else:  # a matrix for each head, all of them for each token
        heads: Any = np.arange(x.shape[1]) * matrices // x.shape[1]
        rows = x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3])
        collector.add(node.weights, rows, np.broadcast_to(heads, rows.shape[:2]), matrices)
