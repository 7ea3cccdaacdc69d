"""A model's tensors by their names: held against those that it needs, and each looked up once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.devices import namespace
from ..base.text import short
from ..errors import GGUFError
from ..gguf import GGUFFile
from .arithmetic.kernels import Kernels
from .config import Config, Facts
from .layouts import Layouts

# --- Frame: the tensors that a model of some sizes has, held against those of a file ---------
# A family says which ones a layer has, with the same parts as its layer is built from. After that no
# product, norm or cache can meet a wrong size: what is missing, has another shape or type, or belongs
# nowhere is refused before anything is allocated.

TOKENS = "tokenizer.ggml.tokens"
SHAPES = (
    "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.key_length_mla", "attention.value_length_mla",
    "attention.q_lora_rank", "attention.kv_lora_rank", "rope.dimension_count", "feed_forward_length",
    "expert_count", "expert_feed_forward_length", "expert_shared_count", "ssm.inner_size", "ssm.state_size",
    "ssm.time_step_rank", "ssm.group_count", "ssm.conv_kernel", "shortconv.l_cache",
)  # fmt: skip
FLOATS = ("f32", "f16", "bf16")
CAUSE = "the file is damaged, a part of a model, or not of the architecture that it says: convert it anew"


class Frame:
    """The tensors of a file, of which families take those of a layer, by name and shape."""

    def __init__(self, config: Config, facts: Facts, tensors: Mapping[str, QuantArray]) -> None:
        self.config, self.facts, self._tensors = config, facts, tensors
        self._taken: set[str] = set()
        self.layer, self._stem, self.tokens = 0, "", 0

    def enter(self, layer: int) -> None:
        """Names are those of a layer from now on."""
        self.layer, self._stem = layer, f"blk.{layer}."

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Names are those of no layer meanwhile."""
        stem, self._stem = self._stem, ""
        yield
        self._stem = stem

    def has(self, name: str) -> bool:
        """True where the file has a tensor."""
        return f"{self._stem}{name}" in self._tensors

    def vectors(self, length: int, *names: str) -> None:
        """Weights of norms, of so many columns each."""
        for name in names:
            self.tensor(f"{name}.weight", length)

    def matrix(self, name: str, *shape: int, bias: bool = True) -> None:
        """The weights of a product, or of one for each expert, and the bias of its rows if there is one."""
        self.tensor(f"{name}.weight", *shape)
        if bias and self.has(f"{name}.bias"):
            self.tensor(f"{name}.bias", *shape[:-1])

    def row(self, name: str, length: int) -> None:
        """The weights of a product with one result, which files have as a vector or as a row."""
        q = self._tensors.get(f"{self._stem}{name}.weight")
        self.tensor(f"{name}.weight", *((1, length) if q is not None and q.ndim == 2 else (length,)))

    def tensor(self, name: str, *shape: int) -> None:
        """A tensor of this shape; its scales may be a tensor of their own."""
        name = f"{self._stem}{name}"
        q = self._tensors.get(name)
        if q is None:
            raise GGUFError(
                f"model.load: there is no tensor {name} among {len(self._tensors)}; "
                f"{self.config.architecture} needs it, of shape {shape}; {CAUSE}"
            )
        if q.shape != shape or 0 in shape:
            raise GGUFError(
                f"model.load: {name} has shape {q.shape}; with {self._sizes()} it has {shape}; {CAUSE}"
            )
        if q.format.block_size == 1 and q.format.name not in FLOATS:
            raise GGUFError(
                f"model.load: {name} is {q.format.name}; weights are {', '.join(FLOATS)} or a block format; "
                f"{CAUSE}"
            )
        stem = name.removesuffix(".weight")
        scales = {f"{name}.scale", f"{stem}.scale"} if q.scale is not None else set()
        self._taken |= {name, f"{stem}.input_scale"} | scales

    def _sizes(self) -> str:
        """The metadata by which tensors have their shapes, as the file has it."""
        there = {key: self.facts.get(key) for key in SHAPES}
        return ", ".join(f"{key} {short(value)}" for key, value in there.items() if value is not None)

    def columns(self, name: str) -> int:
        """The columns of weights, 0 where there are none."""
        q = self._tensors.get(f"{self._stem}{name}.weight")
        return q.shape[-1] if q is not None and q.ndim else 0

    # --- parts ------------------------------------------------------------------------------

    def ends(self) -> None:
        """The embedding, the last norm, and the head, which may be the embedding."""
        width, first = self.config.width, self._tensors.get("token_embd.weight")
        self.tokens = tokens = first.shape[0] if first is not None and first.ndim else 0
        if TOKENS in self.facts.metadata:  # which may be hundreds of thousands: they are not decoded
            texts = self.facts.metadata.length(TOKENS)
            if first is not None and texts != tokens:
                raise GGUFError(
                    f"model.load: {TOKENS} is a list of {texts:,} texts, token_embd.weight has shape "
                    f"{first.shape}; each token has a row; {CAUSE}"
                )
        self.matrix("token_embd", tokens, width, bias=False)
        self.vectors(width, self.config.last_norm)
        if self.has("output.weight"):
            self.matrix("output", tokens, width, bias=False)
        if self.has("output.bias"):
            self.tensor("output.bias", tokens)

    def factors(self) -> None:
        """Factors of the pairs that RoPE rotates, one for all contexts or for long and short ones."""
        with self.outside():
            for name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"):
                if self.has(name):
                    self.tensor(name, self.config.rope.dims // 2)

    def attention(self) -> None:
        """Queries, keys and values by three matrices or by one, and the product behind attention."""
        c, i = self.config, self.layer
        width, width_v = c.widths(i)
        q, k, v = c.heads[i] * width, c.kv_heads[i] * width, c.kv_heads[i] * width_v
        if self.has("attn_qkv.weight") and not self.has("attn_q.weight"):
            self.matrix("attn_qkv", q + k + v, c.width)
        else:
            for role, rows in {"q": q, "k": k, "v": v}.items():
                self.matrix(f"attn_{role}", rows, c.width)
        self.matrix("attn_output", c.width, c.heads[i] * width_v)

    def feed_forward(self, end: str = "", joined: bool = False, hidden: int = 0) -> None:
        """Gate, up and down, with ``end`` at their names; ``joined``: gate and up may be one matrix.

        ``hidden``: rows of gate and up, where it is not the layer's length by the metadata.
        """
        width = self.config.width
        hidden = hidden or self.facts.each("feed_forward_length", 0)[self.layer] * (not end)
        hidden = hidden or self.columns(f"ffn_down{end}")
        if joined and not self.has(f"ffn_gate{end}.weight"):
            self.matrix(f"ffn_up{end}", 2 * hidden, width)
        else:
            self.matrix(f"ffn_gate{end}", hidden, width)
            self.matrix(f"ffn_up{end}", hidden, width)
        self.matrix(f"ffn_down{end}", width, hidden)

    def experts(self, key: str = "expert_feed_forward_length") -> None:
        """The matrix that scores experts, and gate, up and down of each; ``key``: their length by it."""
        count, width = self.config.experts, self.config.width
        if not count:
            raise self.facts.wrong("expert_count", f"layer {self.layer} of this family has experts")
        hidden = self.facts.each(key, 0)[self.layer] or self.columns("ffn_down_exps")
        self.matrix("ffn_gate_inp", count, width)
        if self.has("ffn_gate_up_exps.weight"):
            self.matrix("ffn_gate_up_exps", count, 2 * hidden, width, bias=False)
        else:
            self.matrix("ffn_gate_exps", count, hidden, width)
            self.matrix("ffn_up_exps", count, hidden, width)
        self.matrix("ffn_down_exps", count, width, hidden)

    def finish(self) -> None:
        """Refuse tensors that no part has taken, as llama.cpp does: a run would leave them out."""
        beyond = tuple(f"blk.{i}." for i in range(self.config.layers, self.facts.layers))
        others = self._tensors.keys() - self._taken
        if left := sorted(name for name in others if not name.startswith(beyond)):
            raise GGUFError(
                f"model.load: {len(left)} of {len(self._tensors)} tensors belong to no part of "
                f"{self.config.architecture} with {self.config.layers} layers, the first is "
                f"{short(left[0])}; each has its place; {CAUSE}"
            )


# --- Weights: each tensor looked up once -----------------------------------------------------


Parts = dict[tuple[Any, ...], Any]  # arrays of a layer, by the stems of their names


class Layer(NamedTuple):
    """The arrays of a layer on a GPU, and what layers have in common that are alike."""

    parts: Parts
    kind: list[Any]


class Stack(NamedTuple):
    """Matrices of one type over each other: a product with them has the columns of all."""

    names: list[str]
    q: QuantArray
    bias: Any
    widths: list[int]


class Weights:
    """The tensors of a file, which may be closed since; prepared copies live with these arrays."""

    def __init__(self, file: GGUFFile, arithmetic: Kernels) -> None:
        self.tensors, self._a = {name: file[name] for name in file}, arithmetic
        self.layouts = Layouts(file) if arithmetic.keeps else None
        self._matrices: dict[str, QuantArray] = {}
        self._places: dict[str, tuple[QuantArray, slice]] = {}  # of matrices that are over each other
        self._floats: dict[str, NDArray[Any] | None] = {}
        self._stacks: dict[tuple[str, ...], list[Stack]] = {}
        self._listed: tuple[Any, dict[int, Layer]] = ((), {})

    def __contains__(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def matrix(self, name: str) -> QuantArray:
        """A matrix, or the matrices of experts."""
        if name not in self._matrices:
            tensor = self.tensors[f"{name}.weight"]
            if tensor.ndim == 1:  # one row
                tensor = QuantArray(tensor.format, (1, *tensor.shape), tensor.raw[None])
            if name not in self._places:
                self._matrices[name] = self._lent([name], self._a.placed(tensor))
            elif self.layouts is None:
                stack, rows = self._places[name]
                self._matrices[name] = stack[rows]
            else:
                self._matrices[name] = self.layouts.part(tensor, *self._places[name])
        return self._matrices[name]

    @property
    def head(self) -> QuantArray:
        """The matrix that gives logits, which may be the embedding."""
        return self.matrix("output" if "output" in self else "token_embd")

    def replaced(self, tensors: Mapping[str, QuantArray]) -> Weights:
        """The same with other tensors in the place of some."""
        other, names = copy(self), {name.removesuffix(".weight") for name in tensors}
        other.tensors = {**self.tensors, **tensors}
        other.layouts = None  # what is on the disk is of the file's tensors
        other._stacks = {of: stack for of, stack in self._stacks.items() if names.isdisjoint(of)}
        apart = {name for stacked in self._stacks.keys() - other._stacks.keys() for name in stacked}
        other._places = {name: place for name, place in self._places.items() if name not in apart}
        other._matrices = {name: q for name, q in self._matrices.items() if name not in apart | names}
        return other

    def name_of(self, q: QuantArray) -> str:
        """The tensor that a matrix is, by its name in the file."""
        return next(f"{name}.weight" for name, one in self._matrices.items() if one is q)

    def stacks(self, *names: str) -> list[Stack]:
        """Matrices, or matrices of experts, that multiply the same rows: those of one type are one array.

        On their device they are there once: a matrix alone is then a view of the rows that it has.
        """
        if names not in self._stacks:
            groups: dict[Any, list[str]] = {}
            for name in names:
                tensor = self.tensors[f"{name}.weight"]
                alone = tensor.format.block_size == 1 or tensor.scale is not None
                alone |= tensor.nbytes > self._a.stacked_bytes
                kind = tensor.format.name, tensor.shape[-1], f"{name}.bias" in self.tensors
                groups.setdefault(name if alone else kind, []).append(name)
            self._stacks[names] = [self._stack(group) for group in groups.values()]
        return self._stacks[names]

    def _lent(self, names: list[str], q: QuantArray) -> QuantArray:
        return q if self.layouts is None else self.layouts.lend(names, q)

    def _stack(self, names: list[str]) -> Stack:
        if len(names) == 1:
            q, bias = self.matrix(names[0]), self.optional(f"{names[0]}.bias")
            return Stack(names, q, bias, [q.shape[-2]])
        tensors = [self.tensors[f"{name}.weight"] for name in names]
        biases = [self.optional(f"{name}.bias") for name in names]
        q, widths = self._lent(names, self._a.stacked(tensors)), [tensor.shape[-2] for tensor in tensors]
        if q.ndim == 2:
            ends = np.cumsum(widths).tolist()
            for name, end, width in zip(names, ends, widths, strict=True):
                self._places[name] = q, slice(end - width, end)
                self._matrices.pop(name, None)
        bias = None if biases[0] is None else namespace(biases[0]).concatenate(biases, axis=-1)
        return Stack(names, q, bias, widths)

    def vector(self, name: str) -> NDArray[Any]:
        """A vector of floats that the model has, with .weight or .bias at its end."""
        value = self.optional(name)
        assert value is not None
        return value

    def number(self, name: str) -> float | None:
        """A number that is a tensor, None where the file has none."""
        return float(self.tensors[name].dequantize()[0]) if name in self.tensors else None

    def ones(self, width: int) -> NDArray[Any]:
        """The weights of a norm that has none."""
        if (name := f"ones.{width}") not in self._floats:
            self._floats[name] = self._a.real(np.ones(width, np.float32))
        return self._floats[name]  # type: ignore[return-value]

    def optional(self, name: str) -> NDArray[Any] | None:
        """A vector of floats, or the rows of several, None where the file has none."""
        if name not in self._floats:
            there = name in self.tensors
            self._floats[name] = self._a.real(self.tensors[name].dequantize()) if there else None
        return self._floats[name]

    def read_by(self, layer: int) -> Layer:
        """The arrays of a layer that kernels may read."""
        sizes = len(self._stacks), len(self._matrices), len(self._floats)
        if sizes != self._listed[0]:
            self._listed = sizes, defaultdict(lambda: Layer({}, []))
            for names, stacks in self._stacks.items():
                for i, stack in enumerate(stacks):
                    self._list(names, (i, "q"), stack.q)
                    self._list(names, (i, "bias"), stack.bias)
            for name, part in [*self._matrices.items(), *self._floats.items()]:
                self._list((name,), (), part)
        return self._listed[1][layer]

    def _list(self, names: tuple[str, ...], place: tuple[Any, ...], part: Any) -> None:
        """Note an array of a layer, whose number its names have."""
        block, _, rest = names[0].partition(".")
        number, _, first = rest.partition(".")
        if part is not None and block == "blk":
            stems = first, *(name.split(".", 2)[2] for name in names[1:])
            kind = part.format.name if isinstance(part, QuantArray) else part.dtype.char
            layer = self._listed[1][int(number)]
            layer.parts[(stems, *place)] = part
            layer.kind.append((stems, *place, kind, part.shape))

    def multiplied(self, layer: int) -> Iterator[QuantArray]:
        """The matrices of a layer as products read them."""
        stem = f"blk.{layer}."
        for names, stacks in list(self._stacks.items()):
            if names[0].startswith(stem):
                yield from (stack.q for stack in stacks)
        for name, q in list(self._matrices.items()):
            if name.startswith(stem):
                yield q

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the file."""
        return sum(self.tensors[name].nbytes for name in self.tensors)


def columns(y: Any, widths: list[int], views: bool = False) -> list[Any]:
    """The parts of a product with the matrix of several; ``views``: they lie apart in the product."""
    ends = np.cumsum(widths).tolist()
    parts = [y[..., end - width : end] for end, width in zip(ends, widths, strict=True)]
    return parts if views else [namespace(y).ascontiguousarray(part) for part in parts]
