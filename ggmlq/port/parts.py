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
from .orders import orders
from .watched import Call

Floats = NDArray[Any]
Try = tuple[str, str, Floats]  # a mistake's name, words, and what a part with it gives
Tries = Callable[[], Iterable[Try]]

# Up to here, as a share of the square of what was summed, two computations in a type are the same.
FLOORS = {"float64": 1e-9, "float32": 1e-9, "float16": 1e-5, "bfloat16": 1e-3}
NORMS = {
    "float64": 2e-13,
    "float32": 2e-13,
    "float16": 1e-5,
    "bfloat16": 1e-4,
}  # one sum, and well conditioned
BETTER = 8  # times smaller is the error with a mistake that explains it, where quantization might as well
ZEROS = "the module gives zeros: its weights were not loaded"
ROWS = 4096  # of a head, which may have hundreds of thousands, as many are compared


def noise_of(fmt: Format) -> float:
    """The share of squares that quantizing costs at most: three times that of a normal distribution."""
    return 1e-5 if fmt.name == "bf16" else float(12 * 4.0**-fmt.bits_per_weight)


def distance(y: Floats, ours: Floats, size: float = 0.0) -> float:
    """The square of a difference beside a size, by default that of the first; infinity for NaN."""
    if y.shape != ours.shape:
        return float("inf")
    away = float(np.square(y - ours).sum()) / ((size or float(np.square(y).sum())) + 1e-30)
    return float("inf") if np.isnan(away) else away


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
                if left <= limit and left * (2 if error > limit else BETTER) <= error:
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


def _operands(judge: Judge, stem: str, call: Call) -> tuple[str, Floats, Floats, Any]:
    """The name of a product's matrix, its input and its output, and rows that stand for all of a head."""
    name = f"{stem}.weight" if f"{stem}.weight" in judge.file else "token_embd.weight"  # a tied head
    x, y = (np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (call.x, call.y))
    count = judge.file.info(name).shape[0]
    if stem != "output" or y.shape[1] < count:
        return name, x, y, None
    rows = np.linspace(0, count - 1, ROWS).astype(np.int64) if count > ROWS else None
    return name, x, y[:, :count] if rows is None else y[:, rows], rows  # a module's may be padded


def product(judge: Judge, stem: str, call: Call, order: NDArray[np.int64] | None = None) -> None:
    """Judge a product with a matrix; ``order``: rows of the file that the module should have in its rows."""
    name, x, y, rows = _operands(judge, stem, call)
    info, bias = judge.file.info(name), f"{stem}.bias" in judge.file
    w = judge.tensor(name, rows)
    if w.shape != (y.shape[1], x.shape[1]):
        theirs = y.shape[1], x.shape[1]
        judge.wrong(stem, call.path, "shape", f"the file has {w.shape}, the module {theirs}")
        return
    b = judge.tensor(f"{stem}.bias") if bias else np.zeros(len(w))
    columns = orders(judge.file, stem, w.shape[1])[0] if stem.endswith(".ssm_out") else None
    plain, w = w, w if columns is None else w[:, columns]
    o = x @ w.T
    if order is not None:
        o, b = o[:, order], b[order]

    def tries() -> Iterator[Try]:
        yield "not-loaded", ZEROS, np.zeros_like(y)
        if columns is not None:
            yield "value-heads", "value heads are in the order of the file", x @ plain.T + b
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

    def of(w: Floats) -> Floats:
        return (x @ w.T)[:, order] + b if order is not None else x @ w.T + b

    def deep() -> Iterator[Try]:
        if rows is None and stem != "output":
            for layer, kind in ((True, "swapped"), (False, "layer-swapped")):
                for other in judge.others(name, layer):
                    yield kind, f"the module's is the file's {other}", of(judge.tensor(other))
            for turned in (w.T.reshape(w.shape), w.reshape(w.shape[::-1]).T):
                yield "transposed", "the matrix is transposed", of(turned)
            if len(w) <= ROWS and len(x) >= 8:
                yield "rows", "its rows are in another order", o[:, _matched(y, o)] + b
        elif stem == "output":
            words = judge.tensor("token_embd.weight", rows)
            yield "tied-output", "the module's head is its embedding, the file has another", x @ words.T + b
            if np.array_equal(words, w):
                yield "tied-output", "the file's head is its embedding, the module has another", y
        mean = (y - o).mean(0)
        if b.any():
            yield "bias-shifted", "the module adds another bias than the file", o + mean
        yield "bias-missing", "the module adds a bias that the file lacks", o + mean

    size = float(np.square(x).sum() * np.square(w).sum() / w.shape[1] + len(x) * np.square(b).sum())
    size = max(size, float(np.square(y).sum()))
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
    if (
        len(several) == 1
        or stem.endswith(".ssm_out")
        or judge.file.info(name).shape != (rows, call.x.shape[-1])
    ):
        return Order(None, True)
    x, y = (np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (call.x, call.y))
    o = x @ judge.tensor(name).T
    o = o + judge.tensor(f"{stem}.bias") if f"{stem}.bias" in judge.file else o
    errors = [distance(y, o[:, order]) for order in several]
    best = int(np.argmin(errors)) if min(errors) * 2 < errors[0] else 0
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
        yield "not-loaded", ZEROS, np.zeros_like(y)
        for by in (1, -1):
            words = f"the module multiplies by the file's weight {'+' if by > 0 else '-'} 1"
            yield "norm-plus-one", words, unit * (w + by)
        part = x * gate * w
        fitted = np.median(np.square((part * part).sum(1) / (part * y).sum(1)) - mean[:, 0])
        for small in sorted((1e-5, 1e-6, 1e-8, 1e-12, 0.0, float(fitted)), key=lambda one: abs(one - fitted)):
            words = f"epsilon is {epsilon:g} in the file, {small:.3g} in the module"
            yield "epsilon", words, part / np.sqrt(mean + small)
        missing = "head-norms" if stem.endswith(("attn_q_norm", "attn_k_norm")) else "norm-missing"
        yield missing, "the module multiplies by no weight", unit
        yield missing, "the module hands its input on", x * gate
        away = x - x.mean(1, keepdims=True)
        words = "the module takes the mean off, as LayerNorm does"
        yield "norm-kind", words, away / np.sqrt(np.square(away).mean(1, keepdims=True) + epsilon) * w * gate
        factor = float((y * unit * w).sum() / (np.square(unit * w).sum() + 1e-300))
        yield "scale", f"the module's is {factor:.6g} times the file's", factor * unit * w
        for layer, kind in ((True, "swapped"), (False, "layer-swapped")):
            for other in judge.others(name, layer):
                yield kind, f"the module's is the file's {other}", unit * judge.tensor(other)

    judge(
        stem, call, y, unit * w, tries, floor=NORMS.get(call.dtype, 2e-13), fmt=judge.file.info(name).format
    )


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
    scaled = usual is not None and distance(y, fit * w) < 0.5
    factor = near[0] if near else fit if scaled else usual or 1.0

    def tries() -> Iterator[Try]:
        yield "not-loaded", ZEROS, np.zeros_like(y)
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


def parameter(judge: Judge, stem: str, path: str, value: Floats) -> None:
    """Judge a parameter that no part is called with: decays, their biases, a short convolution."""
    name = next(name for name in (f"{stem}.weight", f"{stem}.bias", stem) if name in judge.file)
    ours, fmt = judge.tensor(name), judge.file.info(name).format
    if value.size != ours.size:
        judge.wrong(stem, path, "shape", f"the file has {ours.shape}, the module {value.shape}")
        return
    y = np.asarray(value, np.float64).reshape(ours.shape)
    order = orders(judge.file, stem, len(ours))[0]
    decays = stem.endswith(".ssm_a")
    theirs = -np.exp(y) if decays else y

    def tries() -> Iterator[Try]:
        yield "value-heads", "value heads are in the order of the file", ours
        if decays:
            for made in (ours, ours[order]):
                yield "decay", "the module has the file's decay; it should have log(-decay)", -np.exp(made)
                yield "decay", "the module's has the other sign", -np.exp(-made)
                yield "decay", "the module's is the decay without its logarithm", -np.exp(-np.exp(made))
        else:
            yield "transposed", "the tensor is transposed", ours.T.reshape(ours.shape)[order]
            yield "transposed", "the tensor is transposed", ours.reshape(ours.shape[::-1]).T[order]
            yield "rows", "the taps run backwards", ours[..., ::-1][order]

    call = Call(path, value, value, None, "float32")
    judge(stem, call, theirs, ours[order], tries, floor=FLOORS["float32"], fmt=fmt)
