#!/usr/bin/env python3
"""Write ggmlq/formats/_grids.npz: the code books of the IQ formats, read out of gguf-py.

A code book is data that no formula gives. A row is read by decoding a block that names
it: scale 1 in the half, no minus signs. Needs `pip install gguf`; ggmlq itself is not
imported, because its formats need the file that this tool writes. The tests compare the result
with whole blocks decoded by gguf-py and by libggml.

    python tools/make_grids.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

FILE = Path(__file__).parents[1] / "ggmlq" / "formats" / "_grids.npz"
ONE = np.float16(1)


def decode(blocks: np.ndarray, type_: Type, rows: int, width: int, unit: float) -> np.ndarray:
    """The code book whose rows 0, 1, 2 … are named by blocks in this order."""
    values = dequantize(blocks.view(np.uint8).reshape(len(blocks), -1), type_)
    book = values.reshape(rows, width) / np.float32(unit)
    assert np.array_equal(book, np.rint(book)), type_
    return book.astype(np.int8)


def iq2_xxs() -> np.ndarray:
    """256 rows of 8; a run of 32 weights has four row bytes, then a word of signs and scale 0."""
    blocks = np.zeros(8, [("d", "<f2"), ("runs", [("rows", "u1", 4), ("word", "<u4")], 8)])
    blocks["d"] = ONE
    blocks["runs"]["rows"] = np.arange(256).reshape(8, 8, 4)
    return decode(blocks, Type.IQ2_XXS, 256, 8, 0.125)


def iq2_xs() -> np.ndarray:
    """512 rows of 8, named by the low nine bits of 16."""
    blocks = np.zeros(16, [("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
    blocks["d"] = ONE
    blocks["qs"] = np.arange(512).reshape(16, 32)
    return decode(blocks, Type.IQ2_XS, 512, 8, 0.125)


def iq2_s() -> np.ndarray:
    """1024 rows of 8: eight bits in qs, two in qh."""
    names = [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
    blocks = np.zeros(32, names)
    blocks["d"] = ONE
    row = np.arange(1024).reshape(32, 32)
    blocks["qs"] = row & 255
    high = (row >> 8).reshape(32, 8, 4)
    blocks["qh"] = (high << np.array([0, 2, 4, 6])).sum(axis=-1)
    return decode(blocks, Type.IQ2_S, 1024, 8, 0.125)


def iq3_xxs() -> np.ndarray:
    """256 rows of 4, a byte each."""
    blocks = np.zeros(4, [("d", "<f2"), ("qs", "u1", 64), ("words", "<u4", 8)])
    blocks["d"] = ONE
    blocks["qs"] = np.arange(256).reshape(4, 64)
    return decode(blocks, Type.IQ3_XXS, 256, 4, 0.25)


def iq3_s() -> np.ndarray:
    """512 rows of 4: eight bits in qs, one in qh."""
    names = [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
    blocks = np.zeros(8, names)
    blocks["d"] = ONE
    row = np.arange(512).reshape(8, 64)
    blocks["qs"] = row & 255
    blocks["qh"] = np.packbits(row >> 8, axis=-1, bitorder="little")
    return decode(blocks, Type.IQ3_S, 512, 4, 1)


def iq1() -> np.ndarray:
    """2048 rows of 8 (shared by iq1_s and iq1_m): eight bits in qs, three in qh; minus the 1/8."""
    blocks = np.zeros(64, [("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
    blocks["d"] = ONE
    row = np.arange(2048).reshape(64, 32)
    blocks["qs"] = row & 255
    high = (row >> 8).reshape(64, 8, 4)
    blocks["qh"] = (high << np.array([0, 3, 6, 9])).sum(axis=-1)
    eighths = decode(blocks, Type.IQ1_S, 2048, 8, 0.125)
    return (eighths - 1) // 8


def main() -> int:
    """Read all code books, write the file or compare it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    check = parser.parse_args().check
    makers = (iq1, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s)
    books = {make.__name__: make() for make in makers}
    for name, book in books.items():
        print(f"{name:8} {book.shape[0]:5} rows of {book.shape[1]}, levels {np.unique(book).tolist()}")
    if not check:
        np.savez_compressed(FILE, **books)
        return 0
    with np.load(FILE) as stored:
        wrong = [n for n in books if n not in stored or not np.array_equal(stored[n], books[n])]
    print(f"differ: {', '.join(wrong)}" if wrong else f"{FILE.name} holds the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
