"""Reasons why kernels for 8-bit codes do not take a product, in words; None where they do."""

from __future__ import annotations

from ...codes import CODES
from ...dispatch.problems import INT32, ScaledLinear
from ..intrinsics.wgmma8 import STEP
from ..machine import tensor_maps

BYTE_CODES = [code for code in CODES.values() if code.kind == "integer" and code.bits == 8]
SHORTEST = 8  # columns of a group: shorter ones would be mostly zeros


def not_bytes(problem: ScaledLinear) -> str | None:
    """The reason if an operand's codes are no integers of 8 bits."""
    names = [code.name for code in BYTE_CODES]
    for operand in (problem.x, problem.w):
        if operand.code not in names:
            return f"multiplies integers of 8 bits, {operand.code} is none"
    return None


def too_large_for_int32(problem: ScaledLinear) -> str | None:
    """The reason if sums in int32 may overflow, or another kind of sums is asked for."""
    if problem.accumulate not in (None, "int32"):
        return "sums in int32"
    if problem.largest_sum > INT32:
        return f"sums in int32, and {problem.group} products may reach {problem.largest_sum:.3g}"
    return None


def too_short(problem: ScaledLinear) -> str | None:
    """The reason if the groups of columns that share a scale are too short."""
    if problem.varies and problem.group < SHORTEST:
        return f"takes groups of {SHORTEST} columns of K or more, these have {problem.group}"
    return None


def refuses_boxes(problem: ScaledLinear) -> str | None:
    """The reason if Hopper's copy engine and ``wgmma`` do not serve a problem."""
    card = problem.card
    if card is not None and card.capability != (9, 0):
        return "needs compute capability 9.0: other GPUs do not have these instructions"
    if max(problem.m, problem.n, problem.k) >= 1 << 31:
        return "takes up to 2**31 - 1 rows and columns"
    for name, operand in (("x", problem.x), ("w", problem.w)):
        if operand.c < problem.k and operand.c % STEP:
            return f"takes scales of {STEP} columns of K, or multiples; those of {name} have {operand.c}"
    return tensor_maps.missing(card)


def refuses_persistent(problem: ScaledLinear) -> str | None:
    """The reason if cuda:persistent does not serve a problem; integers need scales constant along K."""
    if not problem.integer:
        return refuses_boxes(problem)
    if problem.varies:
        return "takes integers under scales that do not vary along K"
    return not_bytes(problem) or too_large_for_int32(problem) or refuses_boxes(problem)
