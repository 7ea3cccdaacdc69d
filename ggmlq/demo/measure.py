"""The layers of `ggmlq demo`, judged in float64 and timed beside NumPy and llama.cpp."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..arrays.array import QuantArray
from ..base.devices import namespace, on_device_of, to_host
from ..base.threads import num_threads
from ..dispatch.ladder import Rung, choose
from ..dispatch.listing import Taken, taken
from ..dispatch.problems import Linear
from ..errors import ConfigError, GGMLQError, GGUFError
from ..gguf.metadata import missing
from ..llama import Bridge
from ..ops import linear, quantize
from ..reference.judgement import Judgement, judged, tolerance
from ..reference.metrics import nmse
from ..roofs.timing import GpuClock
from ..safetensors import either as files

# --- layers: a random one in several types, or one of each type and shape of a model ---------

FORMATS = ("f16", "q8_0", "q6_K", "q5_K", "q4_K", "q4_0", "mxfp4", "q2_K")
NAME = "a layer in several types"  # of the file that is written; another's file is never replaced
MOST = 1 << 26  # numbers in one array: half a GiB in float64, in which the check multiplies
KINDS = 12  # of layers of a model, the largest first

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Layer:
    """Weights [N, K] to be multiplied with. ``original``: the floats that they were made of, where known."""

    name: str
    q: QuantArray
    original: NDArray[np.float32] | None = None
    note: str = ""  # in what way it is not the whole tensor


def random_layer(rows: int, columns: int, path: Path, tell: Tell) -> tuple[list[Layer], float]:
    """A random layer in each of ``FORMATS``, saved and opened; also the seconds that opening took."""
    check_own(path)
    w = np.random.default_rng(7).normal(0, 0.02, (rows, columns)).astype(np.float32)
    layers = {}
    for name in FORMATS:
        tell(f"{name}: encoding")
        layers[name] = quantize(w, name)
    gguf.save(path, layers, {"general.name": NAME})
    start = time.perf_counter()
    file = gguf.open(path)
    opened = time.perf_counter() - start
    return [Layer(name, file[name], w) for name in FORMATS], opened


def check_own(path: Path) -> None:
    """Raise an error if the file exists and is not from an earlier run of the demo."""
    if not path.exists():
        return
    with contextlib.suppress(GGUFError), gguf.open(path) as file:
        if file.metadata.get("general.name") == NAME:
            return
    raise GGUFError(f"--save {path}: a file is there that no demo made; name another, this one would be lost")


def model_layers(path: str, globs: Sequence[str], tokens: int) -> list[Layer]:
    """The matrices of a model that fit the names, or without names one of each type and shape."""
    model: Any = files.open(path)
    matrices = {name: x for name in model if (x := _matrix(model, name)) is not None}
    if globs:
        names = [name for name in matrices if any(fnmatchcase(name, glob) for glob in globs)]
        if not names:
            missing(
                f"--tensor {globs[0]} of {path}", globs[0].strip("*"), matrices, "`ggmlq info` lists them"
            )
    else:
        names = list(_one_of_each(matrices))
    if not names:
        raise ConfigError(
            f"{path}: none of its {len(model)} tensors is a matrix; the demo multiplies with matrices; "
            "name a model, or leave MODEL out for a random layer"
        )
    return [_cut(name, matrices[name], tokens) for name in names]


def _matrix(model: Mapping[str, Any], name: str) -> QuantArray | None:
    """A tensor of two axes, or of the first expert; None for others, and for those that are not there."""
    if name in model.missing:  # type: ignore[attr-defined]
        return None
    x = model[name]
    if not isinstance(x, QuantArray) or x.ndim not in (2, 3) or not x.size or x.format.dtype.kind == "i":
        return None
    return x if x.ndim == 2 else x[0]


def _one_of_each(matrices: Mapping[str, QuantArray]) -> Iterable[str]:
    kinds: dict[Any, str] = {}
    for name, q in matrices.items():
        kinds.setdefault((q.format, q.shape), name)
    largest = sorted(kinds.values(), key=lambda name: -matrices[name].nbytes)[:KINDS]
    return [name for name in kinds.values() if name in largest]


def _cut(name: str, q: QuantArray, tokens: int) -> Layer:
    """A layer of as many rows of a matrix as float64 can check in reasonable time."""
    n, k = q.shape
    rows = min(n, MOST // k, MOST // tokens)
    if not rows or tokens * k > MOST:
        raise ConfigError(
            f"--tokens {tokens} with {name} {list(q.shape)}: the check multiplies up to {MOST:,} numbers; "
            "ask for fewer tokens"
        )
    note = f"the first {rows} of {n} rows of {name}" if rows < n else ""
    return Layer(name, q[:rows] if rows < n else q, None, note)


# --- products judged and timed ---------------------------------------------------------------

RUNS, SECONDS = 7, 0.3  # of a product, both at least: the fastest counts, for others use the machine too
MOST_RUNS = 300  # of llama.cpp
IN_A_ROW = 20  # on a GPU
LONG = 4096  # columns from which the bound grows, as the roundings of longer sums in float32 do
AGREEING = 1.1  # two times that differ by less are one
PAUSE = 0.1  # seconds, after which the threads of whoever was timed before have stopped looking for work
PATIENCE = 3.0  # seconds, after which fewer runs are enough


@dataclass(frozen=True)
class Row:
    """The figures of one layer; seconds of one product."""

    layer: Layer
    tokens: int
    choice: Taken  # the kernel, and the reason for it
    loss: float | None  # of the type, where the original is known
    judgement: Judgement
    first: float  # of the first product, which may compile and lays the weights out
    seconds: float
    numpy: float  # of float32 weights in NumPy
    theirs: float | None  # llama.cpp's

    @property
    def gflop(self) -> float:
        """Operations of one product, in 10**9."""
        return 2e-9 * self.tokens * prod(self.layer.q.shape)


def measured(layer: Layer, x: Any, device: str, ggml: Bridge | None, tell: Tell) -> Row:
    """The figures of one layer: multiply with it on a device, judge the product, and time it."""
    name, q = layer.name, layer.q.to(device)
    floats = np.asarray(layer.q, np.float32)
    loss = None if layer.original is None else float(nmse(floats, layer.original))
    with on_device_of("demo", q.raw):
        problem = Linear.here(q.format, len(x), *q.shape, device=q.device.partition(":")[0])
        here = namespace(q.raw).asarray(x)
        tell(f"{name}: the first product, which may compile")
        start = time.perf_counter()
        y = to_host(linear(here, q))
        first = time.perf_counter() - start
        tell(f"{name}: the same in float64")
        judgement = judged(y, x, layer.q, choose(problem))
        judgement = replace(judgement, bound=bound(judgement.rung, q.shape[1]))
        tell(f"{name}: timing")
        seconds = on_clock(lambda: linear(here, q), q)
    tell(f"{name}: timing NumPy's float32")
    time.sleep(PAUSE)
    numpy = settled(lambda: x @ floats.T)
    tell(f"{name}: timing llama.cpp" if ggml else f"{name}: done")
    time.sleep(PAUSE)
    theirs = None if ggml is None else their_seconds(ggml, x, layer.q, seconds)
    return Row(layer, len(x), taken([problem])[0], loss, judgement, first, seconds, numpy, theirs)


def bound(rung: Rung, columns: int) -> float:
    """The largest error of a right product with rows of so many columns."""
    return tolerance(rung) * max(1, columns / LONG)


def on_clock(work: Callable[[], object], q: QuantArray) -> float:
    """Seconds of the fastest run on a CPU; on a GPU those of one of many in a row, by its own clock."""
    if q.device == "cpu":
        return settled(work)
    clock = GpuClock(namespace(q.raw))
    replay = clock.replay([work] * IN_A_ROW)
    times = []
    for _ in range(RUNS):
        start = clock.now
        replay()
        times.append(clock.now - start)
    return min(times)


def settled(work: Callable[[], object]) -> float:
    """Seconds of the fastest run; it repeats until a second run is about as fast, or patience ends."""
    times: list[float] = []
    spent = 0.0
    while (len(times) < RUNS or spent < SECONDS or _alone(times)) and spent < PATIENCE:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
        spent += times[-1]
    return min(times)


def _alone(times: list[float]) -> bool:
    """True where no other run is as fast as the fastest, as where others use the machine."""
    fastest, second = sorted(times)[:2] if len(times) > 1 else (0.0, 1.0)
    return second > fastest * AGREEING


# --- llama.cpp --------------------------------------------------------------------------------


@contextlib.contextmanager
def peer(lib: Path | None = None) -> Iterator[Bridge | None]:
    """A context with a bridge to llama.cpp, or None if it is not installed; a named library must load."""
    with contextlib.ExitStack() as stack:
        bridge = None
        with contextlib.suppress(GGMLQError) if lib is None else contextlib.nullcontext():
            bridge = stack.enter_context(Bridge(lib))
        yield bridge


def their_seconds(ggml: Bridge, x: Any, q: QuantArray, ours: float) -> float | None:
    """llama.cpp's time for the same product in about as many runs, None if it cannot multiply so."""
    runs, many = [], min(MOST_RUNS, max(RUNS, round(SECONDS / ours)))
    for repack in (False, True):
        with contextlib.suppress(GGMLQError):  # not every type has a second layout
            runs.append(ggml.measure(x, q, threads=num_threads(), repack=repack, time_runs=many).fastest)
    time.sleep(PAUSE)
    return min(runs, default=None)
