"""The ladder of ``linear`` as a benchmark: rung by format by shape; one shape prints as one ladder.

    pytest bench/bench_ladder.py --benchmark-enable --benchmark-json ladder.json

On the GPU's clock, activations quantized in each call, weights prepared before; for few rows the
weights rotate, so that they come from memory. Without a GPU the CPU rungs run, on a smaller shape. On an H200
it takes less than three minutes, besides those that its kernels are compiled in, on all cores.
``tools/keep.py`` puts the file's figures beside those of other machines, for ``tools/table.py ladder``.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS
from ggmlq.testing.blocks import random_weights
from ggmlq.testing.timing import GpuClock, roofs

DEVICE = "cuda" if find_spec("cupy") else "cpu"
LADDER = ("q4_0", "q8_0")
SHAPES = {
    "cuda": [(m, 4096, 14336) for m in (1, 8, 32, 64, 256, 512, 4096)] + [(512, 4096, 4096)],
    "cpu": [(1, 4096, 4096), (64, 4096, 4096)],
}
OTHER_SHAPES = {"cuda": [(m, 4096, 14336) for m in (1, 512)], "cpu": SHAPES["cpu"]}
OTHERS = ("q4_1", "q5_0", "q2_K", "q4_K", "q6_K", "mxfp4", "iq4_xs", "iq2_xxs")  # all kinds, by "auto" alone
SMOKE = (4, 64, 512)  # where the benchmark is disabled
ROTATED = 200e6  # bytes of weights, several times what the cache holds
FEW = 64  # rows up to which weights rotate
LOW, MANY = 5, 512  # rungs below this level are slow, and not measured with more rows than this


def case(kernel, name, shape):
    return pytest.param(kernel, name, shape, id=f"{name}-{'x'.join(map(str, shape))}-{kernel}")


def takes(rung, name, shape):
    """True where a rung serves a shape in less than a second."""
    if DEVICE == "cuda" and rung.level < LOW and shape[0] > MANY:
        return False
    return not rung.refuses(Linear.here(FORMATS[name], *shape, device=DEVICE))


def cases():
    for shape in SHAPES[DEVICE]:
        for name in LADDER:
            for rung in gq.kernels(device=DEVICE):
                if takes(rung, name, shape):
                    yield case(rung.name, name, shape)
    for name in OTHERS:
        for shape in OTHER_SHAPES[DEVICE]:
            yield case("auto", name, shape)


@pytest.fixture(scope="module")
def cupy():
    from ggmlq.cuda.machine import device

    try:
        return device.cupy()
    except gq.errors.GGMLQError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def clock(cupy):
    return GpuClock(cupy)


@pytest.fixture(scope="module")
def compiled(cupy):
    """Compile kernels before the first is timed: all rungs for LADDER, the default path for OTHERS."""
    from ggmlq.cuda.machine import device
    from ggmlq.testing.ahead import compile_ahead

    capability = device.capability()
    compile_ahead({rung.name for rung in gq.kernels(device="cuda")}, set(LADDER), capability)
    kernels = {ladder.choose(Linear.here(FORMATS[name], *shape, device="cuda")).name
             for name in OTHERS for shape in OTHER_SHAPES["cuda"]}  # fmt: skip
    compile_ahead(kernels, set(OTHERS), capability)


@pytest.fixture(scope="module")
def roof(request):
    return roofs(request.getfixturevalue("cupy"), 4096, 4096, 14336) if DEVICE == "cuda" else {}


@lru_cache(2)
def weights_of(name, n, k, copies):
    """Random weights, the same blocks over and over along a row: only their sizes matter here."""
    fmt = FORMATS[name]
    raw = random_weights(fmt, n, k)
    here = [gq.QuantArray.from_bytes(raw, fmt, (n, k)) for _ in range(copies)]
    return [q.to("cuda") for q in here] if DEVICE == "cuda" else here


@lru_cache(2)
def rows_of(m, k):
    return np.random.default_rng(0).standard_normal((m, k), np.float32)


@pytest.mark.parametrize(("kernel", "name", "shape"), list(cases()))
def bench_linear(benchmark, request, kernel, name, shape):
    m, n, k = shape = SMOKE if benchmark.disabled else shape
    if DEVICE == "cuda":
        clock, cp = request.getfixturevalue("clock"), request.getfixturevalue("cupy")
        if not benchmark.disabled:
            request.getfixturevalue("compiled")
    problem = Linear.here(FORMATS[name], *shape, device=DEVICE)
    rung = ladder.choose(problem, kernel)
    copies = 1 if m > FEW or DEVICE == "cpu" else 1 + int(ROTATED / FORMATS[name].row_bytes(k) / n)
    x, weights = rows_of(m, k), weights_of(name, n, k, copies)
    for q in weights:
        q.drop_prepared()  # a rung must not find what another one has laid out
    benchmark.group = f"{name} M={m} N={n} K={k}"
    if DEVICE == "cpu":
        benchmark(rung.launch, x, weights[0], np.empty((m, n), np.float32))
    else:
        x, out = cp.asarray(x), cp.empty((m, n), np.float32)
        slow = rung.level < LOW and m > FEW
        repeats = weights if copies > 1 or slow else weights * 10
        run = clock.replay([lambda q=q: rung.launch(x, q, out) for q in repeats])
        benchmark._timer = clock
        benchmark.pedantic(run, rounds=3 if slow else 12, warmup_rounds=1)
    if benchmark.stats:
        seconds = benchmark.stats.stats.median
        benchmark.extra_info.update(
            kernel=rung.name, asked=kernel, format=name, M=m, N=n, K=k, us=round(seconds * 1e6, 2),
            TFLOPS=float(f"{2e-12 * m * n * k / seconds:.4g}"),
            weight_GBps=float(f"{1e-9 * weights[0].nbytes / seconds:.4g}"), **request.getfixturevalue("roof"),
        )  # fmt: skip
