"""One case of the ladder, on the clock of its device; disabled, a small product that is judged in float64.

On a GPU activations are quantized in each call, weights are prepared before; for few rows the weights
rotate, so that they come from memory. On an H200 all cases take less than three minutes, besides those that
kernels are compiled in, before a case is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from ...arrays.array import QuantArray
from ...arrays.blocks import random_weights
from ...base.devices import namespace, to_host
from ...dispatch.ladder import Rung, choose, rungs
from ...dispatch.problems import Linear
from ...formats import FORMATS
from ...reference.judgement import judged
from ...roofs.floors import Roofs, roofs_of
from ...roofs.timing import GpuClock, roofs

DEVICE = "cuda" if find_spec("cupy") else "cpu"
LADDER = ("q4_0", "q8_0")
Shape = tuple[int, int, int]
SHAPES: dict[str, list[Shape]] = {  # M, N, K
    "cuda": [(m, 4096, 14336) for m in (1, 8, 32, 64, 256, 512, 4096)] + [(512, 4096, 4096)],
    "cpu": [(1, 4096, 4096), (64, 4096, 4096)],
}
OTHERS = ("q4_1", "q5_0", "q2_K", "q4_K", "q6_K", "mxfp4", "iq4_xs", "iq2_xxs")  # all kinds, by "auto" alone
OTHER_SHAPES: dict[str, list[Shape]] = {
    "cuda": [(m, 4096, 14336) for m in (1, 512)],
    "cpu": SHAPES["cpu"],
}
LOW, MANY = 5, 512  # rungs below this level are slow, and not measured with more rows than this


@dataclass(frozen=True)
class Case:
    """A rung, or "auto", with a type of weights and a shape."""

    kernel: str
    level: int | None
    format: str
    shape: Shape
    device: str

    @property
    def group(self) -> str:
        """The cases that are compared with this one."""
        return "{} M={} N={} K={} on {}".format(self.format, *self.shape, self.device)

    @property
    def step(self) -> str:
        """The name within the group, which sorts as the ladder does."""
        name = self.kernel.partition(":")[2] or self.kernel
        return name if self.level is None else f"{self.level:02}_{name}"

    @property
    def name(self) -> str:
        """The name among all cases, the same in every folder that the benchmark is run from."""
        return "{}-M{}-N{}-K{}-{}-{}".format(self.format, *self.shape, self.device, self.step)


def cases(device: str = DEVICE) -> Iterator[Case]:
    """All cases of a device, the ladder from its lowest rung for each shape; then other types, by "auto"."""
    for shape in SHAPES[device]:
        for name in LADDER:
            for rung in rungs("linear", device):
                if is_measured(rung, name, shape):
                    yield Case(rung.name, rung.level, name, shape, device)
    for name in OTHERS:
        for shape in OTHER_SHAPES[device]:
            yield Case("auto", None, name, shape, device)


def is_measured(rung: Rung, name: str, shape: Shape) -> bool:
    """True where a rung serves a shape in less than a second."""
    if rung.device == "cuda" and rung.level < LOW and shape[0] > MANY:
        return False
    return not rung.refuses(Linear.here(FORMATS[name], *shape, device=rung.device))


SMOKE = (4, 64, 512)  # where the benchmark is disabled
ROTATED = 200e6  # bytes of weights, several times what the cache holds
FEW = 64  # rows up to which weights rotate


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
def test_rung(benchmark: Any, request: pytest.FixtureRequest, case: Case) -> None:
    """Time a rung, or judge it where benchmarks are disabled."""
    if case.device == "cuda":
        request.getfixturevalue("cupy")  # or the case is skipped
    m, n, k = SMOKE if benchmark.disabled else case.shape
    rung = choose(Linear.here(FORMATS[case.format], m, n, k, device=case.device), case.kernel)
    rotates = case.device == "cuda" and m <= FEW and not benchmark.disabled
    weights = weights_of(case, n, k, rotations(case, n, k) if rotates else 1)
    for q in weights:
        q.drop_prepared()  # a rung must not find what another one has laid out
    benchmark.group, benchmark.fullname = case.group, f"ladder[{case.name}]"
    x = np.random.default_rng(0).standard_normal((m, k), np.float32)
    if case.device == "cpu":
        y = np.empty((m, n), np.float32)
        benchmark(rung.launch, x, weights[0], y)
    else:
        y = on_gpu(benchmark, request, rung, x, weights)
    if benchmark.disabled:
        verdict = judged(to_host(y), x, weights[0].to("cpu"), rung)
        assert verdict.right, f"{case.name}: its worst row is off by {verdict.worst:.1e}"
    elif benchmark.stats:
        q = weights[0]
        facts = figures(case, rung, q, benchmark.stats.stats, roofs_of(namespace(q.raw), q.nbytes))
        benchmark.extra_info.update(facts, **peaks_of(case.device))


def on_gpu(benchmark: Any, request: pytest.FixtureRequest, rung: Rung, x: Any, weights: Any) -> Any:
    """Time a rung by the GPU's clock, as one CUDA graph of several products; the last result."""
    cupy = request.getfixturevalue("cupy")
    here, out = cupy.asarray(x), cupy.empty((len(x), len(weights[0])), cupy.float32)
    slow = rung.level < LOW and len(x) > FEW
    repeats = weights if len(weights) > 1 or slow else weights * 10
    clock = GpuClock(cupy)
    run = clock.replay([partial(rung.launch, here, q, out) for q in repeats])
    benchmark._timer = clock
    benchmark.pedantic(run, rounds=3 if slow else 12, warmup_rounds=1)
    return out


def figures(case: Case, rung: Rung, q: QuantArray, stats: Any, roof: Roofs) -> dict[str, Any]:
    """The facts that a result carries: columns are made of them, and tables of pages."""
    m, n, k = case.shape
    operations, nbytes = 2.0 * m * n * k, q.nbytes + 4.0 * m * (n + k)
    floor = max(roof.floors(rung, nbytes, operations))
    return {
        "step": case.step, "kernel": rung.name, "asked": case.kernel, "format": case.format,
        "M": m, "N": n, "K": k, "operations": operations, "bytes": nbytes, "floor": floor,
        "us": round(stats.median * 1e6, 2), "TFLOPS": float(f"{operations / stats.median / 1e12:.4g}"),
        "weight_GBps": float(f"{q.nbytes / stats.median / 1e9:.4g}"),
        "GFLOPS": operations / stats.min / 1e9, "GBps": nbytes / stats.min / 1e9, "share": floor / stats.min,
    }  # fmt: skip


def rotations(case: Case, n: int, k: int) -> int:
    """The number of copies of the weights that no cache holds."""
    return 1 + int(ROTATED / FORMATS[case.format].row_bytes(k) / n)


def weights_of(case: Case, n: int, k: int, copies: int) -> list[QuantArray]:
    """Copies of random weights on the device of a case."""
    return _weights(case.format, n, k, copies, case.device)


@lru_cache(2)
def _weights(name: str, n: int, k: int, copies: int, device: str) -> list[QuantArray]:
    fmt = FORMATS[name]
    raw = random_weights(fmt, n, k)
    return [QuantArray.from_bytes(raw, fmt, (n, k)).to(device) for _ in range(copies)]


@cache
def peaks_of(device: str) -> dict[str, float]:
    """The roofs that tables of a GPU name; none of a CPU."""
    if device == "cpu":
        return {}
    from ...cuda.driver.device import cupy as cupy_here

    return roofs(cupy_here(), 4096, 4096, 14336)


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy, where a GPU is."""
    from ...cuda.driver import device

    if device.capability() is None:
        pytest.skip("CuPy finds no GPU")
    return device.cupy()
