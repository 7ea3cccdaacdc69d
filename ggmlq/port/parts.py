"""A part of a module by itself: its output, computed in float64 from its own input and the file's tensor.

Where the two differ, mistakes are tried one after the other on the tensor: that which makes the difference
vanish is named. Each part has the module's own input, so a mistake is seen where it is made and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .judge import FLOORS, Floats, Judge, Try, distance, factor_between
from .orders import orders
from .watched import Call

NORMS = {"float64": 2e-13, "float32": 2e-13, "float16": 1e-5, "bfloat16": 1e-4}
ZEROS = "the module gives zeros: its weights were not loaded"
HEADS = "value heads are in another order than a port should have"
ROWS = 4096  # of a head, which may have hundreds of thousands, as many are compared


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


def product(judge: Judge, stem: str, call: Call) -> Order:
    """Judge a product with a matrix."""
    at = row_order(judge, stem, call)
    order = at.rows
    name, x, y, rows = _operands(judge, stem, call)
    info, bias = judge.file.info(name), f"{stem}.bias" in judge.file
    w = judge.tensor(name, rows)
    if w.shape != (y.shape[1], x.shape[1]):
        theirs = y.shape[1], x.shape[1]
        judge.wrong(stem, call.path, "shape", f"the file has {w.shape}, the module {theirs}")
        return at
    b = judge.tensor(f"{stem}.bias") if bias else np.zeros(len(w))
    several = orders(judge.file, stem, w.shape[1]) if stem.endswith(".ssm_out") else []
    others = [w[:, columns] for columns in several[1:]]
    w = w[:, several[0]] if several else w
    o = x @ w.T
    if order is not None:
        o, b = o[:, order], b[order]

    factor = factor_between(y, o + b)

    def tries() -> Iterator[Try]:
        yield "not-loaded", ZEROS, np.zeros_like(y)
        for other in others:
            yield "value-heads", HEADS, x @ other.T + b
        if bias:
            yield "bias-missing", "the module adds no bias", o
            for by in (1, -1):
                yield "bias-shifted", f"the bias is shifted by {by}", o + np.roll(b, by)
            for other in orders(judge.file, stem, len(b)):
                yield "bias-shifted", "the bias is in another order than the rows", o + b[other]
        yield "scale", f"the module's is {factor:.6g} times the file's", factor * (o + b)
        if len(w) % 2 == 0:
            yield "swapped", "the halves of its rows are swapped, as gate and up", np.roll(o, len(w) // 2, 1)

    def of(w: Floats) -> Floats:
        other: Floats = x @ w.T if order is None else (x @ w.T)[:, order]
        return other + b

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
                lost = any(place.mistake == "not-loaded" for place in judge.places)
                kind = "not-loaded" if lost else "tied-output"
                yield kind, "the file's head is its embedding, the module has another", y
        mean = (y - o).mean(0)
        if b.any():
            yield "bias-shifted", "the module adds another bias than the file", o + mean
        yield "bias-missing", "the module adds a bias that the file lacks", o + mean

    size = float(np.vdot(x, x) * np.vdot(w, w) / w.shape[1] + len(x) * np.vdot(b, b))
    size = max(size, float(np.vdot(y, y)))
    floor = FLOORS.get(call.dtype, 1e-9)
    mistake = judge(stem, call, y, o + b, tries, deep, floor=floor, size=size, fmt=info.format)
    return at._replace(factor=judge.factor_of(stem, mistake, factor))


def _matched(y: Floats, o: Floats) -> NDArray[np.int64]:
    """For each column of y that of ours which is most like it."""
    a, b = (each / (np.sqrt(np.square(each).sum(0)) + 1e-30) for each in (y, o))
    best = np.asarray((a.T @ b).argmax(1), np.int64)
    return best if len(np.unique(best)) == len(best) else np.arange(len(best), dtype=np.int64)


class Order(NamedTuple):
    """The rows of the file that lie in a part's, true where that is as it should be, and a factor of them."""

    rows: NDArray[np.int64] | None = None
    usual: bool = True
    factor: float = 1.0


def row_order(judge: Judge, stem: str, call: Call) -> Order:
    """The order of rows that the module has: that of those it may have which comes nearest."""
    rows, name = call.y.shape[-1], f"{stem}.weight"
    several = orders(judge.file, stem, rows)
    if (
        len(several) == 1
        or stem.endswith(".ssm_out")
        or judge.file.info(name).shape != (rows, call.x.shape[-1])
    ):
        return Order()
    x, y = (np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (call.x, call.y))
    x, y = x[:16], y[:16]  # enough to tell
    o = x @ judge.tensor(name).T
    o = o + judge.tensor(f"{stem}.bias") if f"{stem}.bias" in judge.file else o
    errors = [distance(y, o[:, order]) for order in several]
    best = int(np.argmin(errors)) if min(errors) * 2 < errors[0] else 0
    return Order(several[best], best == 0)


# --- norms and the embedding ---------------------------------------------------------------------


def norm(judge: Judge, stem: str, call: Call, epsilon: float) -> Order:
    """Judge a norm: of rows, or of heads."""
    name = f"{stem}.weight"
    w = judge.tensor(name)
    x, y = (np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (call.x, call.y))
    if len(w) != x.shape[1]:
        judge.wrong(stem, call.path, "shape", f"the file has {len(w)} columns, the module {x.shape[1]}")
        return Order()
    mean, gate = np.square(x).mean(1, keepdims=True), np.float64(1)
    if call.gate is not None:
        z = np.asarray(call.gate, np.float64).reshape(x.shape)
        gate = z / (1 + np.exp(-z))
    unit = x / np.sqrt(mean + epsilon) * gate
    factor = factor_between(y, unit * w)

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
        yield "scale", f"the module's is {factor:.6g} times the file's", factor * unit * w
        for layer, kind in ((True, "swapped"), (False, "layer-swapped")):
            for other in judge.others(name, layer):
                yield kind, f"the module's is the file's {other}", unit * judge.tensor(other)

    floor, fmt = NORMS.get(call.dtype, 2e-13), judge.file.info(name).format
    mistake = judge(stem, call, y, unit * w, tries, floor=floor, fmt=fmt)
    return Order(factor=judge.factor_of(stem, mistake, factor))


def embedding(judge: Judge, call: Call, tokens: NDArray[np.int64], usual: float | None) -> float:
    """Judge the rows of words; the factor by which the module has multiplied them.

    ``usual``: that of the model, which is judged where the first layer reads the rows; None: there is none.
    """
    y = np.asarray(call.y, np.float64).reshape(len(tokens), -1)
    w = judge.tensor("token_embd.weight", tokens)
    if w.shape != y.shape:
        judge.wrong("embd", call.path, "shape", f"the file has {w.shape[1]} columns, the module {y.shape[1]}")
        return 1.0
    fit = factor_between(y, w)
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
    order, *others = orders(judge.file, stem, len(ours))
    decays = stem.endswith(".ssm_a")
    theirs = -np.exp(y) if decays else y

    def tries() -> Iterator[Try]:
        for other in others:
            yield "value-heads", HEADS, ours[other]
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
