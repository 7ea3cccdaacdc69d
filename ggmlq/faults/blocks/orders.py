"""Wrong orders, which the doctor imitates, of the codes, high bits or scales that a kernel reads in a block.

Each is an index array ``order``: element i gets the code (bit, scale) of element order[i]. The right order is
0, 1, 2 …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np

from ..numbers import Index

Orders = Iterator[tuple[str, Index]]


def repeated(spans: Callable[[int], Iterator[tuple[str, Any]]]) -> Callable[[int], Orders]:
    """Orders of a block of n: those of a span, repeated, without the right order and without doubles."""

    @wraps(spans)
    def orders(n: int) -> Orders:
        seen = {np.arange(n).tobytes()}
        for name, order in spans(n):
            flat = np.asarray(order, np.int64).reshape(-1)
            whole = (np.arange(0, n, len(flat))[:, None] + flat).reshape(-1)
            if whole.tobytes() not in seen:
                seen.add(whole.tobytes())
                yield name, whole

    return orders


@repeated
def field_orders(n: int) -> Iterator[tuple[str, Any]]:
    """Wrong orders of the packed codes of a block of n: interleaved, split, halves exchanged …"""
    spans = [span for span in (4, 8, 16, 32, 64, 128, 256) if n % span == 0]
    for span in spans:
        for parts in (2, 4):
            split = np.arange(span).reshape(parts, span // parts)
            yield f"interleaved by {parts} in {span}", split.T
            yield f"interleaved by {parts} in {span}, high part first", split[::-1].T
            yield f"parts of an interleaved {span} taken as split", split.reshape(-1, parts).T
            yield f"parts of {span} in reverse", split[::-1]
        quarters = np.arange(span).reshape(2, 2, span // 4)
        yield f"split in {span // 2} instead of {span}", quarters.swapaxes(0, 1)
        yield f"{span} backwards", np.arange(span)[::-1]
    yield "neighbours exchanged", np.arange(n) ^ 1
    for span in spans:  # wider units than a byte: words of 2, 4, 8 bytes read one after the other
        for width in (width for width in (2, 4, 8, 16) if 2 * width < span):
            units = np.arange(span).reshape(2, span // 2 // width, width)
            yield f"interleaved in {span} by units of {width}", units.swapaxes(0, 1)


@repeated
def bit_orders(n: int) -> Iterator[tuple[str, Any]]:
    """Wrong orders of the high bits of a block of n: each from the place of another element."""
    yield from field_orders(n)
    i = np.arange(n)
    yield "bits of each byte in reverse", i ^ 7
    for step in (8, 16, 24, 32, 64, 128):
        if step < n:
            yield f"bit i xor {step}", i ^ step
    for step in (1, -1, 4, -4, 8, -8, 12, -12, 16, -16, 32, -32, 64, -64):
        if abs(step) < n:
            yield f"bit i {step:+}", (i + step) % n
            span = min(n, 32)
            yield f"bit i {step:+} in its {span}", i // span * span + (i + step) % span
    for part in (n // 2, n // 4, n // 8, 16, 8):
        if part:
            yield f"bits of the first {part} for all", i % part
            yield f"bits of the last {part} for all", n - part + i % part
    if n == 256:
        yield from _planes(i)


def _planes(i: Index) -> Iterator[tuple[str, Any]]:
    """Planes of 32 elements: the wrong plane, or bytes and bits exchanged."""
    plane, place = i // 32, i % 32
    for flip in range(1, 8):
        yield f"plane p xor {flip}", (plane ^ flip) * 32 + place
    for label, other in (
        ("plane p + 1", (plane + 1) % 8),
        ("plane p - 1", (plane - 1) % 8),
        ("plane p / 2", plane // 2),
        ("plane 2 p", plane * 2 % 8),
        ("plane p mod 4", plane % 4),
        ("plane p mod 2", plane % 2),
        ("even planes first", plane % 4 * 2 + plane // 4),
        ("planes in pairs", plane % 2 * 4 + plane // 2),
        ("plane p + 1 in its four", plane // 4 * 4 + (plane + 1) % 4),
        ("plane p - 1 in its four", plane // 4 * 4 + (plane - 1) % 4),
        ("the first plane of four", plane // 4 * 4),
        ("planes 0, 2, 1, 3 of four", plane // 4 * 4 + np.array([0, 2, 1, 3])[plane % 4]),
    ):
        yield label, other * 32 + place
    yield "byte i / 8, bit i mod 8", i % 8 * 32 + i // 8
    yield "the inverse of byte i / 8, bit i mod 8", place * 8 + plane


@repeated
def group_orders(n: int) -> Iterator[tuple[str, Any]]:
    """Wrong orders of the n scales of a super-block."""
    for span in (span for span in (n, n // 2, n // 4) if span >= 2):
        i = np.arange(span)
        within = "" if span == n else f" in each {span}"
        yield f"reversed{within}", i[::-1]
        for step in (1, -1, 2, -2, 4, -4):
            yield f"index {step:+}{within}", (i + step) % span
            yield f"index {step:+}{within}, ends kept", np.clip(i + step, 0, span - 1)
        for parts in (2, 4, 8):
            if span % parts == 0 and parts < span:
                yield f"interleaved by {parts}{within}", i.reshape(parts, -1).T
                yield f"parts of {span // parts} repeated{within}", i % (span // parts)
                yield f"one scale for {parts} groups{within}", i // parts
                yield f"the first of each {parts}{within}", i // parts * parts
        yield f"the first for all{within}", i * 0
    i = np.arange(n)
    for flip in range(1, n):
        yield f"index xor {flip}", i ^ flip
    for span in (span for span in (2, 4, 8) if span < n):  # a loop over spans with its own running index
        for step in range(2 * span + 1):
            at = i // span * step + i % span
            if at.max() < n:
                yield f"every {span} groups the index advances by {step}", at
