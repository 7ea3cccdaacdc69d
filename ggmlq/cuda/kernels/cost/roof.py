"""Floors and estimates of products on any card, from its data sheet: what ``gq.kernels(card=…)`` shows.

A **floor** is the longer of two times: all bytes of weights, activations and results through the card's
memory at its full speed, and all operations on its tensor cores at the boost clock. No kernel is faster,
unless its weights are in the L2 cache.

An **estimate** scales what a kernel took on one H200: the weights that a multiprocessor unpacks in a clock,
the operations that it does in one, and a share of the memory's speed. Where a card's units are slower than
that, the kernel reaches ``REACHED_SHARE`` of their speed. Nothing of it was measured on other cards. Only
kernels that ``auto`` takes have one; mma.py counts clocks for its kernels, and no choice depends on these.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ....dispatch.card import Card
from ....dispatch.ladder import Problem
from ....dispatch.problems import Linear, ScaledLinear
from ....formats import BlockFormat
from .stage import SHARE, at_one_time

GEFORCE = "GeForce"  # whose tensor cores sum floats in float32 at half their speed
OLD_FLOAT_RATE = 128  # operations in float32 a clock and multiprocessor, before 8.6 and on 8.0
# Operations a clock and multiprocessor by capability: on float32; int8 with dp4a; tensor cores on bfloat16
# (float16 on 7.5), on int8, on floats of 8 bits. 0: it has none.
RATES = {
    (7, 5): (OLD_FLOAT_RATE, 512, 1024, 2048, 0),
    (8, 0): (OLD_FLOAT_RATE, 512, 2048, 4096, 0),
    (8, 6): (256, 512, 1024, 2048, 0),
    (8, 9): (256, 512, 1024, 2048, 2048),
    (9, 0): (256, 512, 4096, 8192, 8192),
    (10, 0): (256, 512, 8192, 16384, 16384),
    (12, 0): (256, 512, 1024, 2048, 2048),
}
UNITS = "float32", "dp4a", "bfloat16", "int8", "float8"
REACHED_SHARE = 0.75  # share of a unit's operations that a kernel reaches where the unit limits it


# The units of kernels of 8-bit codes; codes of integers all take that of int8.
CODE_UNITS = {
    "cuda:widen": "bfloat16", "cuda:mma_int8": "int8", "cuda:mma_e4m3": "float8", "cuda:persistent": "float8",
    "cuda:small_m": "float8", "cuda:split_k": "float8",
}  # fmt: skip


class RungCost(NamedTuple):
    """The speed of a kernel of blocks on an H200."""

    unit: str  # of UNITS
    weights: float  # that a multiprocessor unpacks in a clock
    operations: float  # that it does in a clock


# By the times for q4_0 weights of 4096 × 14336 in bench/results/ladder_h200.json, less those of memory:
# weights by that of one row, operations by that of the most rows. tests/test_cards.py compares them.
COSTS = {
    "cuda:dp4a": RungCost("dp4a", 1.024, 52.25),
    "cuda:registers": RungCost("dp4a", 0.2876, 288.4),
    "cuda:dequant_bf16": RungCost("bfloat16", 2.826, 2408),
    "cuda:gemv": RungCost("bfloat16", 37.18, 728.5),
    "cuda:gemv_int16": RungCost("int8", 58.05, 232.2),
}
# Kernels of blocks that multiply bytes on tensor cores, for floors.
BYTE_KERNELS = "cuda:mma", "cuda:gemv_int16", "cuda:mma_q8"
START_US = 2.0  # to start a kernel, and to end


def rate(card: Card, unit: str) -> int:
    """Operations a clock and multiprocessor of a unit; those of the nearest older capability of the table."""
    known = max((each for each in RATES if each <= card.capability), default=min(RATES))
    return RATES[known][UNITS.index(unit)]


def peak(card: Card, unit: str) -> float:
    """Billion operations a second of a unit of a card; 0 where it has none, or its clock is not known."""
    return card.multiprocessors * card.clock * rate(card, unit)


def halved(card: Card, unit: str) -> bool:
    """True for units that sum in float32 at half their speed."""
    return GEFORCE in card.name and card.capability >= (8, 6) and unit in ("bfloat16", "float8")


def floor(problem: Problem, kernel: str) -> float | None:
    """Microseconds that no kernel like this can go below; None where a problem or its card has no facts."""
    card = problem.card
    if card is None or not card.bandwidth or not card.clock:
        return None
    if isinstance(problem, Linear):
        unit = "int8" if kernel in BYTE_KERNELS else "bfloat16"
        weight, activation = problem.format.bits_per_weight / 8, 2.0
    elif isinstance(problem, ScaledLinear):
        unit, weight, activation = "int8" if problem.integer else "float8", 1.0, 1.0
    else:
        return None
    m, n, k = problem.m, problem.n, problem.k
    nbytes = n * k * weight + m * k * activation + 2.0 * m * n
    operations = max(peak(card, unit), peak(card, "bfloat16"))
    return max(nbytes / card.bandwidth, 2.0 * m * n * k / operations) / 1e3


def estimate(problem: Problem, kernel: str) -> float | None:
    """Estimated microseconds of a kernel on a card; None for other kernels."""
    card = problem.card
    if card is None or not card.clock or not isinstance(problem, Linear | ScaledLinear):
        return None
    cost, m, n, k = _cost(problem, kernel), problem.m, problem.n, problem.k
    if cost is None:
        return None
    bits = problem.format.bits_per_weight if isinstance(problem, Linear) else 8
    activation = 4.0 if isinstance(problem, Linear) else 1.0
    nbytes = n * k * bits / 8 + activation * m * k + 4.0 * m * n
    most = REACHED_SHARE * rate(card, cost.unit) / (2 if halved(card, cost.unit) else 1)
    operations = min(cost.operations, most or cost.operations)
    clocks = card.multiprocessors * card.clock * 1e3  # of all multiprocessors, in a microsecond
    working = at_one_time(n * k / (cost.weights * clocks), 2.0 * m * n * k / (operations * clocks))
    return START_US + at_one_time(nbytes / 1e6 / (SHARE * card.memory), working)


def _cost(problem: Linear | ScaledLinear, kernel: str) -> RungCost | None:
    """The cost of a kernel; those of 8-bit codes are limited by memory and their unit alone."""
    if isinstance(problem, Linear):
        return COSTS.get(kernel) if isinstance(problem.format, BlockFormat) else None
    unit = CODE_UNITS.get(kernel)
    if unit is None:
        return None
    return RungCost("int8" if problem.integer else unit, math.inf, math.inf)
