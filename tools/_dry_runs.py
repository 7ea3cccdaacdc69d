"""The kernels of products with experts, with scales and of attention, which come with the package, on paper.

Products of many shapes run on cards that need not be there, and their launches are noted
(ggmlq/ops/dry_run.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.dispatch.card import Card, card_named
from ggmlq.formats import Format
from ggmlq.ops.dry_run import (
    RESULTS,
    ROWS,
    SHAPES,
    PaperArray,
    Tile,
    on_paper,
    paper,
    scaled,
    weights,
)

HOPPER = (9, 0)
CARDS = tuple(  # one of each kind of memory and instructions; of Hopper, those that differ in size or speed
    card_named("CARDS", name)
    for name in (
        "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "Tesla T4", "NVIDIA A100 80GB PCIe",
        "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090", "NVIDIA B200", "NVIDIA GeForce RTX 5090",
        "NVIDIA GB10",
    )
)  # fmt: skip
INPUTS = np.float32, np.float16
CODES = ("e4m3", "float32"), ("e4m3", "e8m0"), ("int8", "float32")
QUANTIZED, WIDTHS = ((1, 128), (128, 128), (1, None)), [128 << i for i in range(8)]
EXPERTS = (
    (8, 2, 14336, 4096),
    (8, 2, 4096, 14336),
    (128, 8, 768, 2048),
    (128, 8, 2048, 768),
    (64, 6, 1408, 2048),
    (32, 4, 2880, 2880),
    (256, 8, 2048, 7168),
    (4, 4, 512, 1024),
    (16, 1, 8192, 5120),
)  # all, used, N, K


def expert_kernels(fmt: Format, card: Card, rows: Iterable[int] = ROWS) -> list[Any]:
    """The kernels that a product with experts launches by itself."""
    with on_paper(card) as launched:
        for (experts, used, n, k), tokens in product(EXPERTS, rows):
            if k % fmt.block_size == 0:
                ids = np.zeros((tokens, used), np.int64).view(PaperArray)
                gq.expert_linear(paper((tokens, k), np.float32), weights(fmt, experts, n, k), ids)
    return list(dict.fromkeys(launched))


def scaled_kernels(
    code: str,
    tiles: tuple[Tile, Tile],
    card: Card,
    shapes: Iterable[tuple[int, int]] = SHAPES,
    rows: Iterable[int] = ROWS,
) -> list[Any]:
    """The kernels of ``x @ w.T`` with scales for these tiles of x and of w; of experts, too."""
    rows = tuple(rows)
    with on_paper(card) as launched:
        for dtype, (n, k), m in product(RESULTS, shapes, rows):
            gq.scaled_linear(scaled(code, tiles[0], m, k), scaled(code, tiles[1], n, k), dtype=dtype)
        for dtype, (experts, used, n, k), tokens in product(RESULTS, EXPERTS, rows):
            if (
                n % tiles[1][0] == 0 and card.capability == HOPPER
            ):  # others multiply one expert after the other
                ids = np.zeros((tokens, used), np.int64).view(PaperArray)
                x, w = scaled(code, tiles[0], tokens, k), scaled(code, tiles[1], experts, n, k)
                gq.expert_linear(x, w, ids, dtype=dtype)
    return list(dict.fromkeys(launched))


def float_kernels(
    code: str, tile: Tile, card: Card, shapes: Iterable[tuple[int, int]], rows: Iterable[int]
) -> list[Any]:  # fmt: skip
    """The kernels of ``x @ w.T``, x in floats, which are quantized first, with scales for this tile of w."""
    with on_paper(card) as launched:
        for dtype, (n, k), m in product(INPUTS, shapes, rows):
            gq.scaled_linear(paper((m, k), dtype), scaled(code, tile, n, k), dtype=dtype)
    return list(dict.fromkeys(launched))


def code_kernels(card: Card) -> list[Any]:
    """The kernels that quantize to codes with scales, of few rows and many, of rows of any length."""
    with on_paper(card) as launched:
        for (code, scale), dtype, tile, rows, k in product(CODES, INPUTS, QUANTIZED, (16, 4096), WIDTHS):
            gq.quantize_scaled(paper((rows, k), dtype), code, tile, scale=scale)
    return list(dict.fromkeys(launched))


# --- attention --------------------------------------------------------------------------------------

QUERIES = (1, 4, 7, 33, 190, 900)  # of each head, the last ones of a sequence
POSITIONS = (300, 4100)
GROUP = 4  # heads of queries for each of keys
WAYS: tuple[dict[str, Any], ...] = ({}, {"softcap": 50.0}, {"invariant": True})


def cache_kernels(
    card: Card, caches: Iterable[dict[str, Any]], queries: Iterable[int] = QUERIES,
    positions: Iterable[int] = POSITIONS, kinds: Iterable[str] = RESULTS,
) -> list[Any]:  # fmt: skip
    """The kernels that caches of these options launch: rows of floats come in, then queries attend."""
    counts = tuple(queries)
    with on_paper(card) as launched:
        for options, most, kind in product(caches, positions, kinds):
            if kind == "bfloat16":
                import_module("ml_dtypes")  # then NumPy knows the name
            cache = gq.KVCache(positions=most, device="cuda", **options)
            keys, values = (paper(rows.shape, kind) for rows in (cache.k, cache.v))
            cache.append(keys, *([] if options.get("shared") else [values]))
            for t, way in product(counts, ({},) if options.get("shared") else WAYS):
                q = paper((len(keys), GROUP * keys.shape[1], min(t, most), keys.shape[3]), kind)
                cache.attend(q, causal=True, dtype=kind, **way)
    return list(dict.fromkeys(launched))
