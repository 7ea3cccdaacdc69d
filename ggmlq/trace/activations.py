"""``activations``: the results of a run's nodes as arrays, by the names that llama.cpp gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..errors import NodeNameError, ShapeError
from ..llama.program import DTYPES, Node
from .runs import Run
from .settings import TIMEOUT, names_of, settings

Result = NDArray[Any] | QuantArray
NEAR, SHOWN = 8, 24  # names that an error lists: similar ones, or without any the first
LEAST_AXES = 2


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
        lines += [f"  {name:20} {_described(self[name])}" for name in list(self)[:SHOWN]]
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
    run = Run(options)
    try:
        read: list[Activation] = []
        end: dict[str, Any] = {}
        for node in run.nodes(results=True, through=every_token):
            if isinstance(node, Node):
                read.append(Activation(node.name, node.op, node.step, _array(node)))
            else:
                end = node
    finally:
        run.close()
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


def _described(array: Result) -> str:
    kind = array.format.name if isinstance(array, QuantArray) else array.dtype.name
    return f"{kind} {list(array.shape)}"


def _similar(name: str, known: Any) -> str:
    """The end of an error about an unknown name: similar ones, or the first that there are."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(name.replace("*", ""), names, NEAR, 0.5)
    if near:
        return f"did you mean {', '.join(map(repr, near))}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"there are {', '.join(map(repr, names[:SHOWN])) or 'none'}{more}"
