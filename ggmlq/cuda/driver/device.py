"""The CUDA device: CuPy and a GPU, or an error that says what is missing; facts of the card.

Products of torch's tensors with weights in torch's memory need no CuPy: for them (serving.py) the functions
here give torch's device, streams and memory, by a library that has CuPy's names for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from ...base import missing
from ...base.system import CUDA, c_library
from ...dispatch import card as cards
from ...dispatch.card import Card
from ...errors import DeviceError, MissingDependencyError, UnsupportedError
from . import calls
from .calls import ADDRESS, INTEGER, WORD
from .serving import SERVING, torch_library

# The memory of products that a CUDA graph records: one pool for each graph.
#
# Products of a stream run one after the other, in replays too. So the memory between two kernels of one
# product serves the next product, as it does outside of graphs, and a hundred recorded products take the
# memory of the largest. Nobody else gets that memory while the graph exists. The driver raises a signal when
# the graph is destroyed: a semaphore, for a function of Python must not run on the driver's thread. Then the
# next recording, or the next preparation of weights, gives the memory back to the allocator that it came
# from.

SEMAPHORE = 64  # bytes, at least
UNSIGNED = ctypes.c_uint32
NO_WAIT, MOVE = UNSIGNED(1), UNSIGNED(1)  # flags of the driver for an object of a graph

_LOCK = threading.Lock()
# By the number of what is recorded and the device, until their graphs are destroyed.
_OF_CAPTURES: dict[tuple[int, int], GraphMemory] = {}
_SIGNALS: dict[int, Any] = {}  # semaphores that the driver still holds, by their addresses


class GraphMemory:
    """The pool of a graph's memory on a device."""

    def __init__(self, pool: Any, device: Any, signal: int) -> None:
        self.pool, self.device, self._signal, self._is_over = pool, device, signal, False

    def allocate(self, size: int) -> Any:
        """Memory for the products of the graph."""
        return self.pool.malloc(size)

    def look(self) -> bool:
        """True while the graph exists, or an array lies in its memory; else the memory is given back."""
        if self.pool is not None and (self._is_over or _raised(self._signal)):
            self._is_over = True
            with self.device:  # a pool of CuPy speaks of the current device alone
                self.pool.free_all_blocks()  # one that is dropped keeps its free blocks for good
                if not self.pool.used_bytes():
                    self.pool = None
        return self.pool is not None


def allocator(stream: int, device: Any, allocate: Any, keep: list[Any], make_pool: Any) -> Any:
    """An allocator for a stream that records a graph, of memory that lasts as long: of the graph's pool.

    Where the driver cannot tell a graph's end, ``keep`` holds each piece of memory that ``allocate`` gives.
    """
    give_back()
    try:
        number, graph = _capture(stream)
        with _LOCK:
            memory = _OF_CAPTURES.get((number, device.id))
            if memory is None:
                memory = GraphMemory(make_pool(), device, _signal_of(graph))
                _OF_CAPTURES[number, device.id] = memory
        return memory.allocate
    except (OSError, AttributeError, calls.CUDADriverError):

        def allocate_and_keep(size: int) -> Any:
            keep.append(allocate(size))
            return keep[-1]

        return allocate_and_keep


def give_back() -> None:
    """Give back the memory of graphs that were destroyed."""
    with _LOCK:
        for place, memory in list(_OF_CAPTURES.items()):
            if not memory.look():
                del _OF_CAPTURES[place]


def _capture(stream: int) -> tuple[int, Any]:
    """The number of what a stream records, and the graph."""
    status, number, graph = INTEGER(), WORD(), ADDRESS()
    calls.call(
        "cuStreamGetCaptureInfo_v2", ADDRESS(stream), ctypes.byref(status), ctypes.byref(number),
        ctypes.byref(graph), None, None,
    )  # fmt: skip
    return number.value, graph


@cache
def _semaphores() -> Any:
    """The library with the functions of semaphores."""
    return c_library()


def _signal_of(graph: Any) -> int:
    """The address of a semaphore that the driver raises when a graph and all that was made of it are gone."""
    library, buffer = _semaphores(), ctypes.create_string_buffer(SEMAPHORE)
    address, holder = ctypes.addressof(buffer), ADDRESS()
    library.sem_init(ADDRESS(address), 0, 0)
    post = ctypes.cast(library.sem_post, ADDRESS)
    calls.call("cuUserObjectCreate", ctypes.byref(holder), ADDRESS(address), post, UNSIGNED(1), NO_WAIT)
    _SIGNALS[address] = buffer
    calls.call("cuGraphRetainUserObject", graph, holder, UNSIGNED(1), MOVE)
    return address


def _raised(signal: int) -> bool:
    """True once, where a semaphore was raised."""
    if signal not in _SIGNALS or _semaphores().sem_trywait(ADDRESS(signal)):
        return False
    _SIGNALS.pop(signal, None)
    return True


# A GPU's context, made while Python imports CuPy: both together are most of the wait for a first product.
#
# The import is Python's work, the context the driver's, some tenths of a second each. CuPy finds and takes
# the same context, a GPU's primary one. Failures are ignored here: CuPy meets the same one, and reports it.


def warm_up(index: int) -> threading.Thread:
    """Start a thread that makes the context of a GPU, by its number."""
    thread = threading.Thread(target=_wake, args=(index,), name="ggmlq: a context", daemon=True)
    thread.start()
    return thread


def _wake(index: int) -> None:
    """Make the context and keep it: it lives as long as the process."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL(CUDA)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


_usable: list[ModuleType | None] = [None]  # CuPy, once it has found a GPU


def present() -> Any:
    """CuPy where it has served; else torch's library, if that has: for calls outside of a product."""
    if _usable[0] is None and torch_library.cache_info().currsize:
        return torch_library()
    return cupy()


def cupy() -> Any:
    """CuPy with at least one usable GPU, or an error that says what is missing; torch's where it serves."""
    if SERVING.torch is not None:
        return SERVING.torch
    facts = _usable[0]
    if facts is not None and sys.modules.get("cupy") is facts:
        return facts
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            f"CUDA: CuPy cannot be imported ({error}); device arrays need it; {missing.install_for_gpu()}"
        ) from error
    _refuse_without_gpu(cupy)
    _usable[0] = cupy
    return cupy


def _refuse_without_gpu(cupy: ModuleType) -> None:
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"CUDA: no usable GPU ({error}); a driver that fits CUDA is needed; "
            'work on the host with device "cpu"'
        ) from error
    if not count:
        raise DeviceError('CUDA: no GPU found; work on the host with device "cpu"')


class Driver(NamedTuple):
    """The functions of CuPy that each product needs, looked up once."""

    array: type
    empty: Callable[..., Any]  # (shape, dtype): an array of memory as it is
    device: Callable[[], int]  # the number of the current one
    stream: Callable[[int], Any]  # the current one of a device
    share: Callable[[Any, Any], bool]  # True where two arrays may share memory, whoever owns it
    card: Callable[[int], Card]  # the facts of a device


def driver() -> Driver:
    """CuPy's functions, once there is a GPU; torch's where it serves."""
    return _cupy_driver() if SERVING.torch is None else _torch_driver()


@cache
def _torch_driver() -> Driver:
    library = torch_library()
    return Driver(library.ndarray, library.empty, library.current, library.stream, library.share, card_of)


@cache
def _cupy_driver() -> Driver:
    cp = cupy()
    bounds = cp.byte_bounds

    # cupy.may_share_memory denies it where CuPy sees two owners, as with two tensors of one storage.
    def share(a: Any, b: Any) -> bool:
        (first, last), (other_first, other_last) = bounds(a), bounds(b)
        return bool(first < other_last and other_first < last)

    return Driver(cp.ndarray, cp.empty, cp.cuda.runtime.getDevice, cp.cuda.get_current_stream, share, card_of)


def capturing(index: int) -> bool:
    """True where the current stream of a device records a CUDA graph. The default stream never does."""
    stream = driver().stream(index)
    return bool(stream.ptr) and bool(stream.is_capturing())


@contextmanager
def recording(task: object, keep: list[Any]) -> Iterator[None]:
    """Work that a CUDA graph records, in memory that lasts as long as the graph (device.py).

    Otherwise CuPy would give that memory to others, and replays would write to it. Where the driver cannot
    tell when a graph ends, ``keep`` holds the memory.
    """
    cuda = cupy().cuda
    allocate = before = cuda.get_allocator()
    if not hasattr(before, "kept_for_graphs"):
        stream = driver().stream(current()).ptr
        where, new_pool = cuda.Device(current()), lambda: cuda.MemoryPool(before)
        allocate = allocator(stream, where, before, keep, new_pool)
    try:
        with cuda.using_allocator(allocate):
            yield
    except NotImplementedError as error:
        if isinstance(error, UnsupportedError):
            raise
        raise UnsupportedError(
            f"{task} while a CUDA graph is recorded: CuPy says {error}; name a kernel that works without "
            "cuBLAS, such as cuda:mma_bf16"
        ) from error


def refuse_capture(what: str) -> None:
    """Raise an error if a CUDA graph is being recorded, for work that must happen only once."""
    if capturing(current()):
        raise DeviceError(
            f"{what}, and the current stream records a CUDA graph; such things are done once, not in each "
            "replay; run the same product once before the capture begins"
        )


def once(what: str, make: Callable[[], Any]) -> Any:
    """The result of ``make`` for all streams: complete before anyone else sees it, and part of no graph."""
    refuse_capture(what)
    give_back()
    with _lasting():
        result = make()
    driver().stream(current()).synchronize()
    return result


def _lasting() -> AbstractContextManager[Any]:
    """A context for memory that stays: an allocator for recorded graphs says where, with ``lasting``.

    In its own memory the replay of an older graph would write over what was prepared after it.
    """
    context: AbstractContextManager[Any] = nullcontext()
    if SERVING.torch is not None:
        context = SERVING.torch.lasting()
    elif (lasting := getattr(cupy().cuda.get_allocator(), "lasting", None)) is not None:
        context = cupy().cuda.using_allocator(lasting)
    return context


def wait_for(stream: Any) -> None:
    """Wait until all work that was queued on a stream is done."""
    stream.synchronize()


def wait() -> None:
    """Wait until all work on CuPy's current device is done, on all streams."""
    cupy().cuda.runtime.deviceSynchronize()


def current() -> int:
    """The number of CuPy's current device."""
    return driver().device()


@cache
def card_of(index: int) -> Card:
    """The facts of a device, read once."""
    facts = cupy().cuda.runtime.getDeviceProperties(index)
    capability = int(facts["major"]), int(facts["minor"])
    shared = _attribute(MOST_SHARED, index)
    clock, memory_clock, width = (_known(which, index) for which in (CLOCK, MEMORY_CLOCK, MEMORY_WIDTH))
    return Card(
        facts["name"].decode(), capability, int(facts["multiProcessorCount"]), shared,
        bandwidth=2 * memory_clock * width / 8e6, clock=clock / 1e6,
    )  # fmt: skip


def card() -> Card | None:
    """CuPy's current device; None where there is no GPU."""
    try:
        return card_of(current())
    except (MissingDependencyError, DeviceError):
        return None


def capability() -> tuple[int, int] | None:
    """The compute capability of CuPy's current device; None where there is no GPU."""
    facts = card()
    return facts.capability if facts else None


def older_than(least: tuple[int, int]) -> str | None:
    """The reason why a kernel for GPUs from ``least`` on cannot run here; None without a GPU, too."""
    return cards.older_than(card(), least)


MOST_SHARED = 97  # cudaDevAttrMaxSharedMemoryPerBlockOptin
ALL_SHARED = 81  # cudaDevAttrMaxSharedMemoryPerMultiprocessor
CLOCK, MEMORY_CLOCK, MEMORY_WIDTH = 13, 36, 37  # cudaDevAttrClockRate and so on: kHz, kHz, bits
RESERVED = 1 << 10  # bytes of shared memory that CUDA takes for each block, from capability 8.0 on


@cache
def _attribute(which: int, index: int) -> int:
    return int(cupy().cuda.runtime.deviceGetAttribute(which, index))


def _known(which: int, index: int) -> int:
    """An attribute of a device; 0 where the driver does not know it."""
    try:
        return _attribute(which, index)
    except cupy().cuda.runtime.CUDARuntimeError:
        return 0


def most_shared() -> int:
    """Bytes of shared memory that a block may have on CuPy's current device."""
    return _attribute(MOST_SHARED, current())


def resident_blocks(blocks: int, shared: int) -> int:
    """Blocks that a multiprocessor holds, at most ``blocks``, if each takes ``shared`` bytes of shared
    memory.
    """
    return max(1, min(blocks, _attribute(ALL_SHARED, current()) // (shared + RESERVED)))


def room() -> int | None:
    """Bytes of shared memory that a block may have; None where there is no GPU."""
    facts = card()
    return facts.shared if facts else None


@cache
def cublas() -> Any:
    """CuPy's functions of cuBLAS. Its package finds the library; the module alone would not."""
    try:
        return import_module("cupy_backends.cuda.libs").cublas
    except ImportError as error:
        reason = (str(error).splitlines() or [""])[0]
        raise MissingDependencyError(
            f"CUDA: cuBLAS cannot be loaded ({reason}); kernels that multiply with the library need it; "
            f"{missing.install_for_gpu()}"
        ) from error


@cache
def _cublas_problem() -> str | None:
    try:
        cublas()
    except MissingDependencyError as error:
        return f"needs cuBLAS: {error}"
    return None


def lacks_cublas(card: Card | None, captured: bool = False) -> str | None:
    """The reason why a kernel that calls cuBLAS cannot run here; None if it can, or without a card."""
    if captured:
        return "calls cuBLAS by CuPy, which no CUDA graph records and torch's memory does without"
    return None if card is None or not card.here else _cublas_problem()


@cache
def driver_version() -> int:
    """The newest CUDA version that the driver knows: 13000 for 13.0."""
    return int(cupy().cuda.runtime.driverGetVersion())


def multiprocessors() -> int:
    """Multiprocessors of CuPy's current device."""
    return card_of(current()).multiprocessors


def number(device: str) -> int | None:
    """The number in ``"cuda:1"``; None for ``"cuda"``, which means CuPy's current device."""
    kind, _, index = str(device).partition(":")
    if kind != "cuda" or not (index.isdecimal() or device == "cuda"):
        raise DeviceError(f'device {device!r:.40}: devices are "cpu", "cuda" and "cuda:0", "cuda:1", …')
    return int(index) if index else None


def named(device: str) -> Any:
    """CuPy's object for ``"cuda"`` or ``"cuda:1"``, if this machine has that GPU."""
    index = number(device)
    if "cupy" not in sys.modules and SERVING.torch is None:
        warm_up(index or 0)
    cp = cupy()
    count = cp.cuda.runtime.getDeviceCount()
    if index is not None and index >= count:
        raise DeviceError(f"device {device!r}: this machine has {count} GPU; use cuda:0")
    return cp.cuda.Device(index)


def upload(array: Any, device: str) -> Any:
    """A host or device array as a contiguous CuPy array on that device."""
    with named(device):
        # Copies from the host are only queued: a product on another stream would read too early.
        return once(f"a copy to {device}", lambda: cupy().ascontiguousarray(cupy().asarray(array)))


def describe() -> list[dict[str, Any]]:
    """The GPUs that CuPy sees, for ``ggmlq doctor``."""
    cp = cupy()
    devices = []
    for index in range(cp.cuda.runtime.getDeviceCount()):
        facts = cp.cuda.runtime.getDeviceProperties(index)
        devices.append(
            {
                "device": f"cuda:{index}",
                "name": facts["name"].decode(),
                "compute_capability": f"{facts['major']}.{facts['minor']}",
                "memory_bytes": int(facts["totalGlobalMem"]),
                "multiprocessors": int(facts["multiProcessorCount"]),
                "driver_cuda": cp.cuda.runtime.driverGetVersion(),
                "runtime_cuda": cp.cuda.runtime.runtimeGetVersion(),
            }
        )
    return devices
