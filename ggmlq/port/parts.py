"""A part of a module by itself: its output, computed in float64 from its own input and the file's tensor.

Where the two differ, mistakes are tried one after the other on the tensor: that which makes the difference
vanish is named. Each part has the module's own input, so a mistake is seen where it is made and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..formats import Format
from ..gguf import GGUFFile
from .watched import Call, family_of

Floats = NDArray[Any]
Try = tuple[str, str, Floats]  # a mistake's name, words, and what a part with it gives
Tries = Callable[[], Iterable[Try]]

# Up to here, as a share of the square of what was summed, two computations in a type are the same.
FLOORS = {"float64": 1e-9, "float32": 1e-9, "float16": 1e-5, "bfloat16": 1e-3}
NORMS = {"float64": 2e-13, "float32": 2e-13, "float16": 1e-5, "bfloat16": 1e-4}  # one sum, and well conditioned
BETTER = 8  # times smaller is the error with a mistake that explains it
ROWS = 4096  # of a head, which may have hundreds of thousands, as many are compared


def noise_of(fmt: Format) -> float:
    """The share of squares that quantizing costs at most: three times that of a normal distribution."""
    return 1e-5 if fmt.name == "bf16" else float(12 * 4.0**-fmt.bits_per_weight)


def distance(y: Floats, ours: Floats, size: float = 0.0) -> float:
    """The square of a difference beside a size, by default that of the first; infinity for NaN."""
    if y.shape != ours.shape:
        return float("inf")
    away = float(np.square(y - ours).sum()) / ((size or float(np.square(y).sum())) + 1e-30)
    return away if away == away else float("inf")


@dataclass(frozen=True)
class Place:
    """A place of a model, right or with the mistake that explains it."""

    node: str  # llama.cpp's name of the node, or the tensor's
    path: str  # in the module
    nmse: float
    mistake: str = ""  # "" where it is right
    text: str = ""
    type: str = ""  # whose quantization explains the difference


@dataclass
class Judge:
    """The places so far."""

    file: GGUFFile
    places: list[Place] = field(default_factory=list)

    def __call__(
        self, node: str, call: Call, y: Floats, ours: Floats, tries: Tries, deep: Tries = tuple, *,
        floor: float, size: float = 0.0, fmt: Format | None = None,
    ) -> str:  # fmt: skip
        """Judge a place; the name of its mistake, ``""`` where it is right.

        ``deep``: tries that cost more, made where quantization cannot explain the difference.
        """
        noise = noise_of(fmt) if fmt is not None else 0.0
        limit, error = max(floor, noise), distance(y, ours, size)
        if error <= floor:
            self.places.append(Place(node, call.path, error))
            return ""
        for some in (tries, deep) if not error <= limit else (tries,):
            for mistake, text, other in some():
                left = distance(y, other, size)
                if left <= limit and left * BETTER <= error:
                    self.places.append(Place(node, call.path, error, mistake, text))
                    return mistake
        if error <= limit and fmt is not None:
            self.places.append(Place(node, call.path, error, type=fmt.name))
            return ""
        text = "no known mistake explains it" if np.isfinite(y).all() else "the module gives NaN or infinity"
        self.places.append(Place(node, call.path, error, "unexplained", text))
        return "unexplained"

    def wrong(self, node: str, path: str, mistake: str, text: str) -> None:
        """Note a mistake that is seen without numbers."""
        self.places.append(Place(node, path, float("inf"), mistake, text))

    # --- tensors ------------------------------------------------------------------------------

    def tensor(self, name: str, rows: Any = None) -> Floats:
        """A tensor in float64, or some of its rows."""
        q = self.file[name]
        values: Floats = np.asarray((q if rows is None else q[rows]).dequantize(), np.float64)
        return values

    def others(self, name: str, layer: bool) -> Iterator[str]:
        """Tensors of this one's shape: in its layer, or under its name in other layers."""
        shape, (front, _, rest) = self.file.info(name).shape, name.partition("blk.")
        number, _, inner = rest.partition(".")
        for other in self.file:
            near = other.startswith(f"{front}blk.{number}.") if rest else not other.startswith("blk.")
            same = near if layer else bool(rest) and other.startswith("blk.") and other.endswith(f".{inner}")
            if same and other != name and self.file.info(other).shape == shape:
                yield other


# --- products ------------------------------------------------------------------------------------


def halves(rows: int, heads: int) -> NDArray[np.int64]:
    """Rows of heads as two halves, from rows of neighbours; argsort of it is the way back."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def orders(file: GGUFFile, stem: str, rows: int) -> list[NDArray[np.int64]]:
    """Orders in which a port may have the rows of queries or keys; the first one is what it should have."""
    plain = np.arange(rows)
    inner, arch = stem.rpartition(".")[2], file.metadata.get("general.architecture")
    heads = file.metadata.get(f"{arch}.attention.head_count")
    if inner == "attn_k":
        heads = file.metadata.get(f"{arch}.attention.head_count_kv", heads)
    if inner not in ("attn_q", "attn_k") or not isinstance(heads, int) or heads < 1 or rows % (2 * heads):
        return [plain]
    family, apart = family_of(file), halves(rows, heads)
    both = [apart, plain] if family is not None and family.permuted else [plain, apart]
    return [*both, np.argsort(apart)]


def product(judge: Judge, stem: str, call: Call, order: NDArray[np.int64] | None = None) -> None:
    """Judge a product with a matrix; ``order``: rows of the file that the module should have in its rows."""
    name = f"{stem}.weight" if f"{stem}.weight" in judge.file else "token_embd.weight"  # a tied head
    info, bias = judge.file.info(name), f"{stem}.bias" in judge.file
    x, y = (np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (call.x, call.y))
    rows = None
    if stem == "output":
        y = y[:, : info.shape[0]]  # a module's may be padded
        if info.shape[0] > ROWS:
            rows = np.linspace(0, info.shape[0] - 1, ROWS).astype(np.int64)
            y = y[:, rows] if y.shape[1] == info.shape[0] else y
    w = judge.tensor(name, rows)
    if w.shape != (y.shape[1], x.shape[1]):
        judge.wrong(stem, call.path, "shape", f"the file has {w.shape}, the module {(y.shape[1], x.shape[1])}: "
                    "numbers or sizes of heads, or the configuration, differ")  # fmt: skip
        return
    b = judge.tensor(f"{stem}.bias") if bias else np.zeros(len(w))
    o = x @ w.T
    if order is not None:
        o, b = o[:, order], b[order]

    def tries() -> Iterator[Try]:
        if bias:
            yield "bias-missing", "the module adds no bias", o
            for by in (1, -1):
                yield "bias-shifted", f"the bias is shifted by {by}", o + np.roll(b, by)
            for other in orders(judge.file, stem, len(b)):
                yield "bias-shifted", "the bias is in another order than the rows", o + b[other]
        factor = float((y * o).sum() / ((o * o).sum() + 1e-300))
        yield "scale", f"the module's is {factor:.6g} times the file's", factor * o + b
        if len(w) % 2 == 0:
            yield "swapped", "the halves of its rows are swapped, as gate and up", np.roll(o, len(w) // 2, 1)

    def deep() -> Iterator[Try]:
        if rows is None:
            for other in judge.others(name, layer=True):
                kind = "tied-output" if stem == "output" else "swapped"
                yield kind, f"the module's is the file's {other}", x @ judge.tensor(other).T + b
            for other in judge.others(name, layer=False):
                yield "layer-swapped", f"the module's is the file's {other}", x @ judge.tensor(other).T + b
            for turned in (w.T.reshape(w.shape), w.reshape(w.shape[::-1]).T):
                yield "transposed", "the matrix is transposed", x @ turned.T + b
            if len(w) <= ROWS and len(x) >= 8:
                yield "rows", "its rows are in another order", o[:, _matched(y, o)] + b
        elif stem == "output":
            other = "token_embd.weight" if name == "output.weight" else "output.weight"
            if other in judge.file:
                yield "tied-output", f"the module's is the file's {other}", x @ judge.tensor(other, rows).T
        mean = (y - o).mean(0)
        words = "another bias than the file" if bias else "a bias that the file lacks"
        yield "bias-shifted" if bias else "bias-missing", f"the module adds {words}", o + mean
        yield "not-loaded", "the module gives zeros: its weights were not loaded", np.zeros_like(y)

    size = float(np.square(x).sum() * np.square(w).sum() / w.shape[1] + len(x) * np.square(b).sum())
    judge(stem, call, y, o + b, tries, deep, floor=FLOORS.get(call.dtype, 1e-9), size=size, fmt=info.format)


def _matched(y: Floats, o: Floats) -> NDArray[np.int64]:
    """For each column of y that of ours which is most like it."""
    a, b = (each / (np.sqrt(np.square(each).sum(0)) + 1e-30) for each in (y, o))
    best: NDArray[np.int64] = (a.T @ b).argmax(1)
    return best if len(np.unique(best)) == len(best) else np.arange(len(best))


class Order(NamedTuple):
    """The order of a part's rows: those of the file that lie there, and true where it is as it should be."""

    rows: NDArray[np.int64] | None
    usual: bool


def row_order(judge: Judge, stem: str, call: Call) -> Order:
    """The order of rows that the module has: that of those it may have which comes nearest."""
    rows, name = call.y.shape[-1], f"{stem}.weight"
    several = orders(judge.file, stem, rows)
    if len(several) == 1 or judge.file.info(name).shape != (rows, call.x.shape[-1]):
        return Order(None, True)
    x, y = (np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (call.x, call.y))
    o = x @ judge.tensor(name).T
    o = o + judge.tensor(f"{stem}.bias") if f"{stem}.bias" in judge.file else o
    best = min(range(len(several)), key=lambda i: distance(y, o[:, several[i]]))
    return Order(several[best], best == 0)


# --- norms and the embedding ---------------------------------------------------------------------


def norm(judge: Judge, stem: str, call: Call, epsilon: float) -> None:
    """Judge a norm: of rows, or of heads."""
    name = f"{stem}.weight"
    w = judge.tensor(name)
    x, y = (np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (call.x, call.y))
    if len(w) != x.shape[1]:
        judge.wrong(stem, call.path, "shape", f"the file has {len(w)} columns, the module {x.shape[1]}")
        return
    mean, gate = np.square(x).mean(1, keepdims=True), np.float64(1)
    if call.gate is not None:
        z = np.asarray(call.gate, np.float64).reshape(x.shape)
        gate = z / (1 + np.exp(-z))
    unit = x / np.sqrt(mean + epsilon) * gate

    def tries() -> Iterator[Try]:
        for by in (1, -1):
            words = f"the module multiplies by the file's weight {'+' if by > 0 else '-'} 1"
            yield "norm-plus-one", words, unit * (w + by)
        part = x * gate * w
        fitted = np.median(np.square((part * part).sum(1) / (part * y).sum(1)) - mean[:, 0])
        for other in sorted((1e-5, 1e-6, 1e-8, 1e-12, 0.0, float(fitted)), key=lambda one: abs(one - fitted)):
            words = f"epsilon is {epsilon:g} in the file, {other:.3g} in the module"
            yield "epsilon", words, part / np.sqrt(mean + other)
        yield "norm-missing", "the module multiplies by no weight", unit
        yield "norm-missing", "the module hands its input on", x * gate
        away = x - x.mean(1, keepdims=True)
        words = "the module takes the mean off, as LayerNorm does"
        yield "norm-kind", words, away / np.sqrt(np.square(away).mean(1, keepdims=True) + epsilon) * w * gate
        factor = float((y * unit * w).sum() / (np.square(unit * w).sum() + 1e-300))
        yield "scale", f"the module's is {factor:.6g} times the file's", factor * unit * w
        for layer, kind in ((True, "swapped"), (False, "layer-swapped")):
            for other in judge.others(name, layer):
                yield kind, f"the module's is the file's {other}", unit * judge.tensor(other)
        yield "not-loaded", "the module gives zeros: its weights were not loaded", np.zeros_like(y)

    judge(stem, call, y, unit * w, tries, floor=NORMS.get(call.dtype, 2e-13), fmt=judge.file.info(name).format)


def embedding(judge: Judge, call: Call, tokens: NDArray[np.int64], usual: float | None) -> float:
    """Judge the rows of words; the factor by which the module has multiplied them.

    ``usual``: that of the model, which is judged where the first layer reads the rows; None: there is none.
    """
    y = np.asarray(call.y, np.float64).reshape(len(tokens), -1)
    w = judge.tensor("token_embd.weight", tokens)
    if w.shape != y.shape:
        judge.wrong("embd", call.path, "shape", f"the file has {w.shape[1]} columns, the module {y.shape[1]}")
        return 1.0
    fit = float((y * w).sum() / ((w * w).sum() + 1e-300))
    near = [one for one in (usual, 1.0) if one is not None and abs(fit - one) < 0.05 * one]
    factor = near[0] if near else 1.0 if usual is None or abs(fit) < 1e-3 else fit

    def tries() -> Iterator[Try]:
        yield "not-loaded", "the module gives zeros: its rows were not loaded", np.zeros_like(y)
        yield "embedding-scale", f"the module's rows are {fit:.6g} times the file's", fit * w
        rows = judge.file.info("token_embd.weight").shape[0]
        for by in (1, -1):
            words = f"rows of words are shifted by {by}"
            yield "rows", words, factor * judge.tensor("token_embd.weight", (tokens + by) % rows)
        if "output.weight" in judge.file:
            yield "swapped", "its rows are the file's output", factor * judge.tensor("output.weight", tokens)

    def deep() -> Iterator[Try]:
        yield "not-loaded", "its rows are none of the file's: they were not loaded", y

    fmt = judge.file.info("token_embd.weight").format
    judge("embd", call, y, factor * w, tries, deep, floor=FLOORS.get(call.dtype, 1e-9), fmt=fmt)
    return factor
