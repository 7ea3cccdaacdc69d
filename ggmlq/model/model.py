"""``load`` and ``Model``: logits, tokens one after the other, and every intermediate as an array."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..base.devices import namespace
from ..base.progress import Progress
from ..errors import ShapeError, UnsupportedError
from .arithmetic import Host, Kernels, arithmetic_of
from .arithmetic.kernels import Array, Keys, Seen
from .batch import Best, Piece, beside, checked, continued, is_batch, portions, several_of, tokens_of
from .caches import Cache, Home, Part
from .config import Config
from .families import Family, family_of
from .programs import Programs
from .sampling import Sampling, Stop, Stops, finite, walking
from .step import Step
from .tokenizer import Tokenizer
from .weights import Weights

BATCH = 2048  # tokens that go through the layers together


def load(
    file: str | os.PathLike[str] | gguf.GGUFFile, device: str = "cpu", arithmetic: str | None = None,
    cache: tuple[str, str] | str = ("f16", "f16"), *, context: int | None = None, lean: bool = False,
) -> Model:  # fmt: skip
    """Open a model to run it.

    Parameters
    ----------
    file : path or GGUFFile
        A file of an architecture in ``families``; the parts of a split model are taken together.
    device : str
        ``"cpu"``, or with ``arithmetic=None`` ``"cuda"`` or ``"cuda:1"``. Weights are uploaded packed when
        they are first used, and every intermediate is computed there.
    arithmetic : str, optional
        None: the fastest kernels. ``"exact"``: float64 on decoded weights, slow. ``"ggml-cpu"``: as llama.cpp
        multiplies on x86, with one thread and weights in their plain layout.
    cache : pair of str
        Types of keys and values; one stands for both.
    context : int, optional
        The most positions of a sequence, instead of the file's.
    lean : bool
        On the CPU: keep one copy of a matrix at most. The file's pages are given back once its kernel has
        the matrix in an order of its own, and matrices are not put together.

    >>> import ggmlq as gq, tempfile, pathlib
    >>> from ggmlq.testing.models import tiny_model
    >>> path = tiny_model(pathlib.Path(tempfile.mkdtemp()) / "tiny.gguf")
    >>> m = gq.model.load(path)
    >>> m
    <Model llama 'tiny', 2 layers of 256, 1,024 positions, 0.9 MiB, cpu>
    >>> m.logits(m.tokenizer.encode("ab")).shape
    (6, 288)
    >>> len(list(m.generate([1, 5], 4)))
    4
    >>> [name for name, _ in m.nodes([1, 5])][:6]
    ['embd', 'norm-0', 'attn_norm-0', 'Qcur-0', 'Kcur-0', 'Vcur-0']
    """
    types = (cache, cache) if isinstance(cache, str) else tuple(cache)
    if len(types) != 2:
        raise UnsupportedError(f"model.load: cache={cache!r}; it is a type for keys and one for values")
    opened = file if isinstance(file, gguf.GGUFFile) else gguf.open(file)
    model = Model(opened, arithmetic, (types[0], types[1]), context, device, lean)
    model.cache(1)  # types that caches do not have are refused here
    return model


class Model:
    """A model that is open. It holds no state between calls: each sequence has a cache of its own.

    Attributes
    ----------
    config : Config
        Sizes and settings, from the file's metadata.
    file : GGUFFile
        The file that it was loaded from.
    types : pair of str
        Types of keys and values.
    best : function or None
        ``best(logits)`` of rows on a GPU: the best tokens there, and a function that waits for them alone.
    """

    def __init__(
        self, file: gguf.GGUFFile, arithmetic: str | None, cache: tuple[str, str], context: int | None,
        device: str = "cpu", lean: bool = False,
    ) -> None:  # fmt: skip
        self.file, self._metadata, self._device, self._named = file, file.metadata, device, arithmetic
        self._arithmetic: Kernels = arithmetic_of(arithmetic, device)
        self._lean = lean
        architecture, self.types = file.metadata.get("general.architecture"), cache
        self._family: Family = family_of(architecture)
        self._weights = Weights(file, self._arithmetic)
        tensors = self._weights.tensors
        self.config: Config = self._family.read(file.metadata, str(architecture), tensors, context)
        self._on_gpu = self._arithmetic.device != "cpu"
        self._home = Home() if self._on_gpu else None
        self.best: Best | None = self._arithmetic.best
        self._programs: Programs | None = None
        self._prepared = False  # the first tokens have brought weights into their kernels' order
        if isinstance(self._arithmetic, Host):
            if lean:
                self._arithmetic.keep_one_copy()
            self._programs = Programs(self._arithmetic, self._step_of, lambda: self.vocabulary)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer, made when it is first used."""
        return Tokenizer(self._metadata)

    @property
    def vocabulary(self) -> int:
        """The number of tokens that the embedding has rows for."""
        return self._weights.matrix("token_embd").shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return self._weights.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        """The file and the options: a copy opens it again, and prepares its own weights."""
        options = self._named, self.types, self.config.context, self._device, self._lean
        return type(self), (self.file, *options)

    def __repr__(self) -> str:
        c = self.config
        size = f"{self.nbytes / 2**20:,.1f} MiB"
        return (
            f"<Model {c.architecture} {c.name!r}, {c.layers} layers of {c.width}, {c.context:,} positions, "
            f"{size}, {self._arithmetic.device}>"
        )

    def logits(self, tokens: Sequence[int] | Sequence[Sequence[int]]) -> Any:
        """Logits of the next token behind each of the tokens, [T, vocabulary].

        float32, or float64 with ``arithmetic="exact"``; NaN or infinity is an error. They are NumPy's, on a
        GPU too, unless tokens are CuPy's, which are read back to be checked. Of several sequences, of any
        lengths, they are a list of arrays; of an array [B, T] they are one array.
        """
        sequences = self._sequences("logits", tokens)
        device = self._arithmetic.device  # as such steps are not recorded, they need no memory that lasts
        caches = [Cache(self.config, len(one), self.types, device) for one in sequences]
        parts = [cache.parts[0] for cache in caches]
        rows: list[list[Array]] = [[] for _ in sequences]
        for pieces in portions(sequences, BATCH):
            y, start = beside(tokens, self._together(pieces, parts, last=False)), 0
            if self._on_gpu:  # those of the CPU have been looked at
                finite(y)
            for piece in pieces:
                end = start + len(piece.tokens)
                rows[piece.sequence].append(y[start:end])
                start = end
        each = [some[0] if len(some) == 1 else namespace(some[0]).concatenate(some) for some in rows]
        if not is_batch(tokens):
            return each[0]
        return np.stack(each) if hasattr(tokens, "ndim") else each

    @overload
    def generate(
        self, tokens: Sequence[int], n: int, temperature: float = ..., *, top_k: int = ...,
        top_p: float = ..., seed: int | None = ..., stop: Stops = ...,
    ) -> Iterator[int]: ...  # fmt: skip
    @overload
    def generate(
        self, tokens: Sequence[Sequence[int]], n: int, temperature: float = ..., *, top_k: int = ...,
        top_p: float = ..., seed: int | None = ..., stop: Stops = ...,
    ) -> Iterator[NDArray[np.int64]]: ...  # fmt: skip
    def generate(
        self, tokens: Any, n: int, temperature: float = 0.0, *, top_k: int = 0, top_p: float = 1.0,
        seed: int | None = None, stop: Stops = (),
    ) -> Iterator[Any]:  # fmt: skip
        """Yield up to ``n`` tokens that follow, each as soon as it is there.

        Parameters
        ----------
        tokens : sequence of int, or of sequences
            The beginning; one token or more. Of several sequences, of any lengths, each item is an array of a
            token for each, -1 for those that ended. They go through the layers together.
        n : int
            The most tokens.
        temperature, top_k, top_p, seed
            0 takes the most likely token each time. Above it tokens are drawn, from the ``top_k`` best ones
            (0: all) and of these from the fewest whose shares reach ``top_p``; a seed repeats the draw.
            Several sequences draw independently of each other.
        stop : str, or collection of int or str
            Tokens or texts that end it, such as ``m.tokenizer.ends`` or ``"User:"``; they are yielded too.
        """
        sequences = self._sequences("generate", tokens)
        sampling = Sampling(temperature, top_k, top_p)
        longest = max(map(len, sequences))
        if n < 0 or longest + n > self.config.context:
            raise ShapeError(
                f"generate: {longest} tokens and {n} more; the context has {self.config.context:,} "
                "positions; ask for fewer, or load with a larger context="
            )
        rng, batch = np.random.default_rng(seed), is_batch(tokens)
        rngs = rng.spawn(len(sequences)) if batch else [rng]
        lengths = [len(one) + n for one in sequences]
        if self._on_gpu:  # there a step of all of them has one attention
            caches = [self.cache(max(lengths), len(lengths))]
        else:
            caches = [self.cache(length) for length in lengths]
        pieces, draw = portions(sequences, BATCH), partial(sampling.draw_each, rngs=rngs)
        best = None if temperature else self.best
        steps = continued(self._together, caches, pieces, n, draw, best, Stop(stop, lambda: self.tokenizer))
        return steps if batch else (int(step[0]) for step in steps)

    def nodes(
        self, tokens: Sequence[int], *, cache: Cache | None = None, flash: bool = False,
        choices: Mapping[str, Array] | None = None,
    ) -> Iterator[tuple[str, Array]]:  # fmt: skip
        """Yield the name and the array of every intermediate, layer by layer.

        Names are llama.cpp's, one may come several times (``Qcur-0``: the product, and with RoPE); axes are
        NumPy's, the tokens first, but for scores and weights of attention [H, T, positions]. Arrays are
        NumPy's, on a GPU too, unless tokens are CuPy's.

        Parameters
        ----------
        tokens : sequence of int
            One or more.
        cache : Cache, optional
            Keys and values of the tokens before them, from ``m.cache``, which grows; None: there are none.
        flash : bool
            Attention as one node, ``kqv_out-0``, as the kernel computes it: no scores, no weights.
        choices : mapping from str to array, optional
            Experts to go on with in place of the best ones: ``{"ffn_moe_topk-3": ids}``, ids [T, used]. It is
            read when the layer is computed; the node itself is still the model's own choice.
        """
        numbers = checked("nodes", tokens, self.vocabulary, self.config.context)
        cache = self.cache(len(numbers)) if cache is None else cache
        cache.parts[0].reserve(len(numbers))
        nodes: list[tuple[str, Array]] = []
        rows, tell = [(cache.parts[0], len(numbers))], lambda name, x: nodes.append((name, beside(tokens, x)))
        step = Step(self.config, self._weights, self._arithmetic, rows, tell, flash, choices)
        return self._listed(step, numbers, nodes)

    def _listed(
        self, step: Step, numbers: NDArray[np.int64], nodes: list[tuple[str, Array]]
    ) -> Iterator[tuple[str, Array]]:
        for x in self._walk(step, numbers, last=False):
            yield from nodes
            nodes.clear()
            del x

    def like(
        self, arithmetic: str | None, cache: tuple[str, str] | None = None, context: int | None = None
    ) -> Model:
        """A model of this file in another arithmetic, with other types of keys and values, or context."""
        device = self._device if arithmetic is None else "cpu"
        context = context or self.config.context
        return Model(self.file, arithmetic, cache or self.types, context, device, self._lean)

    # --- steps ------------------------------------------------------------------------------

    def cache(self, positions: int, batch: int = 1) -> Cache:
        """An empty cache of so many positions, for a sequence or for ``batch`` of them.

        On a GPU it lives in memory that a dropped one has left, if that fits, with the steps that were
        recorded there.
        """
        device = self._arithmetic.device
        return Cache(self.config, max(positions, 1), self.types, device, batch, self._home)

    def run(self, tokens: NDArray[np.int64], cache: Cache, last: bool = False) -> Array:
        """Logits of tokens behind those of a cache, which grows by them; ``last``: of the last one alone.

        They stay on the device of the model. Steps that come again are CUDA graphs there (replay.py).
        """
        return self._together([Piece(0, tokens)], cache.parts, last or len(tokens) == 1)

    def prompt(self, tokens: Any, cache: Cache) -> Array:
        """Logits behind the last of some tokens, which go into a cache in portions."""
        for pieces in portions(self._sequences("prompt", tokens), BATCH):
            logits = self._together(pieces, cache.parts, last=True)
        return finite(logits[-1])

    def _together(self, pieces: list[Piece], parts: Sequence[Part], last: bool) -> Array:
        """Logits of pieces of sequences, or of the last token of each, one after the other."""
        for piece in pieces:
            parts[piece.sequence].reserve(len(piece.tokens))
        if last and self._on_gpu and self._prepared:
            replay, some = import_module("ggmlq.model.replay"), [(parts[i], tokens) for i, tokens in pieces]
            if (logits := replay.replayed(self._arithmetic, some, self._rows_and_logits)) is not None:
                return logits
        rows = [(parts[piece.sequence], len(piece.tokens)) for piece in pieces]
        if self._programs is not None and (last or all(count == 1 for _, count in rows)):
            logits = self._programs(rows, tokens_of(pieces))
            if logits is not None:
                return finite(logits)
        step = Step(self.config, self._weights, self._arithmetic, rows)
        for x in self._walk(step, tokens_of(pieces), last):
            logits = x
        return logits if self._on_gpu else finite(logits)

    def _step_of(self, rows: Sequence[tuple[Part, int]], tokens: Array) -> Iterator[Array]:
        """What the layers give for tokens, so many of each sequence, and the logits of the last ones."""
        self._prepared = False  # for what is repeated all experts are prepared
        return self._walk(Step(self.config, self._weights, self._arithmetic, rows), tokens, True)

    def _rows_and_logits(self, a: Kernels, rows: Any, tokens: Array) -> Iterator[Array]:
        return self._walk(Step(self.config, self._weights, a, [(rows, len(tokens))]), tokens, True)

    def _walk(self, step: Step, tokens: NDArray[np.int64], last: bool) -> Iterator[Array]:
        """Yield the rows behind the embedding and each layer, then the logits."""
        x = self._family.embed(step, step.embed(tokens))
        yield x
        bar = None if self._prepared else Progress(self.config.layers, "preparing", "layer")
        ahead = self._plans_ahead() if bar is not None and self._on_gpu else None
        for layer in range(self.config.layers):
            with walking(f"layer {layer}"):
                x = step.a.layer(partial(self._family.layer, step), step, x, layer)
            if bar is not None:
                bar.advance(1)
            if ahead is not None:
                ahead.add(self._weights.multiplied(layer))
            yield x
        if bar is not None:
            bar.close()
            self._prepared = True
        if ahead is not None:
            ahead.end()
        step.counted()
        with walking("the last norm"):
            x = step.logits(x, last)
        if bar is not None and self._weights.layouts is not None:
            self._weights.layouts.keep()
        yield x

    def _plans_ahead(self) -> Any:
        """The thread that makes plans of products for steps of all sizes."""
        ahead = import_module("ggmlq.model.ahead").Ahead(self._arithmetic.device)
        weakref.finalize(self, ahead.stop)
        return ahead

    def _sequences(self, call: str, tokens: Any) -> list[NDArray[np.int64]]:
        several = several_of(call, tokens) if is_batch(tokens) else [tokens]
        return [checked(call, one, self.vocabulary, self.config.context) for one in several]


# --- operands of attention in the layers, as they are before they are stored -----------------


class Attended(NamedTuple):
    """The operands of a layer's attention."""

    q: Array  # [1, H, T, D], rotated by their positions
    k: Array  # [1, HK, S, D], the same
    v: Array  # [1, HK, S, DV]
    options: dict[str, Any]  # of gq.attention


class Listener(Kernels):
    """The fastest arithmetic of the CPU, which hands out what attention is called with."""

    def __init__(self) -> None:
        self._calls: list[Attended] = []

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention, noted before it is computed."""
        options = {
            "causal": True, "scale": seen.scale, "window": seen.window or None, "softcap": seen.cap,
            "sinks": seen.sinks,
        }  # fmt: skip
        keys = (rows.dequantize() for rows in (cache.k, cache.v))
        k, v = (rows.reshape(1, *rows.shape[-3:]) for rows in keys)
        self._calls.append(Attended(q[None], k, v, options))
        return super().attend(q, cache, seen)

    def taken(self) -> list[Attended]:
        """The calls since the last time."""
        calls, self._calls = self._calls, []
        return calls


def attention_operands(model: Model, tokens: Sequence[int]) -> Iterator[Attended]:
    """Yield the operands of each layer's attention with its options, in float32, computed on the CPU.

    They are what :func:`ggmlq.attention` and :func:`ggmlq.cache_error` take.

    >>> import ggmlq as gq, tempfile, pathlib
    >>> from ggmlq.testing.models import tiny_model
    >>> m = gq.model.load(tiny_model(pathlib.Path(tempfile.mkdtemp()) / "tiny.gguf"))
    >>> [(a.q.shape, a.k.shape) for a in gq.model.attention_operands(m, [1, 5])]
    [((1, 4, 2, 64), (1, 2, 2, 64)), ((1, 4, 2, 64), (1, 2, 2, 64))]
    """
    listening, listener = Model(model.file, None, ("f32", "f32"), model.config.context), Listener()
    listening._arithmetic = listener
    for _ in listening.nodes(tokens, flash=True):
        yield from listener.taken()
