"""The kernels that products launch on a card, which need not be there.

Rungs run on NumPy arrays that say they are CuPy's; a launch is noted and does nothing. So the list of
kernels that come with the package is what the chooser takes, and ``ggmlq cache fill`` compiles for cards of
other machines.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base import devices
from ..codes import CODES
from ..dispatch.card import Card
from ..dispatch.problems import ExpertLinear, Linear, Operand, ScaledLinear
from ..errors import GGMLQError
from ..formats import Format
from .expert_linear import expert_linear
from .linear import linear
from .quantize import quantize
from .scaled_linear import scaled_linear

VERSION = 13000  # of CUDA, which the driver knows


class PaperArray(np.ndarray):
    """An array that says it is CuPy's. Floats are never written to its memory, nor copied."""

    __module__ = "cupy"

    @property
    def device(self) -> Any:
        """A number and a ``with`` block."""
        return _Device()

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.dtype.kind != "f":  # ids count
            super().__setitem__(key, value)

    def astype(self, dtype: Any, *arguments: Any, **options: Any) -> Any:
        """An array of the same shape; of floats without their values."""
        if self.dtype.kind == "f" and self.dtype != dtype:
            return paper(self.shape, dtype)
        return super().astype(dtype, *arguments, **options)

    def get(self) -> Any:
        """The array as the host has it: ids are all 0, other values are those that the memory has."""
        return self.view(np.ndarray)

    @property
    def data(self) -> Any:
        """The address as CuPy has it."""
        return SimpleNamespace(device_id=0, ptr=self.ctypes.data)


class _Device(nullcontext[None]):
    id = 0


def paper(shape: tuple[int, ...], kind: Any) -> Any:
    """An array of a shape."""
    return np.empty(shape, kind).view(PaperArray)


@contextmanager
def on_paper(card: Card) -> Iterator[list[Any]]:
    """The kernels that are launched in a ``with`` block, on a card that need not be there."""
    machine = "ggmlq.cuda.driver"
    device, maps, launch = (
        import_module(f"{machine}.{name}") for name in ("device", "tensor_maps", "launch")
    )
    launched: list[Any] = []
    cupy: Any = _Cupy()
    stream = SimpleNamespace(ptr=0, is_capturing=lambda: False, synchronize=lambda: None)
    # device.cupy stays as it is, and gives what _usable holds: modules that are imported now take it by name.
    driver = device.Driver(
        PaperArray, cupy.empty, lambda: 0, lambda index: stream, np.may_share_memory, lambda index: card
    )
    nothing = SimpleNamespace(gemmEx=lambda *arguments: None)
    values: dict[Any, dict[str, Any]] = {
        device: {
            "driver": lambda: driver, "cublas": lambda: nothing, "card": lambda: card,
            "card_of": lambda index: card, "driver_version": lambda: VERSION,
            "_attribute": lambda which, index: card.shared, "_usable": [cupy],
        },
        maps: {
            "map_array": lambda box: paper((128,), np.uint8), "map_address": lambda box: 0,
            "words_behind_address": lambda box: (0,) * (maps.SIZE // 8 - 1),
        },
        launch.Kernel: {"__call__": lambda kernel, *arguments, **options: launched.append(kernel)},
        devices: {"cuda_device": lambda: device},
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(_module("cupy", cupy))
        for owner, names in values.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(owner, name, value))
        yield launched


@contextmanager
def _module(name: str, value: Any) -> Iterator[None]:
    """A module under a name, while others may be imported."""
    before = sys.modules.get(name)
    sys.modules[name] = value
    try:
        yield
    finally:
        sys.modules.pop(name)
        sys.modules.update({} if before is None else {name: before})


class _Cupy:
    """As much of CuPy as products ask for: NumPy's functions, whose arrays say that they are CuPy's."""

    ndarray = PaperArray
    cuda = SimpleNamespace(
        device=SimpleNamespace(get_cublas_handle=lambda: 0), Device=lambda number: _Device(),
        get_allocator=lambda: None,
        runtime=SimpleNamespace(deviceSynchronize=lambda: None, getDeviceCount=lambda: 1),
    )  # fmt: skip

    @staticmethod
    def matmul(a: Any, b: Any, out: Any) -> Any:
        """The result, which nobody computes."""
        return out

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        return lambda *arguments, **options: np.asarray(function(*arguments, **options)).view(PaperArray)


# --- products ---------------------------------------------------------------------------------------

SHAPES = (
    (256, 1024), (896, 4864), (1024, 4096), (2048, 2048), (2560, 9728), (4096, 4096),
    (4096, 14336), (6144, 4096), (8192, 8192), (14336, 4096), (28672, 8192), (128256, 4096),
    (11008, 512), (14336, 512),
)  # fmt: skip
ROWS = (
    1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20, 24, 32, 33, 40, 48, 56, 64, 80, 96, 112, 128, 144, 176, 200, 224,
    256, 300, 333, 384, 448, 512, 640, 777, 1024, 2048, 4096,
)  # fmt: skip
RESULTS = "float32", "float16", "bfloat16"
Tile = tuple[int, int | None]


def weights(fmt: Format, *shape: int) -> QuantArray:
    """Weights of a type, on paper."""
    size = shape[-1] // fmt.block_size * fmt.dtype.itemsize
    return QuantArray(fmt, shape, paper((*shape[:-1], size), np.uint8))


def product_kernels(
    fmt: Format, card: Card, shapes: Iterable[tuple[int, int]] = SHAPES, rows: Iterable[int] = ROWS,
    kinds: Iterable[Any] = (np.float32,), kernel: str = "auto",
) -> list[Any]:  # fmt: skip
    """The kernels that ``x @ q.T`` launches, from the file's bytes on, with activations of these dtypes."""
    with on_paper(card) as launched:
        for (n, k), m, kind in product(shapes, rows, kinds):
            if k % fmt.block_size == 0:
                linear(paper((m, k), kind), weights(fmt, n, k), kernel=kernel)
    return list(dict.fromkeys(launched))


def kernels_of(problem: Any, kernel: str = "auto", kind: Any = np.float32) -> list[Any]:
    """The kernels that a problem launches on its card; activations and results of blocks are of a dtype."""
    assert problem.card is not None
    with on_paper(problem.card) as launched:
        if isinstance(problem, Linear):
            x, q = paper((problem.m, problem.k), kind), weights(problem.format, problem.n, problem.k)
            linear(x, q, kernel=kernel, dtype=kind)
        elif isinstance(problem, ScaledLinear):
            x, w = _coded(problem.x, problem.m, problem.k), _coded(problem.w, problem.n, problem.k)
            scaled_linear(x, w, kernel=kernel, accumulate=problem.accumulate)
        else:
            assert isinstance(problem, ExpertLinear)
            ids = np.zeros((problem.t, problem.u), np.int64).view(PaperArray)
            sizes = problem.e, problem.n, problem.k
            if isinstance(problem.weights, Operand):
                assert problem.x is not None
                x, q = _coded(problem.x, problem.t, problem.k), _coded(problem.weights, *sizes)
            else:
                x, q = paper((problem.t, problem.k), kind), weights(problem.weights, *sizes)
            expert_linear(x, q, ids, kernel=kernel)
    return list(dict.fromkeys(launched))


def _coded(operand: Operand, *shape: int) -> Any:
    return scaled(operand.code, (operand.r, operand.c), *shape)


def scaled(code: str, tile: Tile, *shape: int) -> Any:
    """Codes with scales on paper."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    counts = -(-rows // tile[0]), 1 if tile[1] is None else -(-columns // tile[1])
    return ScaledArray(paper(shape, CODES[code].dtype), paper(counts, np.float32), code, tile)


def block_kernels(fmt: Format, card: Card) -> list[Any]:
    """The kernels that encode, decode and restore blocks of a type, where the card does so."""
    n, k = 256, 4096
    with on_paper(card) as launched:
        encodes = import_module("ggmlq.cuda.kernels.quantize").encoder(fmt) is not None
        works: list[Callable[[], Any]] = [
            *([partial(quantize, paper((n, k), np.float32), fmt)] if encodes else []),
            *(partial(weights(fmt, n, k).dequantize, dtype) for dtype in RESULTS),
            lambda: _dropped(weights(fmt, n, k), k),
        ]
        for work in works:
            with suppress(GGMLQError):  # of a type whose bytes are not restored
                work()
    return list(dict.fromkeys(launched))


def _dropped(q: QuantArray, k: int) -> None:
    linear(paper((1, k), np.float32), q)
    q.drop_raw()
    q.dequantize()
