"""Products drawn at random, in all the ways in which they can be asked for, and judged element by element.

A round draws one matrix of weights and several products with it. What a product is made of lies in memory as
it may: with steps, backwards, at odd addresses; ``out`` is part of a larger array, whose rest must stay as it
is. NumPy in place of CuPy runs the same rounds on the host.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from block_cases import weights

import ggmlq as gq
from ggmlq import reference
from ggmlq.arrays.rows import MODEST, rows
from ggmlq.base.devices import to_host
from ggmlq.dispatch.ladder import choose, rungs
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS
from ggmlq.reference.bound import UNIT

FORMS = ("plain", "columns first", "every second column", "backwards", "odd address", "part of rows")
PARTS = ("whole", "some rows", "every second row", "backwards")
DTYPES = (np.float16, np.float32, np.float64)
EDGES = (8, 16, 32, 64, 128, 256)
MOST = 1 << 21  # products of a matrix, and weights of it: the oracle's time
# Rungs that multiply float16 as it is, though their arithmetic rounds to bfloat16; the latter with weights
# and their scales rounded to half, where these are no powers or small floats.
AS_HALVES, WEIGHTS_TOO = ("cuda:mma_bf16", "cuda:warp_specialized"), "cuda:warp_specialized"
WIDER = "mxfp4", "nvfp4"
BY_CUBLAS = ("dequant", "dequant_cublas", "dequant_bf16")  # which no graph records


class Matrix(NamedTuple):
    """Weights, and which rows of a larger array they are."""

    format: str
    n: int
    k: int
    part: str
    seed: int

    def whole(self) -> gq.QuantArray:
        """The array on the host, of which the weights are a part."""
        height = {"some rows": self.n + 8, "every second row": 2 * self.n}.get(self.part, self.n)
        return weights(self.format, height, self.k, self.seed)

    def of(self, q: gq.QuantArray) -> gq.QuantArray:
        """The part, of an array on any device."""
        slices = {"some rows": slice(3, 3 + self.n), "every second row": slice(None, None, 2)}
        return q[slices.get(self.part, slice(None, None, -1 if self.part == "backwards" else None))]


class Product(NamedTuple):
    """Activations, and how a product with them is asked for."""

    kernel: str  # or "auto"
    m: int
    kind: str  # of rows
    x_dtype: Any
    x_form: str
    dtype: Any
    out_form: str | None  # None: no ``out``
    bias: bool
    way: str  # "call", "stream", "graph"
    seed: int

    def x(self, k: int, more: int = 0) -> Any:
        """The values on the host; ``more``: others of the same kind."""
        with np.errstate(over="ignore"):
            return rows(self.kind, self.m, k, self.seed + more).astype(self.x_dtype)

    def added(self, n: int) -> Any:
        """The bias on the host, or None."""
        return np.random.default_rng(self.seed).standard_normal(n, np.float32) if self.bias else None


# --- drawing ----------------------------------------------------------------------------------


def size(fresh: np.random.Generator, most: int) -> int:
    """Small ones as often as large ones, and those beside the edges of tiles."""
    if fresh.integers(2):
        return min(most, max(1, int(fresh.choice(EDGES) * fresh.integers(1, 4) + fresh.integers(-1, 2))))
    return max(1, int(most ** fresh.random()))


def matrix(fresh: np.random.Generator, name: str) -> Matrix:
    """Weights of a format, as many blocks long as may be."""
    block = max(FORMATS[name].block_size, 32)
    n, k = size(fresh, 700), block * size(fresh, 4096 // block)
    return Matrix(name, n, min(k, block * max(1, MOST // n // block)), str(fresh.choice(PARTS)), seed(fresh))


def product(fresh: np.random.Generator, of: Matrix, kernels: Any, ways: Any) -> Product:
    """One with a matrix."""
    m = min(size(fresh, 700), max(1, 64 * MOST // (of.n * of.k)))
    return Product(
        kernel=str(fresh.choice(kernels)),
        m=m,
        kind=str(fresh.choice(MODEST)),
        x_dtype=fresh.choice(DTYPES),
        x_form=str(fresh.choice(FORMS)),
        dtype=fresh.choice(DTYPES),
        out_form=str(fresh.choice(FORMS)) if fresh.integers(4) else None,
        bias=not fresh.integers(3),
        way=str(fresh.choice(ways)),
        seed=seed(fresh),
    )


def seed(fresh: np.random.Generator) -> int:
    return int(fresh.integers(1 << 30))


def rung_of(of: Matrix, each: Product, device: str) -> Any:
    """The rung that serves a product; None where the one that is named refuses it."""
    problem = Linear.here(FORMATS[of.format], each.m, of.n, of.k, device=device)
    if each.kernel == "auto":
        return choose(problem)
    (found,) = (rung for rung in rungs("linear", device) if rung.name == each.kernel)
    return None if found.refuses(problem) else found


# --- running ----------------------------------------------------------------------------------


def formed(xp: Any, values: Any, form: str) -> Any:
    """The values on xp's device, in memory in this way."""
    values = xp.asarray(values)
    if form == "columns first":
        return xp.asfortranarray(values)
    if form == "backwards":
        return xp.ascontiguousarray(values[::-1, ::-1])[::-1, ::-1]
    _, view = room(xp, values.shape, values.dtype, form)
    view[...] = values
    return view


def room(xp: Any, shape: tuple[int, int], dtype: Any, form: str) -> tuple[Any, Any]:
    """A poisoned array and the part of it that has this shape, between guards."""
    m, n = shape
    if form == "odd address":
        around = xp.full(m * n + 2, np.nan, dtype)
        return around, around[1:-1].reshape(m, n)
    if form == "columns first":
        around = xp.full((n + 2, m), np.nan, dtype)
        return around, around[1:-1].T
    wide = {"every second column": 2 * n + 2, "part of rows": n + 5}.get(form, n)
    around = xp.full((m + 2, wide), np.nan, dtype)
    view = around[1:-1, {2 * n + 2: slice(1, -1, 2), n + 5: slice(2, n + 2)}.get(wide, slice(None))]
    return around, view[::-1, ::-1] if form == "backwards" else view


def multiplied(xp: Any, each: Product, q: gq.QuantArray) -> list[tuple[Any, Any]]:
    """Activations and results on the host: of one product, or of each replay of a graph."""
    (n, k), on_gpu = q.shape, xp is not np
    around, out = (None, None) if each.out_form is None else room(xp, (each.m, n), each.dtype, each.out_form)
    asked = {"kernel": each.kernel, "out": out, "dtype": each.dtype}
    found = []
    stream = xp.cuda.Stream(non_blocking=True) if on_gpu and each.way != "call" else nullcontext()
    if on_gpu:
        xp.cuda.get_current_stream().synchronize()  # what was poisoned there
    with stream:
        x = formed(xp, each.x(k), each.x_form)
        if each.bias:
            asked["bias"] = xp.asarray(each.added(n))
        y = gq.linear(x, q, **asked)
        found.append((each.x(k), to_host(y).copy()))
        if on_gpu and each.way == "graph":
            stream.synchronize()
            stream.begin_capture()
            try:
                y = gq.linear(x, q, **asked)
            finally:
                graph = stream.end_capture()
            for more in (1, 2):
                x[...] = xp.asarray(each.x(k, more))
                y.fill(np.nan)
                graph.launch(stream)
                stream.synchronize()
                found.append((each.x(k, more), to_host(y).copy()))
        if around is not None:
            out[...] = np.nan
            assert np.isnan(to_host(around)).all(), f"{each} writes beside its out"
    return found


def together(xp: Any, products: list[Product], q: gq.QuantArray) -> list[list[tuple[Any, Any]]]:
    """Each in a thread of its own; all begin at once, before anything was prepared."""
    found: list[Any] = [None] * len(products)
    start = threading.Barrier(len(products))

    def work(i: int) -> None:
        start.wait()
        try:
            found[i] = multiplied(xp, products[i], q)
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(products))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


# --- judging ----------------------------------------------------------------------------------


def outside(each: Product, rung: Any, x: Any, y: Any, q: gq.QuantArray) -> Any:
    """Which elements of a result are farther from the oracle than the arithmetic of the rung allows."""
    assert y.dtype == each.dtype
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        as_they_are = rung.name in AS_HALVES and each.x_dtype == np.float16
        as_they_are &= rung.name != WEIGHTS_TOO or q.format.name not in WIDER
        most = reference.bound(x, q, rung.arithmetic)
        if as_they_are and rung.name == WEIGHTS_TOO:
            largest = np.abs(q.dequantize(np.float64)).max(1)
            most += 2.0**-9 * np.abs(x).sum(1, dtype=np.float64)[:, None] * largest
        want = reference.linear(x, q, "exact" if as_they_are else rung.arithmetic)
        if each.bias:
            before, want = np.abs(want), want + each.added(q.shape[0])
            most += 2 * UNIT * (before + np.abs(want))
        if each.dtype == np.float16:
            most += np.abs(want) * 2.0**-11 + 2.0**-25
            want[np.abs(want) + most > 65500] = np.nan
        return np.isfinite(want) & ~(np.abs(y.astype(np.float64) - want) <= most)


def check(xp: Any, fresh: np.random.Generator, name: str, kernels: Any) -> list[str]:
    """A round: one matrix, its values, and some products; the names of the rungs that served."""
    device = "cpu" if xp is np else "cuda"
    of = matrix(fresh, name)
    here = of.whole()
    there, here = of.of(here.to(device)), of.of(here)
    threads = bool(fresh.integers(3) == 0)
    ways = ("stream",) if threads else ("call", "stream", "graph")
    drawn = [product(fresh, of, kernels, ways) for _ in range(fresh.integers(1, 6))]
    able = [(each, rung) for each in drawn if (rung := rung_of(of, each, device)) is not None]
    without = {f"{device}:{stem}" for stem in BY_CUBLAS}
    able = [(each._replace(way="stream") if rung.name in without else each, rung) for each, rung in able]
    products = [each for each, _ in able]
    results = together(xp, products, there) if threads else [multiplied(xp, each, there) for each in products]
    for (each, rung), pairs in zip(able, results, strict=True):
        for x, y in pairs:
            wrong = outside(each, rung, x, y, here)
            first = np.argwhere(wrong)[:1].tolist()
            assert not wrong.any(), (
                f"{rung.name}, {of}, {each}: {wrong.sum()} beyond the bound, first {first}"
            )
    dtype = fresh.choice(DTYPES)
    with np.errstate(all="ignore"):
        same = np.array_equal(to_host(there.dequantize(dtype)), here.dequantize(dtype), equal_nan=True)
    assert same, f"{of}: other values as {np.dtype(dtype)}"
    return [rung.name for _, rung in able]
