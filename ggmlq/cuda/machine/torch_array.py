"""``TorchArray``: an array on a GPU over the memory of a torch tensor, with what is used of CuPy's face.

Kernels, checks and rungs see what they see of CuPy's arrays: shape, strides in bytes, NumPy's dtypes, an
address, views with a base. Views and arithmetic are torch's. The caller has imported torch; we never do.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

KINDS = (
    "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bool",
)  # fmt: skip


def torch_kind(dtype: Any) -> Any:
    """Torch's dtype of NumPy's."""
    return getattr(sys.modules["torch"], np.dtype(dtype).name)


_KINDS: dict[Any, np.dtype[Any]] = {}  # torch's dtypes, to NumPy's


def numpy_kind(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype of torch's."""
    if not _KINDS or dtype not in _KINDS:
        torch = sys.modules["torch"]
        _KINDS.update({getattr(torch, kind): np.dtype(kind) for kind in KINDS if hasattr(torch, kind)})
    return _KINDS[dtype]


class Pointer(NamedTuple):
    """An array's first byte: its address, its device, and the tensor whose memory it is."""

    ptr: int
    device_id: int
    tensor: Any


class Device:
    """A GPU by its number; in a ``with`` block it is torch's current one."""

    def __init__(self, number: int | None = None) -> None:
        cuda = sys.modules["torch"].cuda
        self.id = int(cuda.current_device() if number is None else number)
        self._current = cuda.device(self.id)

    def __enter__(self) -> Device:
        self._current.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._current.__exit__(*error)

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free bytes and all bytes."""
        free, total = sys.modules["torch"].cuda.mem_get_info(self.id)
        return int(free), int(total)


class Flags(NamedTuple):
    """The order of an array's elements in memory."""

    c_contiguous: bool


class TorchArray:
    """An array over a tensor's memory. ``base`` is the array that it is a view of."""

    over_torch = True  # by which base/devices.py knows the class
    __array_priority__ = 100
    __array_ufunc__ = None
    base: TorchArray | None = None

    def __init__(self, shape: Any, dtype: Any, memory: Pointer, strides: Any = None) -> None:
        """A view of other memory, as CuPy's arrays are made: the tensor has this dtype."""
        size = np.dtype(dtype).itemsize
        tensor = memory.tensor
        if strides is not None:
            steps = [step // size for step in strides]
            tensor = tensor.as_strided(tuple(shape), steps, tensor.storage_offset())
        self._take(tensor, None)

    def _take(self, tensor: Any, base: TorchArray | None) -> None:
        self.tensor, self.base = tensor, base
        self.dtype = numpy_kind(tensor.dtype)
        self.shape = tuple(tensor.shape)
        self.data = Pointer(tensor.data_ptr(), tensor.get_device(), tensor)

    @classmethod
    def over(cls, tensor: Any, base: TorchArray | None = None) -> TorchArray:
        """The array over a tensor's memory."""
        array = TorchArray.__new__(TorchArray)
        array._take(tensor, base)
        return array

    def _view(self, tensor: Any) -> TorchArray:
        """A part of this array's memory, or a copy, where torch had to make one."""
        same = tensor.untyped_storage().data_ptr() == self.tensor.untyped_storage().data_ptr()
        return TorchArray.over(tensor, self if same else None)

    # --- facts ----------------------------------------------------------------------------------

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.dtype.itemsize)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from element to element along each axis; of contiguous arrays as NumPy has them."""
        if self.tensor.is_contiguous():
            lengths = [max(length, 1) for length in self.shape]
            return tuple(self.itemsize * math.prod(lengths[i + 1 :]) for i in range(len(lengths)))
        return tuple(step * self.itemsize for step in self.tensor.stride())

    @property
    def flags(self) -> Flags:
        """The order of the elements."""
        return Flags(bool(self.tensor.is_contiguous()))

    @property
    def device(self) -> Device:
        """The GPU that has the memory."""
        return Device(self.data.device_id)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        return f"<array {self.dtype} {self.shape} over memory of torch, cuda:{self.data.device_id}>"

    # --- views and copies ------------------------------------------------------------------------

    @property
    def T(self) -> TorchArray:
        """The view with its axes reversed."""
        return self._view(self.tensor.permute(*reversed(range(self.ndim))))

    def reshape(self, *shape: Any) -> TorchArray:
        """The elements in another shape: a view where rows lie together."""
        lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self._view(self.tensor.reshape(tuple(int(length) for length in lengths)))

    def view(self, dtype: Any) -> TorchArray:
        """A view of the bytes as elements of another dtype."""
        return self._view(self.tensor.view(torch_kind(dtype)))

    def __getitem__(self, index: Any) -> TorchArray:
        return self._view(self.tensor[_as_torch(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tensor[_as_torch(index)] = _as_torch(value)

    def fill(self, value: Any) -> None:
        """Set all elements to one value."""
        self.tensor.fill_(value)

    def copy(self) -> TorchArray:
        """A contiguous copy of the values."""
        empty = sys.modules["torch"].empty(self.shape, dtype=self.tensor.dtype, device=self.tensor.device)
        return TorchArray.over(empty.copy_(self.tensor))

    def astype(self, dtype: Any, order: str = "C", copy: bool = True) -> TorchArray:
        """The values in another dtype; the array itself if they are, unless ``copy``."""
        if self.dtype == np.dtype(dtype):
            return self.copy() if copy or not self.flags.c_contiguous else self
        return TorchArray.over(self.tensor.to(torch_kind(dtype)).contiguous())

    def get(self) -> Any:
        """The values on the host; it waits for them."""
        return self.tensor.cpu().numpy()

    def tolist(self) -> Any:
        """The values as lists; it waits for them."""
        return self.tensor.tolist()

    # --- arithmetic -------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> TorchArray:
        self.tensor += _as_torch(other)
        return self

    def __imul__(self, other: Any) -> TorchArray:
        self.tensor *= _as_torch(other)
        return self

    def __lt__(self, other: Any) -> TorchArray:
        return TorchArray.over(self.tensor < _as_torch(other))

    def __ge__(self, other: Any) -> TorchArray:
        return TorchArray.over(self.tensor >= _as_torch(other))

    def __or__(self, other: Any) -> TorchArray:
        return TorchArray.over(self.tensor | _as_torch(other))

    def __and__(self, other: Any) -> TorchArray:
        return TorchArray.over(self.tensor & _as_torch(other))

    def __floordiv__(self, other: Any) -> TorchArray:
        return TorchArray.over(self.tensor // _as_torch(other))

    def __int__(self) -> int:
        return int(self.tensor)


def _as_torch(value: Any) -> Any:
    """An operand or an index as torch takes it."""
    if isinstance(value, TorchArray):
        return value.tensor
    if isinstance(value, tuple):
        return tuple(_as_torch(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value
