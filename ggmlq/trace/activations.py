"""``activations`` and ``imatrix``: what the nodes of a run compute, as arrays and as sums of squares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..errors import GGUFError, NodeNameError, ShapeError
from ..gguf.imatrix import TOKENS, Collector
from ..llama.program import DTYPES, Node
from .runs import Run
from .settings import TIMEOUT, names_of, settings
from .tracer import PRODUCTS

Result = NDArray[Any] | QuantArray
NEAR, SHOWN = 8, 24  # names that an error lists: similar ones, or without any the first
LEAST_AXES = 2
LOGITS = "result_output"  # the node; where they are bent by a cap, the last one of the name


@dataclass(frozen=True)
class Activation:
    """The result of one node."""

    name: str
    op: str
    step: int  # 0 for the prompt, then one for each generated token
    array: Result


class Activations(Mapping[str, Result]):
    """The nodes of the prompt by name; where several have one name, the last of them, which goes on.

    Attributes
    ----------
    nodes : list of Activation
        All nodes in the order of the graph, with ``.name .op .step .array``; of generated tokens too.
    steps : list of dict
        By step, name to array.
    tokens, generated : list of int
        The prompt's tokens, and those generated after it.
    logits : array
        Those behind the last token of each step, [steps, vocabulary].
    version : str
        The library's.
    """

    def __init__(self, nodes: list[Activation], end: Mapping[str, Any], version: str, model: str) -> None:
        self.nodes, self.version, self._model = nodes, version, model
        self.tokens, self.generated = list(end["tokens"]), list(end["then"])
        self.logits = np.stack(end["logits"])
        self.steps: list[dict[str, Result]] = [{} for _ in end["logits"]]
        for one in nodes:
            self.steps[one.step][one.name] = one.array

    def __getitem__(self, name: str) -> Result:
        try:
            return self.steps[0][name]
        except KeyError:
            raise NodeNameError(
                f"activations of {self._model}: {name!r} was not read; {_similar(name, self.steps[0])}; "
                "pass its name in nodes="
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.steps[0])

    def __len__(self) -> int:
        return len(self.steps[0])

    def __repr__(self) -> str:
        lines = [f"<{len(self)} nodes of {self._model}, {len(self.tokens)} tokens>"]
        for name, array in list(self.items())[:SHOWN]:
            kind = array.format.name if isinstance(array, QuantArray) else array.dtype.name
            lines.append(f"  {name:20} {kind} {list(array.shape)}")
        return "\n".join([*lines, *(["  …"] if len(self) > SHOWN else [])])


def activations(
    model: str | Path, text: str | Sequence[int] | int | None = None,
    nodes: str | Sequence[str] = "l_out-*", *, lib: str | Path | None = None, generate: int = 0,
    every_token: bool = True, without: str | Sequence[str] = (), cache: str | Sequence[str] | None = None,
    flash: bool | None = None, threads: int = 0, timeout: float = TIMEOUT, seed: int = 0,
) -> Activations:  # fmt: skip
    """Run a text through a model in a libllama of yours, and read the results of nodes.

    Parameters
    ----------
    model : str or Path
        A GGUF file.
    text : str, sequence of int or int, optional
        A text, its tokens, or the number of random tokens (of ``seed``).
    nodes : str or sequence of str
        Patterns for names of nodes: ``"l_out-*"``, ``"Qcur-0,Kcur-0"``. Views to which ggml itself gave a
        name, ``"Kcur-0 (view)"``, are read where their whole name is passed.
    lib : str or Path, optional
        A libllama, a libggml or a build folder; by default ``GGMLQ_LIBGGML``, then llama-cpp-python.
    generate : int
        Tokens to generate after it, one by one, each the likeliest: ``.steps`` has their nodes.
    every_token : bool
        All tokens go through the last layer; otherwise only the last one, as where a text is completed.
    without, cache, flash, threads, timeout
        As for :func:`trace`.

    Returns
    -------
    Activations
        A mapping from name to array in NumPy's order of axes, [tokens, features] of most nodes, in the
        type that the library has: float32, float16, int32; a QuantArray of blocks and of bfloat16.

    >>> hidden = gq.llama.activations("model.gguf", "Hello", nodes="l_out-*")     # doctest: +SKIP
    >>> hidden["l_out-0"].shape                                                   # doctest: +SKIP
    (2, 4096)
    """
    patterns = names_of(nodes)
    if not patterns:
        raise ShapeError(f"activations of {model}: no name of a node; pass one, such as 'l_out-*'")
    prompt = text if isinstance(text, str) else None
    tokens = None if isinstance(text, str) else text
    options = settings(
        model, lib=lib, prompt=prompt, tokens=tokens, generate=generate, select=patterns, without=without,
        cache=cache, flash=flash, threads=threads, timeout=timeout, seed=seed, verify=False,
    )  # fmt: skip
    with Run(options) as run:
        read: list[Activation] = []
        end: dict[str, Any] = {}
        for node in run.nodes(results=True, through=every_token):
            if isinstance(node, Node):
                read.append(Activation(node.name, node.op, node.step, _array(node)))
            else:
                end = node
    for pattern, known in end["unmatched"].items():
        raise NodeNameError(
            f"activations of {options.model}: no node of this run has the name {pattern!r}; "
            f"{_similar(pattern, known)}"
        )
    if not read:
        raise NodeNameError(
            f"activations of {options.model}: all nodes named {', '.join(map(repr, patterns))} are views; "
            "a view that ggml named is read where its whole name is passed"
        )
    return Activations(read, end, run.facts["version"], options.model.name)


def _array(node: Node) -> Result:
    """A copy of a node's result, without ggml's axes of length 1 in front."""
    if node.tensors["y"]["type"] in DTYPES and node.tensors["y"]["type"] != "bf16":
        values: NDArray[Any] = np.array(node.strided("y"))
        return values.reshape(_shape(values.shape))
    blocks = node.blocks("y")
    return QuantArray.from_bytes(np.array(blocks.raw).reshape(-1), blocks.format, _shape(blocks.shape))


def _shape(lengths: tuple[int, ...]) -> tuple[int, ...]:
    while len(lengths) > LEAST_AXES and lengths[0] == 1:
        lengths = lengths[1:]
    return lengths


def _similar(name: str, known: Any) -> str:
    """The end of an error about an unknown name: similar ones, or the first that there are."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(name.replace("*", ""), names, NEAR, 0.5)
    if near:
        return f"did you mean {', '.join(map(repr, near))}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"there are {', '.join(map(repr, names[:SHOWN])) or 'none'}{more}"


def logits_of(
    model: str | Path, sequences: Sequence[Sequence[int]], *, lib: str | Path | None = None,
    threads: int = 0, timeout: float = TIMEOUT,
) -> Iterator[NDArray[np.float32]]:  # fmt: skip
    """Yield the logits behind each token [T, vocabulary] of one sequence after the other, by a libllama.

    Options as for :func:`activations`.
    """
    options = settings(
        model, lib=lib, tokens=1, select=(LOGITS,), threads=threads, timeout=timeout, verify=False
    )
    with Run(options) as run:
        for tokens in sequences:
            for node in run.nodes(tokens=list(tokens), results=True, through=True):
                if isinstance(node, Node) and node.name == LOGITS:
                    logits = np.array(node.strided("y")).reshape(len(tokens), -1)
            yield logits


# --- an importance matrix: the sums of squared activations of the column of each weight ------------
#
# It follows llama-imatrix. A text is cut into chunks of equal length; the rest at the end is not used. Each
# chunk begins with the tokens that begin every text, and runs in a context of its own. Weights of layers
# count; the output tensor counts only with ``output=True``, as its importance makes every other tensor's look
# small.

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
        A quantizer takes it, ``.save(path)`` writes it, ``.merge(other)`` adds more.
    """
    request = f"imatrix of {model}"
    if (text is None) == (tokens is None):
        raise ShapeError(f"{request}: a text or its tokens are run; pass one of them")
    if chunk_size < 2 or (chunks is not None and chunks < 1):
        raise ShapeError(
            f"{request}: chunk_size={chunk_size}, chunks={chunks}; a chunk has 2 tokens or more, and one at "
            "least is run; 512 is usual"
        )
    options = settings(
        model, lib=lib, tokens=1, select=(LAYERS, OUTPUT) if output else (LAYERS,), threads=threads,
        timeout=timeout, verify=False, nodes="products",
    )  # fmt: skip
    with Run(options) as run:
        begin: list[int] = []
        if text is not None:
            tokens, begin = run.tokens_of(text)
        assert tokens is not None
        collector = Collector(chunk_size)
        parts = _cut(request, [int(token) for token in tokens], begin, chunk_size, chunks)
        collector.datasets = [dataset] if dataset else []
        with Progress(len(parts), "running", " chunks", bar) as progress:
            for part in parts:
                for node in run.nodes(tokens=part, through=True):
                    if isinstance(node, Node) and node.op in PRODUCTS:
                        _add(collector, node)
                progress.advance(1)
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
