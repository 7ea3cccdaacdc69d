"""Kernels: compiled once for a capability, kept on disk, launched on CuPy's current stream.

Numba makes PTX of a plain function and nvJitLink makes machine code of that; neither needs a GPU.
CuPy loads it and submit.py launches it, for Numba's own launcher takes 15 to 36 µs.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterable
from functools import cache, wraps
from importlib import metadata
from typing import Any, NamedTuple

from ...cache import Generation, sources
from ...cache.identity import identity
from ...errors import DeviceError
from ..words.language import cuda, types
from . import device
from .ready import Hole, Ready
from .submit import MOST, submit

SOURCES = (
    "cuda",
    "formats",
    "codes",
    "packing.py",
    "gru/step.py",
    "fixed/shift.py",
)  # of the package: what machine code comes from
COMPILERS = ("numba", "numba-cuda", "llvmlite", "cuda-core", "nvidia-nvjitlink", "nvidia-cuda-nvcc")
EARLY, WAITS = (9, 0), "griddepcontrol.wait"
RECORDS_EARLY = 12030  # the driver, from which CUDA graphs can hold early starts
UNKNOWN = "UNRECOGNIZED_ARCH"  # what nvJitLink says of a capability newer than itself
WORDS = (types.uint32, types.uint64, types.int32, types.int64)  # kinds of parameters that are no arrays


def array(element: Any, axes: int) -> Any:
    """The type of a C-contiguous array parameter."""
    return types.Array(element, axes, "C")


class Resources(NamedTuple):
    """What the assembler says about a kernel."""

    registers: int
    stack: int  # bytes of local memory, spills included
    shared: int  # bytes of static shared memory


class Kernel:
    """One function for the GPU, with the types of its parameters.

    ``threads``: of a block, and ``blocks`` that should fit on a multiprocessor together; the
    compiler keeps to the registers that they leave. ``shared``: bytes of dynamic shared memory.
    ``least``: the lowest capability; ``exact``: for GPUs of that one alone, with instructions that
    later ones do not have. ``early``: it may start while its predecessor runs, as early.py says.
    ``alone``: one block on a multiprocessor, so that where kernels start early their blocks spread evenly.
    ``lto``: the assembler gets the whole kernel as LTO IR, as
    ``setmaxnreg`` needs (words/assembly.py). ``together``: its blocks wait for each other, so all of a
    grid run at the same time, or it is refused.
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
        alone: bool = False,
        lto: bool = False,
        together: bool = False,
    ) -> None:
        self.name, self.function, self.parameters = name, function, parameters
        self.threads, self.blocks, self.shared = threads, blocks, shared
        self.least, self.exact, self.early, self.alone = least, exact, early, alone
        self.lto, self.together = lto, together
        self._is_array = tuple(isinstance(kind, types.Array) for kind in parameters)
        self._has_arrays = any(self._is_array)
        kinds = [kind.dtype if isinstance(kind, types.UniTuple) else kind for kind in parameters]
        assert all(a or kind in WORDS for a, kind in zip(self._is_array, kinds, strict=True)), name
        self._several = any(isinstance(kind, types.UniTuple) for kind in parameters)
        assert sum(map(_words, parameters)) <= MOST, f"{name}: more words than a launch takes"
        self._loaded: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return self.name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any, cluster: int = 1
    ) -> None:
        """Launch on CuPy's current device and stream. Empty grids do nothing.

        ``cluster``: neighbouring blocks that run together, words/barrier.py.
        Arguments are arrays, plain integers and tuples of them. All become words of 8 bytes; a parameter of
        32 bits takes the lower four. An array for a parameter of 64 bits stands for its address.
        """
        assert len(arguments) == len(self.parameters), self.name
        gpu = device.driver()
        index = gpu.device()
        function, shared, early = self._loaded.get(index) or self._load(index)
        if 0 not in grid:
            if self._has_arrays or self._several:
                words = self._flat(arguments)
            else:
                words = [each if type(each) is int else each.data.ptr for each in arguments]
            stream = gpu.stream(index).ptr
            submit(function.ptr, grid, block, words, shared, stream, early, cluster, self.together)

    def ready(
        self, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any, cluster: int = 1
    ) -> Ready:
        """The same launch, prepared for any number of calls, which fill in addresses: ready.py."""
        assert len(arguments) == len(self.parameters), self.name
        index = device.driver().device()
        function, shared, early = self._loaded.get(index) or self._load(index)
        return Ready(
            function.ptr, grid, block, self._flat(arguments), shared, early, cluster, self.together
        )  # fmt: skip

    def load(self) -> None:
        """Compile and load it for CuPy's current device: before a graph records it."""
        index = device.driver().device()
        if index not in self._loaded:
            self._load(index)

    def _flat(self, arguments: tuple[Any, ...]) -> list[Any]:
        """An array is to Numba: owner, parent, elements, bytes of one, address, shape, strides."""
        words: list[Any] = []
        for is_array, value in zip(self._is_array, arguments, strict=True):
            if type(value) is int:
                words.append(value)
            elif type(value) is tuple:
                words += value
            elif is_array:
                at = value.data.ptr
                words += (0, 0, value.size, value.itemsize, at, *value.shape, *value.strides)
            elif type(value) is Hole:
                words.append(value)
            else:
                words.append(value.data.ptr)
        return words

    def _load(self, index: int) -> Any:
        capability = device.capability()
        assert capability is not None
        if capability < self.least or (self.exact and capability != self.least):
            needed = _dotted(self.least) + " itself" * self.exact
            raise DeviceError(
                f"{self.name}: this GPU has compute capability {_dotted(capability)}; the kernel needs "
                f"{needed}; choose another one, gq.kernels() lists what there is"
            )
        device.refuse_capture(f"{self.name}: the kernel is not loaded yet")
        with self._lock:  # a second thread waits for what the first one compiles
            return self._loaded.get(index) or self._loaded.setdefault(index, self._made(capability))

    def _made(self, capability: tuple[int, int]) -> tuple[Any, int, bool]:
        """Load it: the function, its bytes of shared memory, whether it starts early."""
        cupy = device.cupy()
        module = cupy.cuda.function.Module()
        code = self.cubin(capability)
        module.load(code)
        function = module.get_function(name_in(code) if self.lto else "kernel")
        early = self.early and capability >= EARLY and device.driver_version() >= RECORDS_EARLY
        shared = max(self.shared, device.most_shared() // 2 + 1) if early and self.alone else self.shared
        if shared > 48 << 10:
            most = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            cupy.cuda.driver.funcSetAttribute(function.ptr, most, shared)
        return function, shared, early

    # --- compiling -------------------------------------------------------------------------

    def ptx(self, capability: tuple[int, int]) -> str:
        """The kernel in PTX, under the name ``kernel``."""
        text = self._compiled(capability, "ptx")
        entry = re.search(r"\.entry (\w+)", text)
        assert entry is not None
        assert self.early == (WAITS in text), self.name
        if capability < EARLY:
            text = re.sub(r"griddepcontrol\.\w+;", "", text)
        return str(text.replace(entry[1], "kernel"))

    def _compiled(self, capability: tuple[int, int], output: str) -> Any:
        """What Numba makes of the function: PTX or LTO IR."""
        made, _ = cuda.compile(
            self.function, types.void(*self.parameters), cc=(*capability, "a") if self.exact else capability,
            device=False, abi="numba", launch_bounds=(self.threads, self.blocks), output=output,
        )  # fmt: skip
        return made

    def assemble(self, capability: tuple[int, int], ptx: str | None = None) -> tuple[bytes, Resources]:
        """Machine code for a capability (of this PTX, if it is there already), and what it needs."""
        code, said = self.linked(capability, ptx)
        used = re.search(r"used (\d+) registers.*?(\d+) stack(?:, (\d+) bytes smem)?", said)
        if used is not None:
            return code, Resources(int(used[1]), int(used[2]), int(used[3] or 0))
        used = re.search(r"Used (\d+) registers", said)
        kept = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill", said)
        assert used is not None, said
        assert kept is not None, said
        return code, Resources(int(used[1]), max(int(kept[1]), int(kept[2])), 0)

    def linked(self, capability: tuple[int, int], ptx: str | None = None) -> tuple[bytes, str]:
        """Machine code, and all that the assembler says."""
        core: Any = importlib.import_module("cuda.core")

        arch = "sm_" + _dotted(capability).replace(".", "") + ("a" if self.exact else "")
        options = core.LinkerOptions(arch=arch, verbose=True, link_time_optimization=self.lto or None)
        if self.lto:
            given = core.ObjectCode.from_ltoir(bytes(self._compiled(capability, "ltoir")))
        else:
            given = core.ObjectCode.from_ptx((ptx or self.ptx(capability)).encode())
        linker = core.Linker(given, options=options)
        code = bytes(linker.link("cubin").code)
        return code, str(linker.get_info_log()).replace("\0", "")

    def code(self, capability: tuple[int, int]) -> bytes:
        """What the driver loads: machine code; for a GPU that nvJitLink does not know yet, PTX.

        Numba writes that for the highest capability below that it knows, and the driver translates it.
        """
        if self.lto:
            return self.linked(capability)[0]
        text = self.ptx(capability)
        try:
            return self.assemble(capability, text)[0]
        except Exception as error:
            if self.exact or UNKNOWN not in str(error):
                raise
            return text.encode()

    def cubin(self, capability: tuple[int, int]) -> bytes:
        """The machine code, made if it is not kept."""
        entry = self.entry(capability)
        code = generation().load(entry)
        if code is None:
            code = self.code(capability)
            generation().save(entry, code)
        return code

    def entry(self, capability: tuple[int, int]) -> str:
        """What code is kept as: the function with all its constants, and how it is compiled."""
        function = self.function
        facts = (
            self.name, function.__module__, function.__qualname__, identity(function), self.parameters,
            self.threads, self.blocks, self.exact, self.early, self.lto, capability,
        )  # fmt: skip
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', self.name)}-{sources.short(repr(facts).encode())}"


def _words(kind: Any) -> int:
    """Of a parameter in a launch."""
    if isinstance(kind, types.Array):
        return 5 + 2 * int(kind.ndim)
    return kind.count if isinstance(kind, types.UniTuple) else 1


def name_in(code: bytes) -> str:
    """The name of the one kernel in machine code: LTO keeps what Numba called it."""
    found = re.search(rb"\.text\.(\w+)\0", code)
    assert found is not None
    return found[1].decode()


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


@cache
def generation() -> Generation:
    """Where machine code of these kernels, formats and compilers is kept."""
    return Generation("cuda", lambda: sources.digest(SOURCES, map(_version, COMPILERS)))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


class Family(NamedTuple):
    """A function that makes kernels, and all that it is meant to be called with."""

    make: Callable[..., Kernel]
    cases: tuple[tuple[Any, ...], ...]


FAMILIES: dict[str, Family] = {}


Maker = Callable[..., Kernel]


def family(cases: Iterable[tuple[Any, ...]] = ((),)) -> Callable[[Maker], Maker]:
    """Decorate a function that makes kernels: each is made once, and tests find them all."""
    listed = tuple(cases)

    def decorate(make: Maker) -> Maker:
        made = cache(make)

        @wraps(make)
        def get(*case: Any) -> Kernel:
            return made(*case)

        FAMILIES[f"{make.__module__}.{make.__qualname__}"] = Family(get, listed)
        return get

    return decorate
