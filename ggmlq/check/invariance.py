"""Tries whether the bits of a row depend on more than the row: its neighbours, its place, the threads.

A subject is a function from rows to rows: a product with some weights, an attention with some cache, of
a library or of ours. A row is computed alone, beside others, at other places, and with other numbers of
threads; only bits count. Where they differ, a program that computes a token alone and beside others
(speculative decoding, batches of several users) gets other results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.threads import at_most
from ..errors import GGMLQError, LibraryFailedError, UnsupportedError
from ..formats import FORMATS
from ..llama import Bridge
from .sketch import Sketch, Tensor

Rows = NDArray[np.float32]
PROMISE = ", invariant"
LIBRARY, OURS = "llama.cpp", "ggmlq"
BESIDE = (2, 3, 4, 7, 8, 9, 16, 17, 33, 64, 65)  # rows in a batch
LONG, PLACES = 33, (1, 7, 8, 15, 16, 31)  # a batch, and how far its rows are moved
THREADS = (2, 3, 5)
WEIGHTS, LENGTH, CACHE = 48, 512, 640  # rows of weights, columns, positions of a cache
HEADS, WIDTH = 4, 64
EXPERTS, USED = 8, 2
OPS = ("MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "RMS_NORM", "NORM", "SOFT_MAX", "SILU", "ADD")
CACHES = ("f16", "f32", "q8_0", "q4_0")


@dataclass(frozen=True)
class Subject:
    """A function of rows, and of a number of threads."""

    op: str
    type: str
    who: str
    run: Callable[[Rows, int], NDArray[Any]]
    width: int = LENGTH


@dataclass(frozen=True)
class Invariance:
    """The outcome: what a row's bits depend on. None: it was not tried."""

    op: str
    type: str
    who: str
    beside: tuple[int, ...] = ()  # numbers of rows that give a row other bits than alone
    place: tuple[int, ...] = ()  # distances that a row was moved by, with other bits
    threads: tuple[int, ...] = ()  # numbers of threads that give other bits than one
    text: str = ""  # why it was not tried

    @property
    def broken(self) -> bool:
        """True where a promise of the same bits is not kept."""
        return PROMISE in self.op and self.invariant is False

    @property
    def invariant(self) -> bool | None:
        """True where the bits of a row depend on the row alone; None where it was not tried."""
        return None if self.text else not (self.beside or self.place or self.threads)

    def facts(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        return {
            "op": self.op, "type": self.type, "who": self.who, "invariant": self.invariant,
            "beside": list(self.beside), "place": list(self.place), "threads": list(self.threads),
            "text": self.text or None,
        }  # fmt: skip


def examine(subject: Subject, seed: int = 0) -> Invariance:
    """Compute rows alone, beside others, at other places and by several threads, and compare their bits."""
    rng = np.random.default_rng([seed, 47])
    x = rng.standard_normal((max(BESIDE), subject.width)).astype(np.float32)
    named = subject.op, subject.type, subject.who
    try:
        alone = np.concatenate([_bits(subject.run(x[i : i + 1], 1)) for i in range(LONG)])
        beside = [m for m in BESIDE if _differ(_bits(subject.run(x[:m], 1)), alone)]
        batch = _bits(subject.run(x[:LONG], 1))
        moved = (np.roll(x[:LONG], step, axis=0) for step in PLACES)
        place = [
            step for step, rows in zip(PLACES, moved, strict=True)
            if _differ(np.roll(_bits(subject.run(rows, 1)), -step, axis=0), batch)
        ]  # fmt: skip
        threads = [
            n for n in THREADS
            if _differ(_bits(subject.run(x[:LONG], n)), batch) or _differ(_bits(subject.run(x[:1], n)), alone)
        ]  # fmt: skip
    except LibraryFailedError:
        raise
    except GGMLQError as error:
        return Invariance(*named, text=str(error))
    return Invariance(*named, tuple(beside), tuple(place), tuple(threads))


def _bits(y: NDArray[Any]) -> NDArray[np.uint8]:
    """Rows of a result as bytes."""
    return np.ascontiguousarray(y).reshape(len(y), -1).view(np.uint8)


def _differ(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool:
    n = min(len(a), len(b))
    return not np.array_equal(a[:n], b[:n])


# --- of a library ---------------------------------------------------------------------------------


def of_library(
    bridge: Bridge, device: str, types: Sequence[str], ops: Sequence[str], seed: int
) -> Iterator[Subject]:
    """Operations of a library, products and attention with each type."""
    for op in ops:
        kinds = types if op.startswith("MUL_MAT") else CACHES if op == "FLASH_ATTN_EXT" else ("f32",)
        for kind in kinds:
            width = WIDTH * HEADS if op == "FLASH_ATTN_EXT" else LENGTH
            yield Subject(op, kind, LIBRARY, _program(bridge, device, op, kind, seed), width)


def _program(
    bridge: Bridge, device: str, op: str, kind: str, seed: int
) -> Callable[[Rows, int], NDArray[Any]]:
    """A function that computes one graph for each number of rows."""

    def run(x: Rows, threads: int) -> NDArray[Any]:
        m = len(x)
        s = Sketch()
        first = _rows(s, op, m)
        _call(s, op, kind, first, m)
        case = s.case(op, f"{kind}, one of some rows", seed)
        arrays = _arrays(case.program.leaves, x, op, kind, seed)
        ran = bridge.node(case.program, arrays, device, threads=threads)
        return _by_rows(ran.node.strided("y"), op)

    return run


def _rows(s: Sketch, op: str, m: int) -> Tensor:
    if op == "FLASH_ATTN_EXT":
        return s.call("permute", s.leaf(WIDTH, HEADS, m), 0, 2, 1, 3)
    return s.leaf(LENGTH, 1, m) if op == "MUL_MAT_ID" else s.leaf(LENGTH, m)


def _call(s: Sketch, op: str, kind: str, x: Tensor, m: int) -> None:
    if op == "MUL_MAT":
        s.call("mul_mat", s.leaf(LENGTH, WEIGHTS, type=kind), x)
    elif op == "MUL_MAT_ID":
        weights = s.leaf(LENGTH, WEIGHTS, EXPERTS, type=kind)
        s.call("mul_mat_id", weights, x, s.leaf(USED, m, type="i32"))
    elif op == "FLASH_ATTN_EXT":
        k, v = (s.leaf(WIDTH, CACHE, HEADS, type=kind) for _ in "kv")
        s.call("flash_attn_ext", x, k, v, None, WIDTH**-0.5, 0.0, 0.0)
    elif op == "ADD":
        s.call("add", x, s.leaf(LENGTH))
    elif op in ("RMS_NORM", "NORM"):
        s.call(op.lower(), x, 1e-6)
    else:
        s.call(op.lower(), x)


def _arrays(leaves: Sequence[Any], x: Rows, op: str, kind: str, seed: int) -> list[NDArray[Any]]:
    """The rows, and data of the other leaves that are the same for any rows."""
    arrays: list[NDArray[Any]] = [x]
    for leaf in leaves[1:]:
        shape = tuple(reversed(leaf.ne))
        if leaf.type == "i32":  # experts of a row: by the row's own elements
            arrays.append(experts_of(x))
            continue
        values = np.random.default_rng([seed, len(arrays), 48]).standard_normal(shape).astype(np.float32)
        fmt = FORMATS[leaf.type]
        if fmt.block_size == 1 and leaf.type != "bf16":
            arrays.append(values.astype(fmt.dtype))
        else:
            arrays.append(weights_of(values, leaf.type, seed))
    return arrays


def weights_of(values: Rows, kind: str, seed: int) -> NDArray[Any]:
    """Blocks of a type: encoded, or random bytes with sane scales where the type has no encoder here."""
    fmt = FORMATS[kind]
    if not fmt.can_quantize:
        raise UnsupportedError(f"{kind}: it has no encoder here; name other --types")
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    imatrix = np.ones(rows.shape[-1], np.float32) if fmt.needs_imatrix else None
    return np.asarray(fmt.encode(rows, imatrix) if imatrix is not None else fmt.encode(rows))


def experts_of(x: Rows) -> NDArray[np.int32]:
    """Two different experts of each row, chosen by the row itself."""
    first = np.ascontiguousarray(x[:, 0]).view(np.uint32) % EXPERTS
    return np.stack([first, (first + 3) % EXPERTS], axis=1).astype(np.int32)


def _by_rows(y: NDArray[Any], op: str) -> NDArray[Any]:
    """A result [ne3, ne2, ne1, ne0] with its rows first."""
    axis = 1 if op in ("FLASH_ATTN_EXT", "MUL_MAT_ID") else 2
    return np.moveaxis(y, axis, 0)


# --- of ours --------------------------------------------------------------------------------------


def of_ours(types: Sequence[str], seed: int) -> Iterator[Subject]:
    """Our own products with each type, and attention, as they are and where they promise it."""
    array = import_module("ggmlq.arrays.array").QuantArray
    rng = np.random.default_rng([seed, 49])
    w = rng.standard_normal((EXPERTS, WEIGHTS, LENGTH)).astype(np.float32)
    for name in ("linear", "expert_linear"):
        function = getattr(import_module(f"ggmlq.ops.{name}"), name)
        for kind in types:
            if not FORMATS[kind].can_quantize:
                continue
            values = w if name == "expert_linear" else w[0]
            raw = weights_of(values, kind, seed)
            q = array.from_bytes(np.ascontiguousarray(raw).view(np.uint8), kind, values.shape)
            for more in _promises(function):
                yield Subject(f"gq.{name}{_words(more)}", kind, OURS, _ours(name, function, q, more))
    yield from _attentions(array, rng, seed)


def _attentions(array: Any, rng: np.random.Generator, seed: int) -> Iterator[Subject]:
    function = import_module("ggmlq.ops.attention").attention
    cache = rng.standard_normal((2, 1, HEADS, CACHE, WIDTH)).astype(np.float32)
    for kind in ("f32", "q8_0", "q4_0"):
        k, v = cache if kind == "f32" else (
            array.from_bytes(weights_of(part, kind, seed).view(np.uint8), kind, part.shape) for part in cache
        )  # fmt: skip
        for more in _promises(function):

            def run(
                x: Rows, threads: int, k: Any = k, v: Any = v, more: dict[str, bool] = more
            ) -> NDArray[Any]:
                q = x.reshape(1, len(x), HEADS, WIDTH).transpose(0, 2, 1, 3)
                y = _with_threads(threads, lambda: function(np.ascontiguousarray(q), k, v, **more))
                return np.moveaxis(np.asarray(y), 2, 0)

            yield Subject(f"gq.attention{_words(more)}", kind, OURS, run, WIDTH * HEADS)


def _promises(function: Any) -> list[dict[str, bool]]:
    """The options to try: none, and the one that promises the same bits, where the function has it."""
    return [{}, {"invariant": True}] if "invariant" in signature(function).parameters else [{}]


def _words(more: dict[str, bool]) -> str:
    return PROMISE if more else ""


def _ours(name: str, function: Any, q: Any, more: dict[str, bool]) -> Callable[[Rows, int], NDArray[Any]]:
    def run(x: Rows, threads: int) -> NDArray[Any]:
        operands = (x, q, experts_of(x)) if name == "expert_linear" else (x, q)
        return np.asarray(_with_threads(threads, lambda: function(*operands, **more)))

    return run


def _with_threads(threads: int, call: Callable[[], Any]) -> Any:
    with at_most(threads):
        return call()
