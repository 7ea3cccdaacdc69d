"""What lies between the parts of a module: sums, RoPE and attention, activations, caps.

The layers of ``gq.model`` run in float64, and wherever a part begins our input is held against the module's
and gives way to it; the part's output is the module's. So each stretch is judged from the module's own
numbers, and neither quantization nor an earlier mistake reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..model.arithmetic.oracles import Exact
from ..model.config import Config
from ..model.families import Family
from ..model.step import Step, experts
from ..model.weights import Weights
from .attention import CAPPED, Operands, fitted, head_tries, off, rope_tries, score_tries
from .judge import FLOORS, SCALED, Floats, Judge, Try, factor_between, noise_of
from .parts import Order
from .watched import Call


class Exchanged:
    """The weights of a model in which gate and up of experts stand for each other."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weights, name)

    def matrix(self, name: str) -> Any:
        """The other matrix of the two."""
        other = {"gate_exps": "up_exps", "up_exps": "gate_exps"}
        front, _, end = name.rpartition("ffn_")
        return self._weights.matrix(f"{front}ffn_{other.get(end, end)}" if front else name)


class Rows:
    """The positions of a sequence from the first on, of which nothing is kept."""

    repeats = False

    def following(self, count: int) -> NDArray[np.int64]:
        """The next positions."""
        return np.arange(count)

    def last(self, count: int) -> None:
        """All rows are wanted."""


class Between(Step):
    """The layers with the module's parts in place of products and norms."""

    def __init__(
        self, config: Config, weights: Weights, judge: Judge, calls: Mapping[str, Call],
        part: Callable[[str], Order], said: Sequence[Floats], count: int,
    ) -> None:  # fmt: skip
        rows: Any = Rows()
        super().__init__(
            config, weights, Exact(), [(rows, count)], lambda name, _: setattr(self, "node", name)
        )
        self.node, self.judge, self.calls, self.part, self.said = "", judge, calls, part, said
        self.order: dict[str, Order] = {}  # of the rows of the layer's products
        self.plain: dict[str, Floats] = {}  # their results in the file's order
        self.operands: Any = None
        self.terms: tuple[Any, Any] | None = None
        self.normed: set[str] = set()
        self.activation = ""
        self.layer, self.last, self.chooses = 0, np.empty(0), False  # rows behind a norm, experts choose them

    def walk(self, family: Family, rows: Floats, logits: Floats | None) -> None:
        """Judge all that lies between parts, from the rows of words up to the logits."""
        x = family.embed(self, self.tell("embd", rows))
        self.terms = x.copy(), np.zeros_like(x)
        with Progress(self.config.layers, "comparing", "layer") as bar:
            for layer in range(self.config.layers):
                x = family.layer(self, x, layer)
                bar.advance(1)
        self.norm(x, "output_norm")
        call = self.calls.get("output")
        if call is None or logits is None:
            return
        self.part("output")
        theirs, cap = np.asarray(logits, np.float64), self.config.logit_cap
        y = np.asarray(call.y, np.float64).reshape(theirs.shape)

        def bent(cap: float) -> Floats:
            return np.asarray(self.a.capped(y, cap) if cap else y)

        def tries() -> Iterator[Try]:
            for other in (0.0, fitted(lambda cap: off(bent(cap), theirs), cap or 30.0)):
                yield "soft-cap", CAPPED.format("logits", cap, other), bent(other)

        floor = FLOORS.get(call.dtype, 1e-9)
        self.judge("result_output", call, theirs, bent(cap), tries, floor=floor)

    def tell(self, name: str, x: Any, layer: int | None = None) -> Any:
        """Tell a node, and hand it on, or the module's scores of experts in its place."""
        return super().tell(name, self._scored(name, x, layer), layer)

    def _scored(self, name: str, x: Any, layer: int | None = None) -> Any:
        """A node, or the module's scores of experts: a choice between near ones is not what is judged."""
        call = self.calls.get(f"blk.{layer}.ffn_gate_inp") if name == "ffn_moe_logits" else None
        return x if call is None or call.y.size != x.size else np.asarray(call.y, np.float64).reshape(x.shape)

    def product(self, x: Any, name: str, layer: int | None, node: str | None = None) -> Any:
        """The module's product, behind its own input."""
        stem = name if layer is None else f"blk.{layer}.{name}"
        y = self._passed(stem, x)
        if y is None:
            y = super().product(x, name, layer, node)
        elif node:
            self.tell(node, y, layer)
        self.plain[name] = y
        return y

    def norm(self, x: Any, name: str, layer: int | None = None, plain: bool = False) -> Any:
        """The module's norm, behind its own input."""
        y = self._passed(name if layer is None else f"blk.{layer}.{name}", x)
        self.terms = None
        self.normed.add(name)
        y = super().norm(x, name, layer, plain) if y is None else y
        self.last = y
        self.chooses = name == "ffn_norm" and f"blk.{layer}.ffn_gate_inp.weight" in self.judge.file
        return y

    def feed_forward(self, x: Any, layer: int, activation: str, kind: str = "") -> Any:
        """The module's feed-forward part, judged behind the activation."""
        self.activation = activation
        return super().feed_forward(x, layer, activation, kind)

    def plus(self, y: Any, x: Any, node: str, layer: int) -> Any:
        """The sum of rows, whose terms may be what is wrong."""
        self.terms, self.layer = (y, x.copy()), layer
        return super().plus(y, x, node, layer)

    def rope_attention(self, q: Any, k: Any, v: Any, layer: int, factors: Any = None,
                         sinks: Any = None, scaled: str | None = None, gate: Any = None,
                         nodes: tuple[str, str] = ("Qcur", "Kcur"),
                         node: str = "attn_out") -> Any:  # fmt: skip
        """Attention of heads that are rotated by their positions, and the module's product behind it."""
        c = self.config
        seen = c.scale, c.windows[layer], c.score_cap
        o = self.operands = Operands(q, k, v, self._how(layer), factors, *seen, sinks)
        factor = math.prod(self.order[name].factor for name in SCALED if name in self.order)
        call = self.calls.get(f"blk.{layer}.attn_output")
        if factor != 1 and call is not None:
            # The rest of a scale that the file has in its queries; quantized ones tell the factor roughly.
            y, scale = np.asarray(call.x, np.float64).reshape(len(q), -1), o.scale / factor
            exact = fitted(lambda scale: off(o(scale=scale), y), scale)
            self.operands = replace(o, scale=exact if abs(exact / scale - 1) < 0.02 else scale)
        y = self.operands()
        if gate is None:
            return self.product(self.tell("kqv_out", y, layer), "attn_output", layer, "attn_out")
        self.operands = None  # what else they might give has no gate
        y = self.tell("attn_gated", y * self.a.sigmoid(gate), layer)
        return self.product(y, "attn_output", layer, "attn_output")

    def _passed(self, stem: str, x: Any) -> Any:
        """Judge our input of a part, put the module's in its place, and hand the module's output on."""
        call = self.calls.get(stem)
        if call is None:
            return None
        theirs, y = (np.asarray(each, np.float64) for each in (call.x, call.y))
        if theirs.size != x.size:
            self.judge.wrong(
                self.node, call.path, "shape", f"ours has {x.size} numbers, the module's {theirs.size}"
            )
            return None
        if theirs.ndim == 4 and theirs.shape[2] == len(x) != theirs.shape[1]:  # heads first
            theirs, y = theirs.swapaxes(1, 2), y.swapaxes(1, 2)
        theirs = theirs.reshape(x.shape)
        tries = lambda: self._tries(stem.rpartition(".")[2], stem == "blk.0.attn_norm", theirs)
        mixture = [f"blk.{self.layer}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")]
        types = [self.judge.file.info(name).format for name in mixture if name in self.judge.file]
        coarse = max(types, key=noise_of, default=None) if self.chooses and self.terms is not None else None
        self.judge(self.node, call, theirs, x, tries, floor=FLOORS.get(call.dtype, 1e-9), fmt=coarse)
        x[...] = theirs  # what else reads these rows, as the sum behind a norm does, goes on from them too
        order, y = self.part(stem), y.reshape(len(x), -1)
        if self.judge.places[-1].mistake == "shape":
            return None  # ours goes on, whose numbers the next parts can take
        self.order[stem.rpartition(".")[2]] = order
        if order.rows is not None:
            y = y[:, np.argsort(order.rows)]
        return y.reshape(x.shape).copy() if x.ndim == 3 else y.copy()

    def _tries(self, inner: str, first: bool, y: Floats) -> Iterable[Try]:
        if inner == "attn_output":
            yield from self._attention_tries(y)
        elif inner == "ffn_down":
            up = self.plain["ffn_up"]
            gate, up = (self.plain["ffn_gate"], up) if "ffn_gate" in self.plain else np.split(up, 2, axis=-1)
            y = self.a.gated(self.activation, up, gate)
            yield "swapped", "the module activates up instead of gate", y
            for kind in {"silu", "gelu"} - {self.activation}:
                words = f"the activation is {self.activation} in the file's model, {kind} in the module"
                yield "activation", words, self.a.gated(kind, gate, up)
            yield "activation", "the module activates by erf's GELU", _erf_gelu(gate) * up
            yield "activation", "the module activates by ReLU", np.maximum(gate, 0) * up
        elif first and self.terms is not None:
            x = self.terms[0]
            factor = factor_between(y, x)
            words = f"the module multiplies the embedding by {factor:.6g} times what the model does"
            yield "embedding-scale", words, factor * x
        elif self.terms is not None:
            part, x = self.terms
            yield "residual", "the module does not add the part to the rows", x
            yield "residual", "the module does not add the rows to the part", part
            factor = factor_between(y - x, part)
            yield "scale", f"the module multiplies the part by {factor:.6g}", x + factor * part
            factor = factor_between(y - part, x)
            yield "scale", f"the module multiplies the rows by {factor:.6g}", factor * x + part
            if self.chooses:
                yield from self._expert_tries(x)

    def _expert_tries(self, x: Floats) -> Iterator[Try]:
        """Mistakes of a mixture: how experts are chosen and weighed, and which of their matrices is which."""
        c, last, layer = self.config, self.last, self.layer

        def mixed(weights: Any = self.weights, **other: Any) -> Floats:
            step: Any = SimpleNamespace(
                a=self.a,
                weights=weights,
                config=replace(c, **other),
                tell=self._scored,
                joins=False,
                choices={},
            )
            return np.asarray(x + experts(step, last, layer, "silu"))

        one = ("make up 1", "do not")
        words = "weights of the experts that are chosen {} in the file's model, {} in the module"
        yield (
            "expert-weights",
            words.format(*(one if c.share_of_chosen else one[::-1])),
            mixed(share_of_chosen=not c.share_of_chosen),
        )
        for count in range(1, c.experts + 1):
            words = f"a token takes {c.used_experts} experts in the file, {count} in the module"
            yield "expert-count", words, mixed(used_experts=count)
        words = "experts have shares by {} in the file's model, by {} in the module"
        kinds = ("sigmoid", "softmax") if c.sigmoid else ("softmax", "sigmoid")
        yield "expert-scores", words.format(*kinds), mixed(sigmoid=not c.sigmoid)
        yield "swapped", "the experts activate up instead of gate", mixed(Exchanged(self.weights))

    def _attention_tries(self, y: Floats) -> Iterator[Try]:
        o: Operands | None = self.operands
        if o is None:
            return
        before, module, usual = None, [], True
        if "attn_q_norm" in self.normed:
            before = self.plain["attn_q"].reshape(o.q.shape), self.plain["attn_k"].reshape(o.k.shape)
        for name, x in (("attn_q", o.q), ("attn_k", o.k)):
            order = self.order.get(name, Order())
            usual &= order.usual
            module.append(x if order.rows is None else x.reshape(len(x), -1)[:, order.rows].reshape(x.shape))
        yield from rope_tries(o, self.config, self.said, (*module, usual))
        yield from score_tries(o, self.config, y)
        yield from head_tries(o, before)


def _erf_gelu(x: Floats) -> Floats:
    erf: Any = np.frompyfunc(math.erf, 1, 1)
    y: Floats = 0.5 * x * (1 + erf(x / math.sqrt(2)).astype(np.float64))
    return y
