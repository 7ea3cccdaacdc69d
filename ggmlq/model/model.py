"""``load`` and ``Model``: logits, tokens one after the other, and every intermediate as an array."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from importlib import import_module
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..arrays.array import QuantArray
from ..base.devices import namespace
from ..base.progress import Progress
from ..base.text import short
from ..dispatch.checks import is_whole
from ..errors import ShapeError, UnsupportedError
from ..gguf.imatrix import TOKENS
from .arithmetic import Host, Kernels, arithmetic_of
from .arithmetic.kernels import Array, Keys, Seen
from .batch import BATCH, Best, Piece, beside, checked, is_batch, portions, several_of, tokens_of
from .caches import Cache, Home, Part
from .config import Config
from .families import Family, family_of
from .importance import Hear, chunks_of, collect, together
from .programs import Programs
from .sampling import Sampling, Stops, finite, walking
from .serving import Answer, Batch
from .step import Step, value
from .tokenizer import Tokenizer
from .weights import Weights

USES = 256  # of experts, one at a time, in a recorded step


def load(
    file: str | os.PathLike[str] | gguf.GGUFFile, device: str = "cpu", arithmetic: str | None = None,
    cache: tuple[str, str] | str = ("f16", "f16"), *, context: int | None = None, lean: bool = False,
    invariant: bool = False,
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
    invariant : bool
        The logits of a sequence have the same bits alone, beside others, token by token or as one prompt.
        With None as arithmetic.

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
    model = Model(opened, arithmetic, (types[0], types[1]), context, device, lean, invariant)
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
    invariant : bool
        The logits of a sequence depend on no other sequence, and on no way of cutting it.
    best : function or None
        ``best(logits)`` of rows on a GPU: the best tokens there, and a function that waits for them alone.
    """

    def __init__(
        self, file: gguf.GGUFFile, arithmetic: str | None, cache: tuple[str, str], context: int | None,
        device: str = "cpu", lean: bool = False, invariant: bool = False,
    ) -> None:  # fmt: skip
        self.file, self._metadata, self._device, self._named = file, file.metadata, device, arithmetic
        self._arithmetic: Kernels = arithmetic_of(arithmetic, device, invariant)
        self._lean, self.invariant = lean, invariant
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
        options = self._named, self.types, self.config.context, self._device, self._lean, self.invariant
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
            y, start = beside(tokens, self.together(pieces, parts, last=False)), 0
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
        top_p: float = ..., seed: int | None = ..., stop: Stops = ..., draft: Any = ...,
    ) -> Answer[int]: ...  # fmt: skip
    @overload
    def generate(
        self, tokens: Sequence[Sequence[int]], n: int, temperature: float = ..., *, top_k: int = ...,
        top_p: float = ..., seed: int | None = ..., stop: Stops = ..., draft: Any = ...,
    ) -> Answer[NDArray[np.int64]]: ...  # fmt: skip
    def generate(
        self, tokens: Any, n: int, temperature: float = 0.0, *, top_k: int = 0, top_p: float = 1.0,
        seed: int | None = None, stop: Stops = (), draft: Any = None,
    ) -> Answer[Any]:  # fmt: skip
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
        draft : "lookup" or Model, optional
            Some tokens are guessed and looked at all at once, from what stood in the text before, or by a
            smaller model of the same vocabulary; those that this model would not have said are dropped. With
            ``invariant=True`` the tokens are those without drafts, sooner. ``.drafted`` and ``.accepted`` of
            the iterator count the guesses, and the right ones.
        """
        sequences, several = self._sequences("generate", tokens), is_batch(tokens)
        sampling, batch, rng = (
            Sampling(temperature, top_k, top_p),
            self.batch(draft=draft),
            np.random.default_rng(seed),
        )
        rngs = rng.spawn(len(sequences)) if several else [rng]
        ids = [
            batch.join("generate", one, n, sampling, each, stop)
            for one, each in zip(sequences, rngs, strict=True)
        ]
        return Answer(batch, ids, several)

    def batch(self, *, cache: Cache | None = None, draft: Any = None) -> Batch:
        """Sequences that join and leave at any time, and go through the layers together.

        Parameters
        ----------
        cache : Cache, optional
            ``m.cache(positions, batch)``: so many sequences of so many positions at most, and no more memory
            is taken; what it holds is forgotten. None: memory grows with the sequences.
        draft : "lookup" or Model, optional
            As of ``generate``.

        >>> import ggmlq as gq, tempfile, pathlib
        >>> from ggmlq.testing.models import tiny_model
        >>> m = gq.model.load(tiny_model(pathlib.Path(tempfile.mkdtemp()) / "tiny.gguf"))
        >>> b = m.batch()
        >>> one, two = b.add([1, 5, 6]), b.add([1, 7], stop=m.tokenizer.ends)
        >>> sorted(b.step())
        [0, 1]
        >>> b.drop(one)
        >>> b.add([1, 8], 1), len(b), sorted(b.step()), len(b), len(b.tokens(two))
        (2, 2, [1, 2], 1, 4)
        """
        if cache is not None:
            self._parts("model.batch", cache)
        return Batch(self, cache, draft)

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
        part = self._parts("nodes", self.cache(len(numbers)) if cache is None else cache)[0]
        part.reserve(len(numbers))
        nodes: list[tuple[str, Array]] = []
        rows, tell = [(part, len(numbers))], lambda name, x: nodes.append((name, beside(tokens, x)))
        step = Step(self.config, self._weights, self._arithmetic, rows, tell, flash, choices)
        return self._listed(step, numbers, nodes)

    def _listed(
        self, step: Step, numbers: NDArray[np.int64], nodes: list[tuple[str, Array]]
    ) -> Iterator[tuple[str, Array]]:
        for x in self._walk(step, numbers, last=False):
            yield from nodes
            nodes.clear()
            del x

    def listen(self, sequences: Sequence[Sequence[int]], hear: Hear, head: bool = True) -> None:
        """Run sequences, and call ``hear(name, x, q, ids)`` with the rows that each product reads.

        ``name``: the tensor ``q`` that they are multiplied with; ``ids``: the experts of each token, None
        where there are none. ``head``: the last product reads all rows, and not the last ones alone.
        """
        a: Any = copy(self._arithmetic)
        linear, expert_linear = a.linear, a.expert_linear

        def one(x: Array, q: QuantArray, bias: Array | None = None) -> Array:
            hear(self._weights.name_of(q), x, q, None)
            return linear(x, q, bias)

        def of_experts(x: Array, q: QuantArray, ids: Array) -> Array:
            hear(self._weights.name_of(q), x, q, ids)
            return expert_linear(x, q, ids)

        a.joins, a.linear, a.expert_linear = False, one, of_experts  # each product by itself
        numbers = self._sequences("listen", sequences)
        parts = [self.cache(len(one)).parts[0] for one in numbers]
        for pieces in portions(numbers, BATCH):
            rows = [(parts[piece.sequence], len(piece.tokens)) for piece in pieces]
            for part, count in rows:
                part.reserve(count)
            step = Step(self.config, self._weights, a, rows)
            for _ in self._walk(step, tokens_of(pieces), not head):
                pass

    def importance(
        self, texts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]], *,
        chunk_size: int = TOKENS, chunks: int | None = None, output: bool = False, bar: bool | None = None,
    ) -> gguf.Collector:  # fmt: skip
        """The mean squares of what each product reads: a mapping from tensor to float32 [K] or [experts, K].

        Sums and counts are llama-imatrix's on the same tokens; ``gq.convert.quantize`` takes them as they
        are. Ctrl-C ends it with what whole chunks gave, and sets ``.interrupted``.

        Parameters
        ----------
        texts : str, or sequence of str, of int, or of sequences of int
            Texts, or their tokens. Each is cut into chunks, which begin as every text does and run by
            themselves; what is left over at its end is not used, but a shorter text is a chunk.
        chunk_size : int
            Tokens of a chunk.
        chunks : int, optional
            At most so many.
        output : bool
            The head counts too: ``output.weight``, or the embedding where it is the head.
        bar : bool, optional
            True for a bar, False for none; else one on a terminal if it takes long.
        """
        cut = chunks_of(lambda: self.tokenizer, texts, min(chunk_size, self.config.context), chunks)
        collector = gguf.Collector(chunk_size)
        collect(self.listen, cut, together(chunk_size, self._on_gpu), collector, output, bar)
        return collector

    def layers(self, tokens: Sequence[int], behind: tuple[int, Array] | None = None) -> Iterator[Array]:
        """Yield the rows behind the embedding, those behind each layer, and the logits.

        They are NumPy's, on a GPU too, unless tokens are CuPy's. ``behind``: the number of a layer and the
        rows that go into it, with which it begins.
        """
        numbers = checked("layers", tokens, self.vocabulary, self.config.context)
        if behind is not None:
            self._check_behind(behind, (len(numbers), self.config.width))
        part = self.cache(len(numbers)).parts[0]
        part.reserve(len(numbers))
        step = Step(self.config, self._weights, self._arithmetic, [(part, len(numbers))])
        for x in self._walk(step, numbers, False, behind):
            yield beside(tokens, value(x))

    def _check_behind(self, behind: tuple[int, Array], shape: tuple[int, int]) -> None:
        """Refuse a layer that is none to begin with, and rows that do not go into it."""
        layer, rows = behind[0], getattr(behind[1], "shape", None)
        if not is_whole(layer, 0, self.config.layers) or rows != shape:
            raise ShapeError(
                f"layers(tokens, behind=({short(layer)}, rows {short(rows)})): it takes a layer from 0 to "
                f"{self.config.layers} and rows of {shape}; pass what goes into that layer"
            )
        if (first := self.config.beginning(layer)) != layer:
            raise UnsupportedError(
                f"layers(tokens, behind=({layer}, …)): later layers read keys of layer {first}; begin "
                "with the rows that go into that one"
            )

    def replaced(self, tensors: Mapping[str, QuantArray]) -> Model:
        """The model with other weights in the place of some; what is prepared of the rest is shared."""
        other = copy(self)
        other._weights, other._programs = self._weights.replaced(tensors), None
        other._home = Home() if self._on_gpu else None
        return other

    def like(
        self, arithmetic: str | None, cache: tuple[str, str] | None = None, context: int | None = None
    ) -> Model:
        """A model of this file in another arithmetic, with other types of keys and values, or context."""
        fastest, context = arithmetic is None, context or self.config.context
        device, invariant = self._device if fastest else "cpu", fastest and self.invariant
        return Model(self.file, arithmetic, cache or self.types, context, device, self._lean, invariant)

    # --- steps ------------------------------------------------------------------------------

    def cache(self, positions: int, batch: int = 1) -> Cache:
        """An empty cache of so many positions, for a sequence or for ``batch`` of them.

        On a GPU it lives in memory that a dropped one has left, if that fits, with the steps that were
        recorded there.
        """
        device = self._arithmetic.device
        return Cache(self.config, max(positions, 1), self.types, device, batch, self._home)

    def run(self, tokens: Sequence[int], cache: Cache, last: bool = False) -> Array:
        """Logits of tokens behind those of a cache, which grows by them; ``last``: of the last one alone.

        They stay on the device of the model. Steps that come again are CUDA graphs there (replay.py).
        """
        numbers = checked("run", tokens, self.vocabulary, self.config.context)
        return self.together([Piece(0, numbers)], self._parts("run", cache), last or len(numbers) == 1)

    def prompt(self, tokens: Any, cache: Cache) -> Array:
        """Logits behind the last of some tokens, which go into a cache in portions."""
        sequences = self._sequences("prompt", tokens)
        parts = self._parts("prompt", cache, len(sequences))
        for pieces in portions(sequences, BATCH):
            logits = self.together(pieces, parts, last=True)
        return finite(logits[-1])

    def _parts(self, call: str, cache: Cache, count: int = 1) -> list[Part]:
        """The sequences of a cache, ``count`` or more; one of another shape is written beyond its end."""
        if not isinstance(cache, Cache) or not cache.fits(self.config, self._arithmetic.device):
            which = "that of another model" if isinstance(cache, Cache) else short(cache)
            raise UnsupportedError(
                f"{call}: cache={which}; it is one of this model's, with its layers and heads; pass "
                "m.cache(positions, batch), and types of keys and values to gq.model.load"
            )
        if len(cache.parts) < count:
            raise ShapeError(
                f"{call}: {count} sequences, and a cache of {len(cache.parts)}; each has its own; pass "
                f"m.cache(positions, {count})"
            )
        return cache.parts

    def together(self, pieces: list[Piece], parts: Sequence[Part], last: bool) -> Array:
        """Logits of pieces of sequences, or of the last token of each, one after the other."""
        for piece in pieces:
            parts[piece.sequence].reserve(len(piece.tokens))
        if self._on_gpu and self._prepared and self._fits_graphs(pieces):
            replay, some = import_module("ggmlq.model.replay"), [(parts[i], tokens) for i, tokens in pieces]
            logits = replay.replayed(self._arithmetic, some, self._rows_and_logits, last)
            if logits is not None:
                return logits
        rows = [(parts[piece.sequence], len(piece.tokens)) for piece in pieces]
        if self._programs is not None:
            logits = self._programs(rows, tokens_of(pieces), last)
            if logits is not None:
                return finite(logits)
        step = Step(self.config, self._weights, self._arithmetic, rows)
        for x in self._walk(step, tokens_of(pieces), last):
            logits = x
        return logits if self._on_gpu else finite(logits)

    def _fits_graphs(self, pieces: list[Piece]) -> bool:
        """False for layers with a state, and for many uses of experts, one at a time: they fill a graph."""
        uses = self.config.used_experts * sum(len(piece.tokens) for piece in pieces)
        return not self.config.state and (not self.invariant or uses <= USES)

    def _step_of(self, rows: Sequence[tuple[Part, int]], tokens: Array, last: bool) -> Iterator[Array]:
        """What the layers give for tokens, so many of each sequence, and the logits."""
        self._prepared = False  # for what is repeated all experts are prepared
        return self._walk(Step(self.config, self._weights, self._arithmetic, rows), tokens, last)

    def _rows_and_logits(self, a: Kernels, rows: Any, tokens: Array) -> Iterator[Array]:
        return self._walk(Step(self.config, self._weights, a, [(rows, len(tokens))]), tokens, True)

    def _walk(
        self, step: Step, tokens: NDArray[np.int64], last: bool, behind: tuple[int, Array] | None = None
    ) -> Iterator[Array]:
        """Yield the rows behind the embedding and each layer, then the logits; or from a layer's rows on."""
        first, x = 0, self._family.embed(step, step.embed(tokens))
        if behind is None:
            yield x
        else:
            first, x = behind[0], self._arithmetic.real(behind[1])
        bar = None if self._prepared else Progress(self.config.layers, "preparing", "layer")
        ahead = self._plans_ahead() if bar is not None and self._on_gpu else None
        for layer in range(first, self.config.layers):
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
        step.counted()
        with walking("the last norm"):
            x = step.logits(x, last)
        if ahead is not None:
            ahead.add([self._weights.head], few=True)
            ahead.end()
        if bar is not None and self._weights.layouts is not None:
            self._weights.layouts.keep()
        yield x

    def _plans_ahead(self) -> Any:
        """The thread that makes plans of products for steps of all sizes."""
        ahead = import_module("ggmlq.model.ahead").Ahead(self._arithmetic.device, self.invariant)
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
