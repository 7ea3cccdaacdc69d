"""Wrong orders, which the doctor imitates, of the codes, high bits or scales that a kernel reads in a block.

Each is an index array ``order``: element i gets the code (bit, scale) of element order[i]. The right order is
0, 1, 2 …
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..numbers import Index

Order = Index


def field_orders(n: int) -> Iterator[tuple[str, Order]]:
    """Wrong orders of the packed codes of a block of n: interleaved, split, halves exchanged …"""
    orders: dict[bytes, tuple[str, Order]] = {}
    spans = [span for span in (16, 32, 64, 128, 256) if n % span == 0]
    for span in spans:
        for parts in (2, 4):
            split = np.arange(span).reshape(parts, span // parts)
            _add(orders, f"interleaved by {parts} in {span}", split.T, n)
            _add(orders, f"interleaved by {parts} in {span}, high part first", split[::-1].T, n)
            _add(orders, f"parts of an interleaved {span} taken as split", split.reshape(-1, parts).T, n)
            _add(orders, f"parts of {span} in reverse", split[::-1], n)
        quarters = np.arange(span).reshape(2, 2, span // 4)
        _add(orders, f"split in {span // 2} instead of {span}", quarters.swapaxes(0, 1), n)
        _add(orders, f"{span} backwards", np.arange(span)[::-1], n)
    _add(orders, "neighbours exchanged", np.arange(n) ^ 1, n)
    for span in spans:  # wider units than a byte: words of 2, 4, 8 bytes read one after the other
        for width in (width for width in (2, 4, 8, 16) if 2 * width < span):
            units = np.arange(span).reshape(2, span // 2 // width, width)
            _add(orders, f"interleaved in {span} by units of {width}", units.swapaxes(0, 1), n)
    yield from orders.values()


def bit_orders(n: int) -> Iterator[tuple[str, Order]]:
    """Wrong orders of the high bits of a block of n: each from the place of another element."""
    orders: dict[bytes, tuple[str, Order]] = {}
    for name, order in field_orders(n):
        _add(orders, name, order, n)
    i = np.arange(n)
    _add(orders, "bits of each byte in reverse", i ^ 7, n)
    for step in (8, 16, 24, 32, 64, 128):
        if step < n:
            _add(orders, f"bit i xor {step}", i ^ step, n)
    for step in (1, -1, 4, -4, 8, -8, 12, -12, 16, -16, 32, -32, 64, -64):
        if abs(step) < n:
            _add(orders, f"bit i {step:+}", (i + step) % n, n)
            span = min(n, 32)
            _add(orders, f"bit i {step:+} in its {span}", i // span * span + (i + step) % span, n)
    for part in (n // 2, n // 4, n // 8, 16, 8):
        if part:
            _add(orders, f"bits of the first {part} for all", i % part, n)
            _add(orders, f"bits of the last {part} for all", n - part + i % part, n)
    if n == 256:
        _planes(orders, i)
    yield from orders.values()


def _planes(orders: dict[bytes, tuple[str, Order]], i: Order) -> None:
    """Planes of 32 elements: the wrong plane, or bytes and bits exchanged."""
    plane, place = i // 32, i % 32
    for flip in range(1, 8):
        _add(orders, f"plane p xor {flip}", (plane ^ flip) * 32 + place, 256)
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
        _add(orders, label, other * 32 + place, 256)
    _add(orders, "byte i / 8, bit i mod 8", i % 8 * 32 + i // 8, 256)
    _add(orders, "the inverse of byte i / 8, bit i mod 8", place * 8 + plane, 256)


def group_orders(n: int) -> Iterator[tuple[str, Order]]:
    """Wrong orders of the n scales of a super-block."""
    orders: dict[bytes, tuple[str, Order]] = {}
    for span in (n, n // 2, n // 4):
        if span < 2:
            continue
        i = np.arange(span)
        within = "" if span == n else f" in each {span}"
        _add(orders, f"reversed{within}", i[::-1], n)
        for step in (1, -1, 2, -2, 4, -4):
            _add(orders, f"index {step:+}{within}", (i + step) % span, n)
            _add(orders, f"index {step:+}{within}, ends kept", np.clip(i + step, 0, span - 1), n)
        for parts in (2, 4, 8):
            if span % parts == 0 and parts < span:
                _add(orders, f"interleaved by {parts}{within}", i.reshape(parts, -1).T, n)
                _add(orders, f"parts of {span // parts} repeated{within}", i % (span // parts), n)
                _add(orders, f"one scale for {parts} groups{within}", i // parts, n)
                _add(orders, f"the first of each {parts}{within}", i // parts * parts, n)
        _add(orders, f"the first for all{within}", i * 0, n)
    for flip in range(1, n):
        _add(orders, f"index xor {flip}", np.arange(n) ^ flip, n)
    for span in (span for span in (2, 4, 8) if span < n):  # a loop over spans with its own running index
        i = np.arange(n)
        for step in range(2 * span + 1):
            at = i // span * step + i % span
            if at.max() < n:
                _add(orders, f"every {span} groups the index advances by {step}", at, n)
    yield from orders.values()


def _add(orders: dict[bytes, tuple[str, Order]], name: str, order: Index, n: int) -> None:
    """Repeat an order of a span over n elements; leave out the right order and doubles."""
    flat = np.asarray(order, np.int64).reshape(-1)
    starts = np.arange(0, n, len(flat))
    full = (starts[:, None] + flat).reshape(-1)
    if (full != np.arange(n)).any():
        orders.setdefault(full.tobytes(), (name, full))
