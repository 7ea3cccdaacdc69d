"""The cost of judging a product of a real run: all of its elements, at the sizes of an 8B model.

    python -m pytest bench/bench_trace.py --benchmark-enable

The ids say which product of a layer it is; a layer of Llama 8B has two of 4096×4096, two of 1024×4096, two of
14336×4096 and one of 4096×14336.
"""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.trace.judging import Part, judge_parts

SHAPES = {"attn_q": (4096, 4096), "attn_k": (1024, 4096), "ffn_up": (14336, 4096), "ffn_down": (4096, 14336)}
LAYER = {"attn_q": 2, "attn_k": 2, "ffn_up": 2, "ffn_down": 1}  # how often in a layer


def part(fmt: str, m: int, n: int, k: int) -> Part:
    """A product that our own kernel of ggml's arithmetic made."""
    x = rows("normal", m, k, 1)
    q = gq.quantize(rows("normal", min(n, 256), k, 2), fmt)
    times = -(-n // len(q))
    whole = gq.QuantArray.from_bytes(np.tile(np.asarray(q.raw), (times, 1))[:n], fmt, (n, k))
    y = np.tile(gq.reference.linear(x, q, "ggml-cpu").astype(np.float32), (1, times))[:, :n]
    return Part(np.ascontiguousarray(y), x, whole)


@pytest.mark.parametrize("m", [1, 512])
@pytest.mark.parametrize("fmt", ["q4_K", "q6_K", "q8_0"])
@pytest.mark.parametrize("name", SHAPES)
def bench_judging(benchmark, request, name, fmt, m):
    n, k = SHAPES[name]
    if not request.config.getoption("--benchmark-enable"):  # as a smoke test: a sixteenth of it
        n, m = n // 16, min(m, 64)
    product = part(fmt, m, n, k)
    verdict = benchmark(judge_parts, [product], "CPU", m)
    assert verdict.judgement.ok
    benchmark.extra_info["in a layer"] = LAYER[name]
