"""Cells of benchmarks beside a peer, drawn by a seed, and a summary of them: share ahead, mean, worst.

Nobody has tuned for such a cell. Rows, tokens, queries and positions are log-uniform; weights have a multiple
of 32 rows, and as many columns as blocks allow. Of every four products one has as many rows as a tile, a
power of two: a summary has a line for these.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

ROWS, SIDES, POSITIONS, EXPERTS = (1, 4096), (256, 32768), (256, 65536), (4, 256)  # least and most
MOST_WEIGHTS, MOST_EXPERT_WEIGHTS, MOST_CACHE = 250e6, 1e9, 1 << 27  # numbers of a cell
WIDTHS, KV_HEADS, MOST_GROUP, MOST_USED = (64, 128, 128, 256), (1, 2, 4, 8, 16), 8, 8
DECODED = 3  # of so many cells of attention one decodes a token, one has a whole prompt


class Product(NamedTuple):
    """Rows of activations, rows of weights, columns of both."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


class Attention(NamedTuple):
    """The last ``queries`` of so many positions, causal."""

    queries: int
    positions: int
    heads: int
    kv_heads: int
    width: int

    def __str__(self) -> str:
        return f"{self.heads}/{self.kv_heads}x{self.width} {self.queries}x{self.positions}"


class Experts(NamedTuple):
    """Tokens, each with ``used`` of so many experts."""

    tokens: int
    experts: int
    used: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.experts}/{self.used} {self.n}x{self.k} T={self.tokens}"


def log_uniform(rng: np.random.Generator, span: tuple[int, int], step: int = 1) -> int:
    """A multiple of ``step`` of a span, as often below its geometric mean as above it."""
    least, most = span
    return max(step, step * round(least * (most / least) ** rng.random() / step))


def is_tile(m: int) -> bool:
    """True for a power of two."""
    return m & (m - 1) == 0


def products(seed: int, count: int, step: int = 64) -> list[Product]:
    """Products whose K is a multiple of ``step``."""
    rng, cells = np.random.default_rng((seed, 0)), list[Product]()
    while len(cells) < count:
        m, n, k = log_uniform(rng, ROWS), log_uniform(rng, SIDES, 32), log_uniform(rng, SIDES, step)
        if n * k <= MOST_WEIGHTS:
            cells.append(Product(1 << round(np.log2(m)) if len(cells) % 4 == 3 else m, n, k))
    return cells


def attention(seed: int, count: int) -> list[Attention]:
    """In turns a token to decode, some queries of many positions, and a whole prompt."""
    rng, cells = np.random.default_rng((seed, 1)), list[Attention]()
    while len(cells) < count:
        positions, width = log_uniform(rng, POSITIONS), int(rng.choice(WIDTHS))
        queries, kv_heads = log_uniform(rng, (2, 512)), int(rng.choice(KV_HEADS))
        heads, prompt = kv_heads * int(rng.integers(1, MOST_GROUP + 1)), min(positions, ROWS[1])
        kinds = (1, positions), (min(queries, positions), positions), (prompt, prompt)
        if kv_heads * positions * width <= MOST_CACHE:
            cells.append(Attention(*kinds[len(cells) % DECODED], heads, kv_heads, width))
    return cells


def experts(seed: int, count: int, step: int = 64) -> list[Experts]:
    """Mixtures whose K is a multiple of ``step``."""
    rng, cells = np.random.default_rng((seed, 2)), list[Experts]()
    while len(cells) < count:
        tokens, number, used = (
            log_uniform(rng, ROWS), log_uniform(rng, EXPERTS), int(rng.integers(1, MOST_USED + 1))
        )  # fmt: skip
        n, k = log_uniform(rng, SIDES, 32), log_uniform(rng, SIDES, step)
        if number * n * k <= MOST_EXPERT_WEIGHTS:
            cells.append(Experts(tokens, number, min(used, number), n, k))
    return cells


def add_options(parser: argparse.ArgumentParser, count: int) -> None:
    """``--draw`` and ``--seed`` of a benchmark."""
    parser.add_argument("--draw", type=int, default=count, help="so many cells (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6), help="of the cells; a new one is printed"
    )


class Share(NamedTuple):
    """The speed of ours over that of a peer, over some cells."""

    name: str
    count: int
    ahead: float  # share of cells where ours is at least as fast
    mean: float  # geometric
    least: float
    worst: object  # the cell of that

    def __str__(self) -> str:
        return (
            f"{self.name}: ahead in {self.ahead:.0%} of {self.count}, mean {self.mean:.2f}, "
            f"least {self.least:.2f} ({self.worst})"
        )


def summary(ratios: Iterable[tuple[str, object, float]]) -> Iterator[Share]:
    """The share of each name; products whose rows are a power of two have one of their own, too.

    ``ratios``: a name, a cell, and how many times as fast as the peer ours is.
    """
    named: dict[str, list[tuple[float, object]]] = {}
    for name, cell, ratio in ratios:
        named.setdefault(name, []).append((ratio, cell))
        if isinstance(cell, Product) and is_tile(cell.m):
            named.setdefault(f"{name}, rows a power of two", []).append((ratio, cell))
    for name, pairs in named.items():
        values: Any = np.array([ratio for ratio, _ in pairs])
        least, worst = min(pairs, key=lambda pair: pair[0])
        mean = float(np.exp(np.log(values).mean()))
        yield Share(name, len(pairs), float((values >= 1).mean()), mean, least, worst)


def shares_of_products(figures: Iterable[dict[str, Any]]) -> Iterator[Share]:
    """Each type of linear_peers.py's figures beside each peer."""
    return summary(
        (f"{f['format']} beside {peer}", Product(f["M"], f["N"], f["K"]), ratio)
        for f in figures
        for peer, ratio in f["ours is faster by"].items()
    )


def shares_of_attention(rows: list[dict[str, Any]]) -> Iterator[Share]:
    """Each type of attention_peers.py's rows beside torch on float16, by the queries of a cell."""
    torch = {row["cell"]: row["torch"] for row in rows if row.get("torch")}
    return summary(
        (f"{row['type']}, {_queries(row)}", row["cell"], torch[row["cell"]] / row["us"])
        for row in rows
        if row.get("cell") in torch
    )


def _queries(row: dict[str, Any]) -> str:
    if row["queries"] == 1:
        return "a token"
    return "a whole prompt" if row["queries"] == row["positions"] else "some queries, torch without a mask"
