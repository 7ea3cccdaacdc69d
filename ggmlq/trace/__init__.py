"""Runs a model in llama.cpp and judges every node of the run: ``gq.llama.trace`` and ``ggmlq trace``.

    settings.py    what is asked, checked; for which nodes the library stops
    session.py     Trace: runs the model and yields records; what is said where the library died
    runs.py        Run: the process of the library, and the nodes that it hands over
    afterwards.py  further runs: without a trace, in the plain layout, one by one, again, bisected
    product.py     Product: the record of one node

The process of the library, which may die:

    child.py       answers requests: load a library, run a model, run llama.cpp's own commands
    libllama.py    libllama by functions of every year; redirects its calls, and finds its file
    tracer.py      the callback that sees every node, and slices of large ones
    lifetimes.py   results that change before their last reader
    memory.py      the file that both processes map: the flight recorder, and the arrays of a product

The judge, in the process of the user:

    judging.py     products of a node: all elements by random sums, then one by one; other experts
    fusion.py      which nodes a kernel may fuse, and how such a group is read
    fused.py       a group of nodes, judged as one
    verdicts.py    from a node to its record, with the name of its fault

Around it:

    report.py      lines and the summary
    saved.py       files of wrong products and nodes, and their replay alone
    page.py        the same as a page
    attached.py    a Python program that runs llama.cpp itself
    logits.py      two builds against each other
    quality.py     models beside their original on a text, here and in a libllama, as a page
    beside.py      a run beside a model of gq.model, in float64 and in llama.cpp's arithmetic
    explained.py   how far apart roundings may take these two
    activations.py nodes as arrays, and an importance matrix of what the weights are multiplied with
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .activations import Activations, activations, imatrix
from .attached import Attached, attach
from .beside import Beside, ModelComparison, compare_with_model
from .logits import Comparison, compare_logits
from .product import Product
from .session import Trace
from .settings import TIMEOUT, settings

__all__ = [
    "Activations", "Attached", "Beside", "Comparison", "ModelComparison", "Product", "Trace", "activations",
    "attach", "compare_logits", "compare_with_model", "imatrix", "trace",
]  # fmt: skip


def trace(
    model: str | Path, *, lib: str | Path | None = None, prompt: str | None = None,
    tokens: int | Sequence[int] | None = None, generate: int = 0, select: str | Sequence[str] = (),
    judge: str = "all", without: str | Sequence[str] = (), cache: str | Sequence[str] | None = None,
    flash: bool | None = None, threads: int = 0, timeout: float = TIMEOUT, seed: int = 0, verify: bool = True,
    bar: bool | None = False, tool: Sequence[str] = (), nodes: str = "all", fused: bool = False,
    bisect: bool = False, repeats: int = 1, captures: bool = False,
) -> Trace:  # fmt: skip
    """Run a model in a libllama of yours and judge every node; iterate over what comes back.

    Parameters
    ----------
    model : str or Path
        A GGUF file.
    lib : str or Path, optional
        A libllama, a libggml or a build folder; by default ``GGMLQ_LIBGGML``, then llama-cpp-python.
    prompt : str, optional
        The text that is run; or ``tokens``.
    tokens : int or sequence of int, optional
        So many random tokens (of ``seed``), or these.
    generate : int
        Tokens to generate after it, one by one, each the likeliest.
    select : str or sequence of str
        Patterns (``blk.0.*``, ``Qcur-*``) for names of weights or nodes; without, all.
    judge : {"all", "sample", "full"}
        All elements by random sums, the suspicious ones one by one; a few; or all one by one, which is slow.
    without : str or sequence of str
        Layouts of weights that are not used: ``"AMX,CPU_REPACK"``. On Linux.
    cache : str or pair of str, optional
        Type of the K and V caches, ``"q8_0"``.
    flash : bool, optional
        Attention as one node, or as two products; by default as the library decides.
    threads : int
        Of the library; 0: all cores, up to 16.
    timeout : float
        Seconds for one node, and for loading.
    verify : bool
        At the end run once without the trace and compare logits.
    nodes : {"all", "products"}
        All operations that have an oracle, or matrix products and attention.
    fused : bool
        Ask only for the last of the nodes that a kernel may fuse, and judge them as one.
    bisect : bool
        Where the logits are others without the trace, name the first group of nodes that differs.
    repeats : int
        Trace the run so many times: a node that differs on the same inputs is wrong.
    captures : bool
        Wrong nodes that are no products keep all that they read, as ``p.captured``: ``saved.py`` writes it.
    tool : sequence of str
        A command of llama.cpp and its words, in place of a prompt: ``["llama-completion", "-p", "Hello"]``.
    bar : bool, optional
        A bar on stderr; None: on a terminal.

    Returns
    -------
    Trace
        Yields a :class:`Product` a node; afterwards ``.notes`` tells about the run.
    """
    run = settings(
        model, lib=lib, prompt=prompt, tokens=tokens, generate=generate, select=select, judge=judge,
        without=without, cache=cache, flash=flash, threads=threads, timeout=timeout, seed=seed, verify=verify,
        tool=tool, nodes=nodes, fused=fused, bisect=bisect, repeats=repeats, captures=captures,
    )  # fmt: skip
    return Trace(run, bar=bar)
