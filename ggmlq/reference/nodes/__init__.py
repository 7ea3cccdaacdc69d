"""Oracles of the operations of ggml's graphs, each with a bound for every element.

    number.py       Number: float64 with the error that a right kernel may have; bounds follow from it
    registry.py     the table of operations, one use of an operation, and Result: which elements are wrong
    elementwise.py  sums, products, limits and functions element by element; gated functions
    copies.py       CPY, rows by ids, and what else moves elements: to the bit
    rows.py         norms, sums, means, orders, SOFT_MAX with masks, ALiBi and sinks; gradients of these
    rope.py         ROPE in all modes
    scores.py       q·k and weights times values of attention, in the arithmetic of any program
    attention.py    FLASH_ATTN_EXT
    recurrences.py  states that are carried from token to token; an indexer, connections of streams
    images.py       convolutions along two axes and three, pools, scaling, windows, relative positions

A bound is derived, not chosen: each step of an oracle adds the rounding of a float32 kernel to the errors of
its operands (``number.py``). Sums may be in any order. Some kernels have freedoms of their own: tables of
halves, a GPU's quick functions, sums in halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import attention, copies, elementwise, images, recurrences, rope, rows  # noqa: F401 (they fill OPERATIONS)
from .attention import ATTENTIONS
from .number import Number, freedoms
from .registry import NOT_COVERED, OPERATIONS, PRODUCTS, Operation, Result, evaluate, named_words

__all__ = [
    "ATTENTIONS", "NOT_COVERED", "OPERATIONS", "PRODUCTS", "Number", "Operation", "Result",
    "freedoms", "named_words", "node",
]  # fmt: skip


def node(op: str, inputs: Sequence[Any], params: Mapping[str, Any] | None = None) -> Result:
    """The right result of one operation of ggml, in float64, with a bound for each element.

    Parameters
    ----------
    op : str
        ggml's name of the operation: ``"RMS_NORM"``, ``"ROPE"``; of unary and gated ones ``"SILU"``.
    inputs : sequence
        The sources in ggml's order: arrays with the axes [ne3, ne2, ne1, ne0], a QuantArray for blocks,
        None for a source that is not there. A ``Number`` is the result of another operation: its errors go
        on into the bound.
    params : mapping, optional
        The operation's parameters by the names in ``OPERATIONS[op].words``; also ``"type"`` and
        ``"shape"`` of the result, where these do not follow from the sources.

    Returns
    -------
    Result
        ``.value`` and ``.bound``; ``.wrong(y)`` is the mask of elements of a kernel's y that are wrong.

    >>> import numpy as np, ggmlq as gq
    >>> x = np.array([[3.0, 4.0]], np.float32)
    >>> right = gq.reference.node("L2_NORM", [x], {"eps": 1e-6})
    >>> right.value.round(6).tolist(), bool(right.bound.max() < 1e-6)
    ([[0.6, 0.8]], True)
    >>> right.wrong(np.array([[0.6, 0.81]], np.float32)).tolist()
    [[False, True]]
    """
    return evaluate(op, inputs, params or {})
