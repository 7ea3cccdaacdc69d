"""A GPU that is torch's alone: a torch made of NumPy's memory, and a driver that runs kernels by NumPy.

Nothing of CuPy and Numba is there: both are refused on import. Calls of the driver go to :class:`Driver`, in
the place of libcuda: PTX of the package runs on emulated_ptx.py, in memory of torch's. It changes modules for
good, so a process of its own has it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np

REFUSED = "cupy", "cupy_backends", "numba", "numba_cuda", "llvmlite"
NAME = b"an emulated card"


class Refuse:
    """A finder that has none of these modules."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class DType:
    """A type of elements."""

    def __init__(self, name, stored, is_floating_point):
        self.name, self.stored, self.is_floating_point = name, np.dtype(stored), is_floating_point

    def __repr__(self):
        return f"torch.{self.name}"


INTEGERS = "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "bool"
FLOATS = "float16", "float32", "float64"
KINDS = {name: DType(name, name, name in FLOATS) for name in (*INTEGERS, *FLOATS)}
BFLOAT = KINDS["bfloat16"] = DType("bfloat16", "u2", True)


def widened(bits):
    """The floats of bits of bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values):
    """The bits of bfloat16 next to floats."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return (bits + (0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Tensor:
    """A tensor on GPU 0, whose memory is NumPy's. Memory that a kernel may touch is known to the driver."""

    layout, requires_grad, is_cuda = "strided", False, True

    def __init__(self, data, dtype):
        assert data.dtype == dtype.stored
        self.data, self.dtype, self.shape = data, dtype, data.shape
        self.device = SimpleNamespace(type="cuda", index=0)

    def get_device(self):
        return 0

    def dim(self):
        return self.data.ndim

    def data_ptr(self):
        return self.data.ctypes.data

    def record_stream(self, stream):
        """Nothing: memory is not given back here."""

    def is_contiguous(self):
        return bool(self.data.flags.c_contiguous)

    def contiguous(self):
        return self._as(np.ascontiguousarray(self.data))

    def is_neg(self):
        return False

    def is_inference(self):
        return False

    def numel(self):
        return self.data.size

    def element_size(self):
        return self.data.itemsize

    def stride(self):
        return tuple(step // self.data.itemsize for step in self.data.strides)

    def storage_offset(self):
        return 0

    def as_strided(self, shape, steps, first):
        steps = [step * self.data.itemsize for step in steps]
        return self._as(np.lib.stride_tricks.as_strided(self.data, shape, steps))

    def untyped_storage(self):
        data = self.data
        while isinstance(data.base, np.ndarray):
            data = data.base
        return SimpleNamespace(data_ptr=lambda: data.ctypes.data)

    def detach(self):
        return self

    def _as(self, data, dtype=None):
        return Tensor(data, dtype or self.dtype)

    def view(self, dtype):
        return self._as(self.data.view(dtype.stored), dtype)

    def reshape(self, shape):
        return self._as(self.data.reshape(shape))

    def permute(self, *axes):
        return self._as(self.data.transpose(axes))

    def __getitem__(self, index):
        part = np.asarray(self.data[plain(index)])
        return self._as(part) if np.may_share_memory(part, self.data) else allocated(part, self.dtype)

    def __setitem__(self, index, value):
        self.data[plain(index)] = plain(value)

    def tolist(self):
        return self.data.tolist()

    def cpu(self):
        return self

    def numpy(self):
        return self.data

    def _with(self, work, other):
        values = work(self.data, plain(other))
        return allocated(values, KINDS[values.dtype.name])

    def __ge__(self, other):
        return self._with(np.greater_equal, other)

    def __lt__(self, other):
        return self._with(np.less, other)

    def __and__(self, other):
        return self._with(np.logical_and, other)

    def __floordiv__(self, other):
        return self._with(np.floor_divide, other)

    def float(self):
        return self.to(KINDS["float32"])

    def floats(self):
        return widened(self.data) if self.dtype is BFLOAT else self.data

    def to(self, dtype, copy=False):
        if dtype is self.dtype and not copy:
            return self
        values = narrowed(self.floats()) if dtype is BFLOAT else self.floats().astype(dtype.stored)
        return allocated(values, dtype)

    def copy_(self, other):
        self.data[...] = other.to(self.dtype).data
        return self

    def fill_(self, value):
        self.data[...] = value
        return self

    def __iadd__(self, other):
        self.data += other.floats()
        return self


def plain(value):
    """An operand or an index as NumPy takes it."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.data if isinstance(value, Tensor) else value


def by_numpy(work):
    """A function of torch's that is NumPy's."""

    def call(*arguments, **options):
        values = np.asarray(work(*map(plain, arguments), **options))
        return allocated(values, KINDS[values.dtype.name])

    return call


class Parameter(Tensor):
    """A tensor that a layer holds as its weight."""


def allocated(values, dtype):
    """A tensor with a copy of values."""
    tensor = empty(values.shape, dtype)
    tensor.data[...] = values
    return tensor


def empty(shape, dtype=KINDS["float32"], device=None):
    """Memory of torch's, from a multiple of 256 bytes on, which kernels may touch."""
    size = int(np.prod(shape)) * dtype.stored.itemsize
    memory = np.full(size + 512, 0xA5, np.uint8)
    first = -memory.ctypes.data % 256
    DRIVER.threads.append(threading.get_ident())
    DRIVER.memory.add(memory)
    return Tensor(memory[first : first + size].view(dtype.stored).reshape(shape), dtype)


def as_tensor(holder, device):
    """A tensor over memory that somebody else has."""
    facts = holder.__cuda_array_interface__
    (size,), (address, _) = facts["shape"], facts["data"]
    return Tensor(np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8), KINDS["uint8"])


def put_torch():
    """It is imported, on a machine with the GPU; the module."""
    torch = ModuleType("torch")
    facts = SimpleNamespace(
        name=NAME.decode(), major=DRIVER.capability[0], minor=DRIVER.capability[1], multi_processor_count=4,
        total_memory=1 << 34,
    )  # fmt: skip
    stream = SimpleNamespace(cuda_stream=0, wait_stream=lambda other: None)
    vars(torch).update(
        KINDS, Tensor=Tensor, dtype=DType, strided="strided", empty=empty, as_tensor=as_tensor,
        empty_like=lambda like: empty(like.shape, like.dtype),
        from_numpy=lambda values: allocated(values, KINDS[values.dtype.name]),
        device=lambda kind, index=0: SimpleNamespace(type=kind, index=index),
        where=by_numpy(np.where), bincount=by_numpy(np.bincount), cumsum=by_numpy(np.cumsum),
        argsort=by_numpy(lambda array, stable: np.argsort(array, kind="stable")),
        is_grad_enabled=lambda: True, nn=SimpleNamespace(Parameter=Parameter),
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda index: stream.cuda_stream),
        cuda=SimpleNamespace(
            current_device=lambda: 0, is_current_stream_capturing=lambda: False, device_count=lambda: 1,
            current_stream=lambda index=0: stream, default_stream=lambda index=0: stream,
            device=lambda index: nullcontext(), get_device_properties=lambda index: facts,
            synchronize=lambda: None, Event=None,
        ),
    )  # fmt: skip
    sys.modules["torch"] = torch
    return torch


class Driver:
    """As much of libcuda as products ask for. ``calls``: names of functions, in their order."""

    def __init__(self, capability):
        from emulated_ptx import Memory

        self.capability, self.memory, self.threads = capability, Memory(), []
        self.modules, self.functions, self.calls, self.launched, self.tables = [], [], [], [], {}

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return Function(self, name)


class Function:
    """A function of the driver, counted; those that give nothing back do nothing."""

    def __init__(self, driver, name):
        self.driver, self.name = driver, name

    def __call__(self, *arguments):
        self.driver.calls.append(self.name)
        work = getattr(self, self.name, None)
        return 0 if work is None else work(*arguments) or 0

    def cuModuleLoadData(self, at, code):
        from emulated_ptx import with_tables

        self.driver.modules.append(with_tables(code.value.decode(), self.driver.memory, self.driver.tables))
        at._obj.value = len(self.driver.modules)

    def cuModuleGetFunction(self, at, module, name):
        assert name.value == b"kernel"
        self.driver.functions.append(self.driver.modules[module.value - 1])
        at._obj.value = len(self.driver.functions)

    def cuDeviceGetAttribute(self, value, which, index):
        value._obj.value = {97: 99 << 10, 81: 100 << 10}.get(which.value, 1000)

    def cuDriverGetVersion(self, value):
        value._obj.value = 13000

    def cuLaunchKernelEx(self, shape_at, function, pointers_at, extra):
        from emulated_ptx import Machine, program

        from ggmlq.cuda.driver import submit

        ptx = self.driver.functions[function - 1]
        *sizes, shared, stream, attributes, count = submit.SHAPE.unpack(
            ctypes.string_at(shape_at, submit.SHAPE.size)
        )
        cluster = 1
        for i in range(count):
            kind, _, first, *_ = (ctypes.c_uint32 * 18).from_address(attributes + 72 * i)
            cluster = first if kind == 4 else cluster
        _, names = program(ptx)
        places = (ctypes.c_void_p * len(names)).from_address(pointers_at)
        words = [ctypes.c_uint64.from_address(at).value for at in places]
        self.driver.launched.append(stream)
        Machine(ptx, self.driver.memory, sizes[3], shared)(tuple(sizes[:2]), *words, cluster=cluster)


DRIVER = None


def put_all(capability):
    """Torch with a GPU of a capability, a driver, and no CuPy and no Numba; the torch and the driver."""
    sys.meta_path.insert(0, Refuse())
    driver = globals()["DRIVER"] = Driver(capability)
    from ggmlq.cuda.driver import calls as driver_calls
    from ggmlq.cuda.driver import submit, tensor_maps

    for module in (driver_calls, submit, tensor_maps):
        module.library = lambda: driver
    return put_torch(), driver
