"""Runs a model in llama.cpp and judges every node of the run: ``gq.llama.trace`` and ``ggmlq trace``.

    settings.py    what is asked, checked
    session.py     Trace: runs the model and yields records
    runs.py        Run: the process of the library, and the nodes that it hands over
    afterwards.py  further runs: without a trace, in the plain layout, one by one
    repeats.py     the same run again: races
    bisection.py   the first group that differs where kernels fuse
    product.py     Product: the record of one node

The process of the library, which may die:

    child.py       answers requests: load a library, run a model
    libllama.py    libllama by functions of every year, its parameters found by their defaults
    asks.py        for which nodes the library stops
    tracer.py      the callback that sees every node
    groups.py      reads nodes that may be computed by one kernel
    samples.py     slices of large nodes
    memory.py      the file that both processes map: the flight recorder, and the arrays of a product
    elf.py         import slots of a loaded library, to redirect its calls
    files.py       where libllama lies
    death.py       what is said where it died

The judge, in the process of the user:

    operands.py    from a captured node to products y = x @ q.T: one, one a head, one an expert
    judging.py     all elements by random sums, then one by one where these point
    nodes.py       any other node, by its oracle
    fusion.py      which nodes a kernel may fuse
    fused.py       a group of nodes, judged as one
    attention.py   rows of a large attention that are worth a judgement
    experts.py     rows of another expert, or of another token
    verdicts.py    from a node to its record, with the name of its fault

Around it:

    report.py      lines, the summary, files for replay
    saved.py       files of wrong nodes, and their replay alone
    page.py        the same as a page
    hook.py        a callback for a program that sets none
    tool.py        llama.cpp's own commands
    attached.py    a Python program that runs llama.cpp itself
    logits.py      two builds against each other
    beside.py      a run beside a model of gq.model
    two_models.py  its tokens in float64 and in llama.cpp's arithmetic, and pairs of nodes
    explained.py   how far apart roundings may take these two
    activations.py nodes as arrays
    importance.py  an importance matrix of what the weights are multiplied with
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .activations import Activations, activations
from .attached import Attached, attach
from .beside import Beside, ModelComparison, compare_with_model
from .importance import imatrix
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
