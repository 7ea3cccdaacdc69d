"""Two mistakes that the doctor imitates: weights read from a wrong address, and the end of K left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...formats import FORMATS, Format
from ..explanation import Mistake
from ..numbers import Index
from .operand import Operand, operand


def wrong_strides(fmt: Format, raw: NDArray[np.uint8], columns: Index) -> Iterator[Mistake[Operand]]:
    """Rows of ``raw`` [N, bytes] read at n times a wrong stride, or with blocks at a wrong distance."""
    size, row = fmt.dtype.itemsize, raw.shape[1]
    blocks = row // size
    flat = raw.reshape(-1)
    if len(raw) < 2:
        return
    for stride, name in _strides(fmt, blocks, row).items():
        start = columns * stride
        addresses = start[:, None] + np.arange(row)
        yield _fetched(fmt, flat, addresses, f"row n read at n·{stride} bytes ({name}); rows have {row}")
    for step in (*range(-4, 0), *range(1, 5)):  # a wrong block size: the error grows along the row
        block = (columns[:, None] * blocks + np.arange(blocks)) * (size + step)
        addresses = (block[..., None] + np.arange(size)).reshape(len(columns), row)
        yield _fetched(fmt, flat, addresses, f"blocks read {size + step} bytes apart, they have {size}")


def _strides(fmt: Format, blocks: int, row: int) -> dict[int, str]:
    """Each wrong stride in bytes, with the text that names its cause."""
    size, k = fmt.dtype.itemsize, blocks * fmt.block_size
    names: dict[int, str] = {0: "no stride at all"}
    for step in (*range(1, 17), 32, 64):
        for sign in (1, -1):
            if blocks + sign * step > 0:
                much = "many" if sign > 0 else "few"
                names.setdefault(row + sign * step * size, f"{step} blocks too {much}")
    for to in (64, 128, 256, 512, 1024, 2048):
        padded = -(-k // to) * to
        if padded % fmt.block_size == 0:
            names.setdefault(fmt.row_bytes(padded), f"K padded to a multiple of {to}")
    for to in (4, 8, 16, 32, 64, 128, 256):
        names.setdefault(-(-row // to) * to, f"padded to a multiple of {to} bytes")
        names.setdefault(row // to * to, f"cut to a multiple of {to} bytes")
    for step in (1, 2, 4):
        names.setdefault(row + step, f"{step} bytes too many")
        names.setdefault(row - step, f"{step} bytes too few")
    for other, name in (
        (2 * row, "twice the row"), (row // 2, "half the row"), (k, "K bytes"), (k // 2, "K / 2 bytes"),
        (2 * k, "2·K bytes"), (blocks, "blocks taken for bytes"), (size, "one block"),
        (3 * row, "three rows"), (4 * row, "four rows"),
    ):  # fmt: skip
        names.setdefault(other, name)
    for other_format in FORMATS.values():
        if k % other_format.block_size == 0:
            names.setdefault(other_format.row_bytes(k), f"rows of {other_format.name}")
    names.pop(row, None)
    return {stride: name for stride, name in names.items() if stride >= 0}


def _fetched(fmt: Format, flat: NDArray[np.uint8], addresses: Index, name: str) -> Mistake[Operand]:
    inside = np.asarray(((addresses >= 0) & (addresses < flat.size)).all(axis=1))
    raw = np.ascontiguousarray(flat[addresses % flat.size])
    weights = operand(fmt, raw.view(fmt.dtype))
    return Mistake("row-stride", name, weights, columns=inside)


def short_rows(right: Operand, k: int) -> Iterator[Mistake[Operand]]:
    """The end of K left out: once with its constant terms left out too, and once with them kept."""
    lengths = {k - end: f"the last {end} of K" for end in (16, 32, 64, 96, 128, 160, 192, 224, 256, 512)}
    for tile in (32, 64, 128, 256, 512, 1024):
        lengths[k // tile * tile] = f"what is left of K after tiles of {tile}"
    for length in sorted(length for length in lengths if 0 <= length < k):
        name, where = f"{lengths[length]} dropped", {"K-blocks": {"missing": [(length, k)]}}
        if right.values is not None or length % right.group:
            values = right.dense.copy()
            values[:, length:] = 0
            yield Mistake("k-tail-dropped", name, right.but(values=values), where=where)
            continue
        stored, scale, offset = right.stored.copy(), right.scale.copy(), right.offset.copy()
        stored[:, length:] = 0
        scale[:, length // right.group :] = 0
        offset[:, length // right.group :] = 0
        short = right.but(stored=stored, scale=scale, offset=offset)
        yield Mistake("k-tail-dropped", name, short, where=where)
        if np.any(right.constant):
            constants = right.but(stored=stored)
            yield Mistake("k-tail-dropped", f"{name}, its constants kept", constants, where=where)
