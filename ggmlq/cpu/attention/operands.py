"""The arguments of the kernels of attention: addresses of operands, strides in bytes, and sizes."""

from __future__ import annotations

from typing import NamedTuple

TILE = 64  # positions whose scores are computed before their weights meet the values
STRETCH = 16 * TILE  # positions whose results are merged as one: a constant, so that sums have one order
ROWS = 64  # rows of queries of a work unit
LONG, MANY = 2 * TILE, 4 * ROWS  # positions of a tile, and rows of a unit, on the matrix unit
STEP = 32  # numbers of a row of its tiles, and rows of two of them
LANES = 16  # floats of a vector in the steps between the products
MORE = LANES  # numbers behind a row of a result: its largest score, the sum of its weights
LARGEST, SUM = 0, 1  # their places there


class Attend(NamedTuple):
    """The arguments. A row is a query of one head; those of all heads over one key are together."""

    q: int  # address of float32 [batch, heads, queries, width]
    k: int  # address of rows [batch, kv_heads, positions] of keys
    k_batch: int  # strides in bytes
    k_head: int
    k_row: int
    v: int
    v_batch: int
    v_head: int
    v_row: int
    mask: int  # address of float32, rows of whole tiles; 0 for none
    mask_batch: int  # strides in bytes, 0 where all have the same
    mask_head: int
    mask_query: int
    lengths: int  # address of int64 [batch]: positions that there are
    sinks: int  # address of float32 [heads], or 0
    slopes: int  # address of float32 [heads], or 0
    numbers: int  # address of float32 [2]: the scale, and the cap of scores or 0
    out: int  # address of float32 [batch, heads, queries, width_v]
    fill_k: int  # address of the code that decodes rows of keys (rows.py)
    fill_v: int  # and of values; 0 where these are the first columns of the keys
    parts: int  # address of float32 [units, stretches, rows, width_v in whole vectors + MORE], or 0
    heads: int
    kv_heads: int
    queries: int
    width: int
    width_v: int
    causal: int
    window: int  # positions that a query sees up to its own; 0 for all
    rows: int  # of a work unit, at most
    blocks: int  # of so many rows, of a key's head
    stretches: int


class Fill(NamedTuple):
    """Arguments of the code that decodes rows to float32."""

    rows: int  # address of the first row
    apart: int  # bytes from one row to the next
    lines: int  # the number of rows
    width: int  # columns
    values: int  # address of float32 [count, pitch]
    pitch: int
