"""Encoding and decoding of every format, ours and ggml's own on the same machine, one thread each.

pytest bench/bench_formats.py --benchmark-enable [--benchmark-json FILE]
"""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.testing.blocks import random_blocks
from ggmlq.testing.rows import rows

ROWS, COLUMNS = 512, 4096
BLOCKS = [fmt for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)]
DECODED = [fmt for fmt in BLOCKS if fmt.name != "q8_1"]  # ggml has no decoder for it
ENCODED = [fmt for fmt in BLOCKS if fmt.can_quantize]


def million_weights_per_second(benchmark, peer):
    """Note the rate beside the time; a disabled benchmark has none."""
    benchmark.extra_info["by"] = peer
    if benchmark.stats:
        benchmark.extra_info["Mw/s"] = round(ROWS * COLUMNS / benchmark.stats.stats.min / 1e6, 1)


@pytest.mark.parametrize("peer", ["ggmlq", "ggml"])
@pytest.mark.parametrize("fmt", DECODED, ids=lambda fmt: fmt.name)
def bench_decode(benchmark, fmt, peer, request):
    """Blocks to float32."""
    benchmark.group = f"decode {fmt.name}"
    blocks = random_blocks(fmt, ROWS, COLUMNS // fmt.block_size)
    q = gq.QuantArray.from_bytes(blocks, fmt, (ROWS, COLUMNS))
    if peer == "ggmlq":
        benchmark(q.dequantize)
    else:
        benchmark(request.getfixturevalue("libggml").dequantize, q.raw, fmt)
    million_weights_per_second(benchmark, peer)


@pytest.mark.parametrize("peer", ["ggmlq", "ggml"])
@pytest.mark.parametrize("fmt", ENCODED, ids=lambda fmt: fmt.name)
def bench_encode(benchmark, fmt, peer, request):
    """Float32 to blocks."""
    benchmark.group = f"encode {fmt.name}"
    x = rows("normal", ROWS, COLUMNS)
    assert np.isfinite(x).all()
    if peer == "ggmlq":
        benchmark(gq.quantize, x, fmt)
    else:
        benchmark(request.getfixturevalue("libggml").quantize, x, fmt)
    million_weights_per_second(benchmark, peer)
