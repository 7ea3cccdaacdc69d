"""``Kernel``: a GPU function, whose code is found or compiled once, then launched on CuPy's current stream.

Most code comes with the package (served.py); other code is compiled (compiling.py), by another process
where Numba is not loaded in this one (compile_process.py), and stored on disk. CuPy loads it and submit.py
launches it, for Numba's own launcher takes 15 to 36 µs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from functools import cache, cached_property, wraps
from typing import Any, NamedTuple

from ...base.progress import long_work
from ...base.slots import Rows, Slot, following, slot_of
from ...errors import DeviceError, UnsupportedError
from ...store.origin import Origin
from ..intrinsics.language import BLANK, axes_of, elements_of, types
from . import compile_process, device, served
from .compiling import EARLY, Compiled, dotted, name_in
from .dialect import dialect
from .submit import MOST, LoadedLaunch, submit

HOPPER = (9, 0)  # later GPUs get its PTX, too: Numba's PTX for those leaves arrays in memory
GRAPHS_EARLY = 12030  # the lowest driver whose CUDA graphs can hold dependent launches
WORDS = (types.uint32, types.uint64, types.int32, types.int64)  # types of parameters that are no arrays
ARRAY_HEAD = 5  # words of an array before its shape and strides


def array(element: Any, axes: int) -> Any:
    """The type of a C-contiguous array parameter."""
    return types.Array(element, axes, "C")


class _Recording(threading.local):
    """The recording that a thread makes of a product (recorded.py); ``launches``: None without one."""

    launches: list[Any] | None = None
    workspace = 0  # bytes between its kernels
    most = 0  # rows for which they are enough
    decisions: list[Any]  # that hang on the number of rows
    ahead = False  # plans are made before they are needed: each for its own rows, and nothing is compiled
    weights: Any = None
    parts: list[Any]  # functions that find arrays which were prepared of these


RECORDING = _Recording()


class Kernel(Compiled):
    """One function for the GPU, with the types of its parameters.

    ``threads``: of a block. ``blocks``: blocks that shall fit on a multiprocessor together; the compiler
    keeps to the registers that they leave. ``shared``: bytes of dynamic shared memory. ``least``: the
    lowest capability. ``exact``: only for GPUs with the major number of that capability, whose instructions
    others do not have. ``early``: it may start while its predecessor runs (intrinsics/hopper.py).

    ``max_blocks``: at most that many blocks on a multiprocessor, 0 for no limit. It is enforced only with
    dependent launches, where it spreads the blocks evenly. ``limits_blocks``: a launch may set such a limit
    where the kernel does not; kernels with more than 48 KB of shared memory always allow it.

    ``lto``: the assembler gets the whole kernel as LTO IR, as ``setmaxnreg`` needs (intrinsics/assembly.py).
    ``together``: its blocks wait for each other, so all blocks of a grid run at the same time, or the
    launch is refused.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        *parameters: Any,
        threads: int,
        blocks: int = 1,
        shared: int = 0,
        least: tuple[int, int] = (7, 5),
        exact: bool = False,
        early: bool = False,
        max_blocks: int = 0,
        limits_blocks: bool = False,
        lto: bool = False,
        together: bool = False,
    ) -> None:
        self.name, self.function, self.parameters = name, function, parameters
        self.threads, self.blocks, self.shared = threads, blocks, shared
        self.least, self.exact, self.early, self.max_blocks = least, exact, early, max_blocks
        self.lto, self.together, self.limits_blocks = lto, together, limits_blocks or max_blocks > 1
        self._is_array = tuple(axes_of(kind) is not None for kind in parameters)
        self._has_arrays = any(self._is_array)
        kinds = [kind for parameter in parameters for kind in elements_of(parameter)]
        assert all(kind in WORDS for kind in kinds if axes_of(kind) is None), name
        self._several = any(elements_of(kind) != (kind,) for kind in parameters)
        self.origin: Origin | None = None
        assert sum(map(_word_count, parameters)) <= MOST, f"{name}: more words than a launch takes"
        self._loaded: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return self.name

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        *arguments: Any,
        cluster: int = 1,
        max_blocks: int = 0,
    ) -> None:
        """Launch on CuPy's current device and stream. Empty grids do nothing.

        ``cluster``: neighbouring blocks that run together (intrinsics/hopper.py). ``max_blocks``: fewer
        blocks on a multiprocessor than the kernel is made for. Arguments are arrays, plain integers and
        plain tuples of them. All become words of 8 bytes; a parameter of 32 bits takes the lower four. An
        array for a parameter of 64 bits stands for its address.
        """
        assert len(arguments) == len(self.parameters), self.name
        if RECORDING.launches is not None:
            RECORDING.launches.append(Launch(self, grid, block, arguments, cluster, max_blocks))
            arguments = tuple(map(_plain, arguments))
        gpu = device.driver()
        index = gpu.device()
        function, shared, early = self._loaded.get(index) or self._load(index)
        if 0 not in grid:
            if self._has_arrays:
                words = self._flat(arguments)
            elif self._several:
                words = [
                    word if type(word) is int else word.data.ptr
                    for argument in arguments
                    for word in (argument if type(argument) is tuple else (argument,))
                ]
            else:
                words = [argument if type(argument) is int else argument.data.ptr for argument in arguments]
            stream = gpu.stream(index).ptr
            shared = _limiting_shared(shared, max_blocks, early)
            submit(function.ptr, grid, block, words, shared, stream, early, cluster, self.together)

    def with_slots(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with slots in place of labelled arrays, except for parameters that are arrays."""
        pairs = zip(self._is_array, arguments, strict=True)
        return tuple(argument if is_array else _slotted(argument) for is_array, argument in pairs)

    def load(self) -> None:
        """Compile and load the kernel for CuPy's current device, as before a graph records it."""
        index = device.driver().device()
        if index not in self._loaded:
            self._load(index)

    def _flat(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Arguments as words; an array takes several."""
        words: list[Any] = []
        for is_array, value in zip(self._is_array, arguments, strict=True):
            if type(value) is int:
                words.append(value)
            elif type(value) is tuple:
                words += map(_word, value)
            elif is_array:
                words += _array_words(value)
            else:
                words.append(_word(value))
        return words

    def _load(self, index: int) -> Any:
        capability = device.capability()
        assert capability is not None
        if capability < self.least or (self.exact and capability[0] != self.least[0]):
            needed = f"{self.least[0]}.x" if self.exact else dotted(self.least)
            raise DeviceError(
                f"{self.name}: this GPU has compute capability {dotted(capability)}; the kernel needs "
                f"{needed}; choose another one, gq.kernels() lists what there is"
            )
        if not device.works_aside():
            device.refuse_capture(f"{self.name}: the kernel is not loaded yet")
        with self._lock:  # a second thread waits for the compilation of the first
            return self._loaded.get(index) or self._loaded.setdefault(index, self._load_code(capability))

    def _load_code(self, capability: tuple[int, int]) -> tuple[Any, int, bool]:
        """Load it: the function, its bytes of shared memory, whether it starts early."""
        cupy = device.cupy()
        function = self._prebuilt(cupy, capability) or self._function(cupy, self.cubin(capability))
        early = self.early and capability >= EARLY and device.driver_version() >= GRAPHS_EARLY
        shared = _limiting_shared(self.shared, self.max_blocks, early)
        if shared > 48 << 10 or self.limits_blocks:
            max_blocks = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            cupy.cuda.driver.funcSetAttribute(function.ptr, max_blocks, max(shared, _shared_for_blocks(1)))
        return function, shared, early

    def _function(self, cupy: Any, code: bytes) -> Any:
        module = cupy.cuda.function.Module()
        module.load(code)
        return module.get_function(name_in(code) if self.lto else "kernel")

    def _prebuilt(self, cupy: Any, capability: tuple[int, int]) -> Any:
        """The function from the package's code; None where there is none, or none that this driver takes."""
        code = served.code_of(self.origin, capability, self.exact) if self.origin else None
        if code is not None:
            with contextlib.suppress(cupy.cuda.driver.CUDADriverError):  # a driver that is too old
                return self._function(cupy, code)
        return None

    # --- code ------------------------------------------------------------------------------

    def ptx(self, capability: tuple[int, int]) -> str:
        """The kernel in PTX, as the assembler for a capability takes it."""
        if capability <= HOPPER:
            text = super().ptx(capability)
            return text if capability >= HOPPER else served.for_early(text, capability)
        return served.for_driver(super().ptx(HOPPER).encode(), capability).decode()

    def _compiled(self, capability: tuple[int, int], output: str) -> Any:
        """Numba's output for the function: PTX or LTO IR."""
        with dialect():
            return super()._compiled(capability, output)

    def cubin(self, capability: tuple[int, int]) -> bytes:
        """The machine code, compiled if it is not stored yet."""
        machine, store = served.machine_of(capability), served.STORE
        code = store.load(self.origin, machine) if self.origin else None
        if code is None and RECORDING.ahead:
            raise UnsupportedError(f"{self.name}: its code is not here; it is compiled when it is needed")
        if code is None:
            with long_work(f"compiling {self.name} for compute capability {dotted(capability)}, once"):
                code = compile_process.code(self.origin, capability) if BLANK else self.code(capability)
            if self.origin:
                store.save(self.origin, machine, code)
        return code


class Launch(NamedTuple):
    """A kernel's launch, to be made later. ``arguments`` may have slots in place of arrays.

    Numbers may follow from the rows of a product.
    """

    kernel: Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    cluster: int = 1
    max_blocks: int = 0

    def loaded(self) -> LoadedLaunch:
        """The launch with the loaded function of the current device, its arguments as words."""
        kernel, index = self.kernel, device.driver().device()
        assert len(self.arguments) == len(kernel.parameters), kernel.name
        function, bytes_alone, early = kernel._loaded.get(index) or kernel._load(index)
        shared = following(self.max_blocks, lambda most: _limiting_shared(bytes_alone, most, early))
        words = kernel._flat(self.arguments)
        return LoadedLaunch(
            function.ptr, self.grid, self.block, words, shared, early, self.cluster, kernel.together
        )


def _shared_for_blocks(max_blocks: int) -> int:
    """Bytes of shared memory of a block with which a multiprocessor holds at most ``max_blocks`` blocks."""
    return device.most_shared() // (max_blocks + 1) + 1


def _limiting_shared(shared: int, max_blocks: int, early: bool) -> int:
    """Bytes of shared memory of a launch: so many that at most ``max_blocks`` fit on a multiprocessor."""
    return max(shared, _shared_for_blocks(max_blocks)) if max_blocks and early else shared


def _word(value: Any) -> Any:
    """A number or a slot as it is; of an array, its address."""
    return value if isinstance(value, int) or type(value) is Slot else value.data.ptr


def _slotted(argument: Any) -> Any:
    """An argument with slots in place of labelled arrays."""
    if type(argument) is tuple:
        return tuple(map(_slotted, argument))
    return (slot_of(argument) or argument) if hasattr(argument, "data") else argument


def _plain(argument: Any) -> Any:
    """An argument whose numbers are plain ones, which follow from nothing."""
    if type(argument) is tuple:
        return tuple(map(_plain, argument))
    return int(argument) if type(argument) is Rows else argument


def _array_words(array: Any) -> tuple[int, ...]:
    """Numba's own: owner, parent, elements, bytes of one, address, shape, strides in bytes."""
    return (0, 0, array.size, array.itemsize, array.data.ptr, *array.shape, *array.strides)


def _word_count(kind: Any) -> int:
    """The number of words of a parameter in a launch."""
    axes = axes_of(kind)
    return ARRAY_HEAD + 2 * axes if axes is not None else len(elements_of(kind))


Case = tuple[Any, ...]


class Family:
    """A function that makes kernels, and the cases that it is made for."""

    def __init__(
        self, make: Callable[..., Kernel], cases: Callable[[], Iterable[Case]] | Iterable[Case]
    ) -> None:
        self.make, self._cases = make, cases

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """All cases; products need only theirs, so a list that takes time is a function."""
        return tuple(self._cases() if callable(self._cases) else self._cases)


FAMILIES: dict[str, Family] = {}


Maker = Callable[..., Kernel]


def family(
    cases: Callable[[], Iterable[Case]] | Iterable[Case] = ((),),
) -> Callable[[Maker], Maker]:
    """Decorate a function that makes kernels: each is made once, and tests find them all."""

    def decorate(make: Maker) -> Maker:
        name = f"{make.__module__}.{make.__qualname__}"

        @cache
        def make_once(*case: Any) -> Kernel:
            kernel = make(*case)
            kernel.origin = Origin(name, case)
            return kernel

        @wraps(make)
        def get(*case: Any) -> Kernel:
            return make_once(*case)

        FAMILIES[name] = Family(get, cases)
        return get

    return decorate


# Helpers of launches: grids over any number of rows, and a 2-D array as its address and strides.

LEVELS = 65535  # blocks of a grid in its second direction, at most
LONG = (1 << 64) - 1


def by_levels(kernel: Kernel, across: int, levels: int, *arguments: Any) -> None:
    """Launch a kernel over ``levels`` levels of blocks, in several launches if need be.

    The kernel's last parameter is the first level of a launch.
    """
    for first in range(0, levels, LEVELS):
        grid = across, min(LEVELS, levels - first)
        kernel(grid, (kernel.threads,), *arguments, first)


def address_and_strides(array: Any) -> tuple[Any, int, int]:
    """The address and the strides of a 2-D array; zeros for None."""
    return (0, 0, 0) if array is None else (array.data.ptr, *(stride & LONG for stride in array.strides))
