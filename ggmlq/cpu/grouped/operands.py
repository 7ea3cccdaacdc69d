"""The arguments of kernels of products with experts: the expert of each use, addresses of all operands."""

from __future__ import annotations

from typing import NamedTuple

MANY = 32  # rows of a group that pay for expanding its panels


class Groups(NamedTuple):
    """Arguments of the kernel that sorts uses, and of every kernel that then multiplies.

    The caller has the memory of the tables, ``counts`` and all below it. It fills ``places``; the sorting
    fills the others.
    """

    ids: int  # address of int64 [uses]: the expert of each
    uses: int
    experts: int
    per: int  # uses of a row of activations
    x_rows: int  # address of the rows of activations
    row_bytes: int
    out: int  # address of float32 [uses, n]
    n: int
    runs: int  # of 32 columns: K / 32
    panels: int  # of a matrix
    line_bytes: int  # of a stored panel, or of a row of blocks
    ahead: int  # bytes ahead of which panels are prefetched, with few rows of activations; 0: not at all
    chunk: int  # rows of a group at most
    units: int
    counts: int  # address of int64 [2]: the number of groups, and rows of the expert with the most uses
    ends: int  # address of int64 [experts], of use to the sorting alone
    places: int  # address of int64 [experts]: where the panels lie, or the rows of blocks, of those in use
    groups: int  # address of int64 [G, 3]: expert, the first row in the tables, how many rows
    rows: int  # address of int64 [uses]: addresses of rows of activations, expert after expert
    outs: int  # address of int64 [uses]: addresses of their results
    cuts: (
        int  # address of int64 [units + 1]: the first panel of each work unit, of all groups counted through
    )
