"""What lies between the parts of a module: sums, RoPE and attention, activations, caps.

The layers of ``gq.model`` run in float64, and wherever a part begins our input is held against the module's
and gives way to it; the part's output is the module's. So each stretch is judged from the module's own
numbers, and neither quantization nor an earlier mistake reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..model.arithmetic.kernels import Seen, apply_rope, rope_angles, weighed
from ..model.arithmetic.oracles import Exact
from ..model.config import Config, Rope
from ..model.families import Family
from ..model.step import Step
from ..model.weights import Weights
from .parts import Floats, Judge, Order, Try
from .watched import Call

FLOORS = {"float64": 1e-9, "float32": 1e-9, "float16": 1e-4, "bfloat16": 3e-3}
BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 5e6, 1e7)
HINTS = ("rope_theta", "rope_local_base_freq", "query_pre_attn_scalar", "sliding_window",
         "attn_logit_softcapping", "final_logit_softcapping", "factor")  # fmt: skip


def hints(config: Any) -> dict[str, list[float]]:
    """Numbers that a module's own configuration has for what may differ, nested ones too."""
    said: dict[str, list[float]] = {key: [] for key in HINTS}

    def walk(values: Any) -> None:
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if key in said and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                said[key].append(float(value))
            walk(value)

    walk(config.to_dict() if hasattr(config, "to_dict") else config)
    return said


# --- attention -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operands:
    """The operands of a layer's attention, and its settings."""

    q: Floats  # [T, H, D], without RoPE
    k: Floats
    v: Floats
    rope: Rope
    factors: Any
    scale: float
    window: int
    cap: float
    sinks: Any

    def __call__(self, q: Floats | None = None, k: Floats | None = None, **other: Any) -> Floats:
        """The attention of all heads, [T, H · DV], with some operands or settings replaced."""
        o = replace(self, **other)
        q, k = o.q if q is None else q, o.k if k is None else k
        cos, sin = rope_angles(o.rope, np.arange(len(q)), o.factors)
        q, k = (apply_rope(x, o.rope, cos, sin) for x in (q, k))
        group = q.shape[1] // k.shape[1]
        scores = np.einsum("thd,shd->hts", q, np.repeat(k, group, 1))
        if o.cap:
            scores = np.tanh(scores * o.scale / o.cap) * o.cap
        seen = Seen(o.scale, o.window, o.cap, o.sinks)
        weights = weighed(scores if o.cap else scores * o.scale, seen)
        y: Floats = np.einsum("hts,shd->thd", weights, np.repeat(o.v, group, 1)).reshape(len(q), -1)
        return y


def rope_tries(o: Operands, c: Config, said: Mapping[str, list[float]], module: Any) -> Iterator[Try]:
    """Mistakes of the rotation: which pairs, by which angles."""
    q, k, usual = module
    for neox in (True, False):
        pairs = "half a head apart" if neox else "neighbours"
        kind, words = "rope-type", f"the module rotates pairs that are {pairs}, the model does not"
        if not usual:
            kind, words = (
                "rope-order",
                "rows of q or k are not in the order of the pairs that the module rotates",
            )
        yield kind, words, o(q, k, rope=replace(o.rope, neox=neox))
    for base in dict.fromkeys([*said["rope_theta"], *said["rope_local_base_freq"], *BASES]):
        words = f"RoPE's base is {o.rope.base:g} in the file, {base:g} in the module"
        yield "rope-base", words, o(rope=replace(o.rope, base=base))
    plain = replace(o.rope, scale=1.0, mix=0.0, length=1.0)
    yield "rope-scaling", "the module does not stretch positions", o(rope=plain)
    yield "rope-scaling", "the module has no factors of pairs", o(factors=None)
    yield "rope-scaling", "the module does not lengthen rotated pairs", o(rope=replace(o.rope, length=1.0))
    for factor in dict.fromkeys([*said["factor"], 2.0, 4.0, 8.0, 16.0, 32.0]):
        words = f"positions are divided by {1 / o.rope.scale:g} in the file, by {factor:g} in the module"
        yield "rope-scaling", words, o(rope=replace(plain, scale=1 / factor))
    for dims in (c.key_width, c.key_width // 2, c.key_width // 4):
        words = f"RoPE rotates {o.rope.dims} columns of a head in the file, {dims} in the module"
        yield "rope-dims", words, o(rope=replace(o.rope, dims=dims - dims % 2 or 2))
    yield "rope-missing", "the module does not rotate queries and keys", o(rope=replace(plain, scale=0.0))


def score_tries(o: Operands, c: Config, said: Mapping[str, list[float]], y: Floats) -> Iterator[Try]:
    """Mistakes of scores: their scale, their cap, the positions that are seen."""
    for cap in dict.fromkeys([0.0, *said["attn_logit_softcapping"], 50.0, 30.0, 20.0]):
        yield (
            "soft-cap",
            f"scores are capped at {o.cap:g} in the file, {cap:g} in the module (0: not)",
            o(cap=cap),
        )
    scale = _fitted(lambda scale: float(np.square(o(scale=scale) - y).sum()), o.scale)
    words = f"scores are multiplied by {o.scale:.6g} in the file, {scale:.6g} in the module"
    known = {
        1 / math.sqrt(n): n for n in (*said["query_pre_attn_scalar"], c.key_width, c.width // c.heads[0])
    }
    exact = min(known, key=lambda one: abs(one - scale))
    if abs(exact - scale) < 1e-4 * scale:
        words += f", 1/sqrt({known[exact]:g})"
    yield "attention-scale", words, o(scale=scale)
    yield "attention-scale", words, o(scale=exact)
    for window in dict.fromkeys(
        [0, *map(int, said["sliding_window"]), *c.windows, o.window + 1, o.window - 1]
    ):
        words = f"a query sees {o.window or 'all'} positions in the file, {window or 'all'} in the module"
        yield "window", words, o(window=max(window, 0))
    has = ("no", "a") if o.window else ("a", "no")
    words = f"the layer has {has[1]} window in the file, {has[0]} in the module"
    for window in (
        (0,) if o.window else dict.fromkeys([*filter(None, c.windows), *map(int, said["sliding_window"])])
    ):
        yield "window", words, o(rope=c.window_rope if window else c.rope, window=window)


def head_tries(o: Operands, before: Any) -> Iterator[Try]:
    """Mistakes of heads: their norms, their number, which of keys goes with which of queries."""
    if before is not None:
        yield "head-norms", "the module has no norms of heads", o(*before)
    heads, several = o.q.shape[1], o.k.shape[1]
    if 1 < several < heads:
        order = np.arange(heads).reshape(several, -1).T.reshape(-1)  # query h goes with key h % several
        y = o(o.q[:, order]).reshape(len(o.q), heads, -1)
        yield (
            "head-pairs",
            "query h takes key h % n in the module",
            y[:, np.argsort(order)].reshape(len(y), -1),
        )
    for by in (2, 0.5):
        width, new = int(o.q.shape[2] / by), int(heads * by)
        if width % 2 or width < 2 or int(several * by) < 1 or several * by % 1:
            continue
        q, k, v = (x.reshape(len(x), -1, int(x.shape[2] / by)) for x in (o.q, o.k, o.v))
        rope, scale = replace(o.rope, dims=min(width, o.rope.dims)), o.scale * math.sqrt(by)
        for dims in (rope.dims, width):
            words = f"there are {heads} heads in the file, {new} in the module"
            yield "head-count", words, o(q, k, v=v, rope=replace(rope, dims=dims), scale=scale)


def _fitted(error: Callable[[float], float], start: float) -> float:
    """The factor near a start, up to 64 times as large or small, with the least error."""
    low, high, share = math.log(start) - 4.2, math.log(start) + 4.2, (math.sqrt(5) - 1) / 2
    grid = np.linspace(low, high, 29)
    best = int(np.argmin([error(math.exp(at)) for at in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    for _ in range(44):
        a, b = high - share * (high - low), low + share * (high - low)
        low, high = (low, b) if error(math.exp(a)) < error(math.exp(b)) else (a, high)
    return math.exp((low + high) / 2)


# --- the walk through the layers -----------------------------------------------------------------


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
        part: Callable[[str], Order], said: Mapping[str, list[float]], count: int,
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
        y, cap = np.asarray(call.y, np.float64).reshape(len(logits), -1), self.config.logit_cap

        def bent(cap: float) -> Floats:
            return np.asarray(self.a.capped(y, cap) if cap else y)

        def tries() -> Iterator[Try]:
            for other in dict.fromkeys([0.0, *self.said["final_logit_softcapping"], 30.0]):
                words = f"logits are capped at {cap:g} in the file, {other:g} in the module (0: not)"
                yield "soft-cap", words, bent(other)

        floor = FLOORS.get(call.dtype, 1e-9)
        self.judge("result_output", call, np.asarray(logits, np.float64), bent(cap), tries, floor=floor)

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
        return super().norm(x, name, layer, plain) if y is None else y

    def feed_forward(self, x: Any, layer: int, activation: str, kind: str = "") -> Any:
        """The module's feed-forward part, judged behind the activation."""
        self.activation = activation
        return super().feed_forward(x, layer, activation, kind)

    def plus(self, y: Any, x: Any, node: str, layer: int) -> Any:
        """The sum of rows, whose terms may be what is wrong."""
        self.terms = y, x.copy()
        return super().plus(y, x, node, layer)

    def rope_attention(self, q: Any, k: Any, v: Any, layer: int, factors: Any = None,
                         sinks: Any = None, scaled: str | None = None, gate: Any = None,
                         nodes: tuple[str, str] = ("Qcur", "Kcur")) -> Any:  # fmt: skip
        """Attention of heads that are rotated by their positions, and the module's product behind it."""
        c = self.config
        seen = c.scale, c.windows[layer], c.score_cap
        self.operands = Operands(q, k, v, self._how(layer), factors, *seen, sinks)
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
        self.judge(self.node, call, theirs, x, tries, floor=FLOORS.get(call.dtype, 1e-9))
        x[...] = theirs  # what else reads these rows, as the sum behind a norm does, goes on from them too
        order, y = self.part(stem), y.reshape(len(x), -1)
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
            yield (
                "swapped",
                "the module activates up instead of gate",
                self.a.gated(self.activation, up, gate),
            )
            for kind in {"silu", "gelu"} - {self.activation}:
                words = f"the activation is {self.activation} in the file's model, {kind} in the module"
                yield "activation", words, self.a.gated(kind, gate, up)
            yield "activation", "the module activates by erf's GELU", _erf_gelu(gate) * up
            yield "activation", "the module activates by ReLU", np.maximum(gate, 0) * up
        elif first and self.terms is not None:
            x = self.terms[0]
            factor = float((y * x).sum() / ((x * x).sum() + 1e-300))
            words = f"the module multiplies the embedding by {factor:.6g} times what the model does"
            yield "embedding-scale", words, factor * x
        elif self.terms is not None:
            part, x = self.terms
            yield "residual", "the module does not add the part to the rows", x
            yield "residual", "the module does not add the rows to the part", part
            factor = float(((y - x) * part).sum() / ((part * part).sum() + 1e-300))
            yield (
                "scale",
                f"the module multiplies the part by {factor:.6g} before it is added",
                x + factor * part,
            )
            factor = float(((y - part) * x).sum() / ((x * x).sum() + 1e-300))
            yield "scale", f"the module multiplies the rows by {factor:.6g}", factor * x + part

    def _attention_tries(self, y: Floats) -> Iterator[Try]:
        o: Operands | None = self.operands
        if o is None:
            return
        before, module, usual = None, [], True
        if "attn_q_norm" in self.normed:
            before = self.plain["attn_q"].reshape(o.q.shape), self.plain["attn_k"].reshape(o.k.shape)
        for name, x in (("attn_q", o.q), ("attn_k", o.k)):
            order = self.order.get(name, Order(None, True))
            usual &= order.usual
            module.append(x if order.rows is None else x.reshape(len(x), -1)[:, order.rows].reshape(x.shape))
        yield from rope_tries(o, self.config, self.said, (*module, usual))
        yield from score_tries(o, self.config, self.said, y)
        yield from head_tries(o, before)


def _erf_gelu(x: Floats) -> Floats:
    erf: Any = np.frompyfunc(math.erf, 1, 1)
    y: Floats = 0.5 * x * (1 + erf(x / math.sqrt(2)).astype(np.float64))
    return y
