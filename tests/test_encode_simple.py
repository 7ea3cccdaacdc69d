"""Compiled encoders without a search write the bytes that ``pack`` writes, on all kinds of data."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from ggmlq.formats import FORMATS
from ggmlq.testing.compare import assert_same_blocks
from ggmlq.testing.rows import KINDS, rows

SIMPLE = [
    fmt
    for fmt in FORMATS.values()
    if fmt.can_quantize
    and getattr(fmt, "search", "never") != "always"
    and getattr(fmt, "pack", True) is not None
    and importlib.util.find_spec(f"ggmlq.cpu.encode.{fmt.name.lower()}")
]


def encoded(fmt, x):
    blocks = np.zeros((len(x), fmt.row_bytes(x.shape[1])), np.uint8)
    importlib.import_module(f"ggmlq.cpu.encode.{fmt.name.lower()}").encode(x, None, blocks)
    return blocks.view(fmt.dtype)


def check(fmt, x):
    assert_same_blocks(encoded(fmt, x), fmt.encode(x), fmt, x)


def test_all_simple_formats_are_here():
    assert {fmt.name for fmt in SIMPLE} >= {
        "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q8_K", "q1_0", "q2_0",
        "tq1_0", "tq2_0", "mxfp4", "nvfp4",
    }  # fmt: skip


@pytest.mark.parametrize("fmt", SIMPLE, ids=lambda fmt: fmt.name)
def test_every_kind_of_row(fmt):
    seed = int(np.random.default_rng().integers(1 << 30))
    for kind in KINDS:
        check(fmt, rows(kind, 16, 1024, seed))


@pytest.mark.parametrize("fmt", SIMPLE, ids=lambda fmt: fmt.name)
def test_any_finite_bits(fmt):
    """Each block around a magnitude of its own, subnormals and overflowing reciprocals included."""
    rng = np.random.default_rng()
    exponents = rng.integers(0, 255, (64, 1024 // fmt.block_size, 1))
    near = np.clip(exponents - rng.integers(0, 5, (64, 1024 // fmt.block_size, fmt.block_size)), 0, 254)
    bits = near.astype(np.uint32) << 23 | rng.integers(0, 1 << 23, near.shape, np.uint32)
    bits |= rng.integers(0, 2, near.shape, np.uint32) << 31
    check(fmt, bits.view(np.float32).reshape(64, 1024))


def test_mxfp4_beside_every_power_of_two():
    """Its exponent is a rounded logarithm, which is not the float's own exponent near a power."""
    powers = np.arange(1, 255, dtype=np.int64)[:, None] << 23
    largest = (powers + np.arange(-64, 64)).astype(np.uint32).view(np.float32)
    x = np.zeros((*largest.shape, 32), np.float32)
    x[..., 7] = -largest
    x[..., 9] = largest / 3
    check(FORMATS["mxfp4"], x.reshape(len(x), -1))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_scalars_of_any_number(name):
    rng = np.random.default_rng()
    for n in (1, 31, 32, 33, 100):
        check(FORMATS[name], rng.standard_normal((1, n), np.float32))
    ties = np.arange(65536, dtype=np.uint32)[None] << 16 | 0x8000
    ties = np.ascontiguousarray(ties[np.isfinite(ties.view(np.float32))])[None].view(np.float32)
    check(FORMATS[name], ties)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    check(FORMATS[name], ((halves[1:] + halves[:-1]) / 2)[None])


PLAIN_CPU = """
import sys
sys.path.insert(0, sys.argv[1])
from test_encode_simple import SIMPLE, check
from ggmlq.testing.rows import rows
for fmt in SIMPLE:
    for kind in ("normal", "ties", "tiny", "huge"):
        check(fmt, rows(kind, 2, 512))
"""


def test_a_cpu_without_extensions():
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic"}
    command = [sys.executable, "-c", PLAIN_CPU, os.path.dirname(__file__)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
