"""The ladder of ``linear`` as a benchmark: rung by format by shape; one shape prints as one ladder.

    pytest bench/bench_ladder.py --benchmark-enable --benchmark-json ladder.json

On the GPU's clock, activations quantized in each call, weights prepared before; for few rows the
weights rotate, so that they come from memory. Without a GPU the CPU rungs run, on a smaller shape.
``tools/ladder_table.py`` makes tables and pictures of the file.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import GGMLQError
from ggmlq.formats import FORMATS
from ggmlq.problems import Linear
from ggmlq.testing.blocks import random_blocks
from ggmlq.testing.timing import GpuClock, roofs

DEVICE = "cuda" if find_spec("cupy") else "cpu"
LADDER = ("q4_0", "q8_0")
SHAPES = {
    "cuda": [(m, 4096, 14336) for m in (1, 8, 64, 256, 512, 4096)] + [(512, 4096, 4096)],
    "cpu": [(1, 4096, 4096), (64, 4096, 4096)],
}
OTHERS = ("q4_1", "q5_0", "q2_K", "q4_K", "q6_K", "mxfp4", "iq4_xs", "iq2_xxs")  # all kinds, by "auto" alone
SMOKE = (4, 64, 512)  # where the benchmark is disabled
ROTATED = 200e6  # bytes of weights, several times what the cache holds
FEW = 64  # rows up to which weights rotate


def case(kernel, name, shape):
    return pytest.param(kernel, name, shape, id=f"{name}-{'x'.join(map(str, shape))}-{kernel}")


def cases():
    for shape in SHAPES[DEVICE]:
        for name in LADDER:
            for rung in gq.kernels(device=DEVICE):
                if not rung.refuses(Linear.here(FORMATS[name], *shape, device=DEVICE)):
                    yield pytest.param(
                        rung.name, name, shape, id=f"{name}-{'x'.join(map(str, shape))}-{rung.name}"
                    )
    for name in OTHERS:
        for shape in SHAPES[DEVICE][:: 4 if DEVICE == "cuda" else 1]:
            yield case("auto", name, shape)


@pytest.fixture(scope="module")
def cupy():
    from ggmlq.cuda.machine import device

    try:
        return device.cupy()
    except GGMLQError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def clock(request):
    return GpuClock(request.getfixturevalue("cupy")) if DEVICE == "cuda" else None


@pytest.fixture(scope="module")
def roof(request):
    return roofs(request.getfixturevalue("cupy"), 4096, 4096, 14336) if DEVICE == "cuda" else {}


def operands(name, m, n, k, copies):
    """Random weights, the same blocks over and over along a row: only their sizes matter here."""
    fmt = FORMATS[name]
    few = random_blocks(fmt, n, min(k, 1024) // fmt.block_size)
    times = -(-k // 1024)
    raw = np.tile(few.view(np.uint8).reshape(n, -1), (1, times))
    size = (n, few.shape[1] * fmt.block_size * times)
    weights = [gq.QuantArray.from_bytes(raw, fmt, size) for _ in range(copies)]
    x = np.random.default_rng(0).standard_normal((m, size[1]), np.float32)
    return x, weights


@pytest.mark.parametrize(("kernel", "name", "shape"), list(cases()))
def bench_linear(benchmark, request, kernel, name, shape):
    m, n, k = shape = SMOKE if benchmark.disabled else shape
    problem = Linear.here(FORMATS[name], *shape, device=DEVICE)
    rung = gq.ladder.choose(problem, kernel)
    copies = 1 if m > FEW or DEVICE == "cpu" else 1 + int(ROTATED / FORMATS[name].row_bytes(k) / n)
    x, weights = operands(name, m, n, k, copies)
    benchmark.group = f"{name} M={m} N={n} K={k}"
    if DEVICE == "cpu":
        benchmark(rung.launch, x, weights[0], np.empty((m, n), np.float32))
    else:
        clock, cp = request.getfixturevalue("clock"), request.getfixturevalue("cupy")
        x, weights, out = cp.asarray(x), [q.to("cuda") for q in weights], cp.empty((m, n), np.float32)
        slow = rung.level < 4 and m > FEW
        repeats = weights if copies > 1 or slow else weights * 10
        run = clock.replay([lambda q=q: rung.launch(x, q, out) for q in repeats])
        benchmark._timer = clock
        benchmark.pedantic(run, rounds=3 if slow else 12, warmup_rounds=1)
    if benchmark.stats:
        seconds = benchmark.stats.stats.median
        benchmark.extra_info.update(
            kernel=rung.name, asked=kernel, format=name, M=m, N=n, K=k, us=round(seconds * 1e6, 2),
            TFLOPS=round(2e-12 * m * n * k / seconds, 3),
            weight_GBps=round(1e-9 * weights[0].nbytes / seconds, 1), **request.getfixturevalue("roof"),
        )  # fmt: skip
