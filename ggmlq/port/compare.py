"""``compare``: the places of a model in a module and in a file, each right or with its mistake by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import gguf
from ..base.folding import groups, span
from ..base.terminal import table
from ..errors import GGUFError, ShapeError
from ..model.arithmetic.oracles import Exact
from ..model.batch import checked
from ..model.families import FAMILIES
from ..model.weights import Weights
from .between import Between
from .judge import Judge, Place
from .parts import Order, embedding, norm, parameter, product
from .watched import Call, numbers, paths, watched

TOKENS = 32
MOST_TOKENS = 136  # taken by default to reach beyond a window
WALKED = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3")
EPSILON = "attention.layer_norm_rms_epsilon"


@dataclass(frozen=True)
class Comparison:
    """The places of a model in the order of its graph, and remarks on what was not compared.

    Attributes
    ----------
    places : list of Place
        ``.node .path .nmse .mistake .text .type``; ``mistake`` is ``""`` where the place is right.
    notes : list of str
        What this comparison cannot see, and why.
    """

    places: list[Place]
    notes: list[str] = field(default_factory=list)

    @property
    def mistakes(self) -> list[Place]:
        """The places that are wrong."""
        return [place for place in self.places if place.mistake]

    @property
    def ok(self) -> bool:
        """True where no place is wrong."""
        return not self.mistakes

    @property
    def first(self) -> Place | None:
        """The first place that is wrong."""
        return next(iter(self.mistakes), None)

    def __str__(self) -> str:
        lines, wrong = [], self.mistakes
        if wrong:
            lines += [f"they part first at {wrong[0].node} ({wrong[0].path}): {wrong[0].mistake}", ""]
            kind = lambda place: (place.mistake, place.text if "blk." not in place.text else "")
            rows = [
                [
                    name.removesuffix("."),
                    some[0].mistake,
                    span((one.nmse for one in some), ".1e"),
                    some[0].text,
                ]
                for name, some in groups(wrong, lambda place: f"{_dotted(place.node)}.", kind)
            ]
            lines += [table(["place", "mistake", "NMSE", "explanation"], rows), ""]
        right = [place for place in self.places if not place.mistake]
        lines.append(f"{len(right)} of {len(self.places)} places agree")
        for name in sorted({place.type for place in right} - {""}):
            some = [place.nmse for place in right if place.type == name]
            lines.append(
                f"  {len(some)} of them but for the quantization of {name}, NMSE {span(some, '.1e')}"
            )
        return "\n".join([*lines, *(f"not compared: {note}" for note in self.notes)])


def _dotted(node: str) -> str:
    """``kqv_out-0`` as ``kqv_out.0``, so that layers fold."""
    name, dash, layer = node.rpartition("-")
    return f"{name}.{layer}" if dash and layer.isdecimal() else node


@np.errstate(all="ignore")  # a module may give anything
def compare(
    model: Any, file: str | os.PathLike[str] | gguf.GGUFFile, tokens: Sequence[int] | int | None = None, *,
    names: Mapping[str, str] | None = None, seed: int = 0,
) -> Comparison:  # fmt: skip
    """Hold a module of torch against a GGUF file of the same model.

    The module is called once, on its device, and every part of it is judged in float64 on its own input: by
    the file's tensor, and for what lies between parts by the layers of :mod:`ggmlq.model`. Where they differ
    known mistakes are tried; that which makes the difference vanish is named.

    Parameters
    ----------
    model : torch.nn.Module
        A language model with the names of Hugging Face, or with ``names``.
    file : path or GGUFFile
        The file.
    tokens : sequence of int, or int, optional
        What the module is called with, or so many at random; by default 32, or enough to pass a short window.
    names : mapping, optional
        Paths in the module by stems of tensors, ``{"blk.0.attn_q": "layers.0.wq"}``, beside those of Hugging
        Face.
    seed : int
        Of tokens at random.
    """
    opened = file if isinstance(file, gguf.GGUFFile) else gguf.open(file)
    judge, config, notes, why = Judge(opened), None, list[str](), ""
    architecture = str(opened.metadata.get("general.architecture"))
    weights = Weights(opened, Exact())
    if architecture in WALKED:
        try:
            config = FAMILIES[architecture].read(opened.metadata, architecture, weights.tensors, None)
        except GGUFError as error:
            why = "the metadata do not fit the tensors"
            judge.wrong("metadata", str(opened.path), "metadata", f"{error}".partition("; ")[0])
        if config is not None and config.temperature:
            config, why = None, "queries that grow with positions are not walked"
    ids = _tokens(opened, tokens, max(config.windows) if config else 0, seed)
    places = paths(opened, dict(model.named_modules()), names)
    calls, logits = watched(model, places, ids.tolist())
    epsilon = float(opened.metadata.get(f"{architecture}.{EPSILON}", 1e-6))
    judged: dict[str, Order] = {}

    def part(stem: str) -> Order:
        if stem not in judged:
            judged[stem] = _judged(judge, stem, calls[stem], epsilon)
        return judged[stem]

    judge.walks = config is not None and "token_embd" in calls
    words = calls.pop("token_embd", None)
    if words is not None:
        root = config.width**0.5 if architecture.startswith("gemma") and config else 1.0
        factor = embedding(judge, words, ids, root if config else None)
        if config is not None:
            rows = np.asarray(words.y, np.float64).reshape(len(ids), -1) / factor
            said = [numbers(x) for name, x in model.named_buffers() if name.endswith("inv_freq")]
            between = Between(config, weights, judge, calls, part, said, len(ids))
            between.walk(FAMILIES[architecture], rows, logits)
    if config is None or words is None:
        notes.append(f"RoPE, attention and sums: {why or f'no layers of {architecture} are known here'}")
    elif len(ids) <= max(config.windows):
        notes.append(f"windows of {max(config.windows)} positions, with {len(ids)} tokens: take more")
    bare = dict(model.named_parameters())
    for stem, path in places.items():
        if stem in calls:
            usual = part(stem).usual
            if not usual and config is None and judge.places[0].mistake != "metadata":
                kind = "rope-order" if stem.endswith(("attn_q", "attn_k")) else "value-heads"
                judge.wrong(stem, path, kind, "rows are not in the order that a port should have")
        elif stem != "token_embd":
            value = next((bare[name] for name in (path, f"{path}.weight") if name in bare), None)
            if value is not None and architecture not in WALKED:
                parameter(judge, stem, path, numbers(value))
            else:
                notes.append(f"{stem}: the module calls no part with it")
    return Comparison(judge.places, notes)


def _judged(judge: Judge, stem: str, call: Call, epsilon: float) -> Order:
    name = f"{stem}.weight"
    if name in judge.file and judge.file.info(name).shape[1:] == ():
        return norm(judge, stem, call, epsilon)
    return product(judge, stem, call)


def _tokens(file: gguf.GGUFFile, tokens: Sequence[int] | int | None, window: int, seed: int) -> Any:
    """The numbers of tokens: as they are, or so many at random."""
    count = file.info("token_embd.weight").shape[0]
    if tokens is None:
        tokens = window + 8 if TOKENS <= window + 8 <= MOST_TOKENS else TOKENS
    if isinstance(tokens, int):
        if tokens < 2:
            raise ShapeError(
                f"compare: tokens={tokens}; positions differ from the second token on; take 2 or more"
            )
        return np.random.default_rng(seed).integers(0, count, tokens)
    return checked("compare", tokens, count, len(tokens))
