"""As much of torch as products on a GPU look at, made of NumPy; bfloat16 is its 16 bits."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np


class DType:
    """A type of elements."""

    def __init__(self, name, stored, is_floating_point=True):
        self.name, self.stored, self.is_floating_point = name, np.dtype(stored), is_floating_point

    def __repr__(self):
        return f"torch.{self.name}"


FLOAT32, FLOAT16, FLOAT64 = (DType(name, name) for name in ("float32", "float16", "float64"))
BFLOAT16, UINT8, INT16 = DType("bfloat16", "u2"), DType("uint8", "u1", False), DType("int16", "i2", False)


class Tensor:
    """An array in the guise of a tensor on a GPU."""

    layout, requires_grad, is_cuda, neg, inference, number = "strided", False, True, False, False, 0

    def __init__(self, data, dtype):
        assert data.dtype == dtype.stored
        self.data, self.dtype = data, dtype

    shape = property(lambda self: self.data.shape)
    device = property(lambda self: SimpleNamespace(type="cuda", index=self.number))

    def get_device(self):
        return self.number

    def data_ptr(self):
        return self.data.ctypes.data

    def is_contiguous(self):
        return bool(self.data.flags.c_contiguous)

    def is_neg(self):
        return self.neg

    def is_inference(self):
        return self.inference

    def numel(self):
        return self.data.size

    def element_size(self):
        return self.data.itemsize

    def detach(self):
        return self

    def view(self, dtype):
        return Tensor(self.data.view(dtype.stored), dtype)

    def floats(self):
        if self.dtype is BFLOAT16:
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        return self.data

    def to(self, dtype):
        if dtype is BFLOAT16:
            bits = self.floats().astype(np.float32).view(np.uint32).astype(np.uint64)
            return Tensor((bits + (0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16), dtype)
        return Tensor(self.floats().astype(dtype.stored), dtype)

    def copy_(self, other):
        self.data[...] = other.to(self.dtype).data
        return self

    def __iadd__(self, other):
        self.data += other.floats()
        return self


class Parameter(Tensor):
    """A tensor that a layer holds as its weight."""


class Other(Tensor):
    """Another subclass."""


def aligned(shape, dtype, number=0):
    """A tensor of zeros from a multiple of 16 bytes on, as torch's are."""
    size = int(np.prod(shape)) * dtype.stored.itemsize
    memory = np.zeros(size + 16, np.uint8)
    first = -memory.ctypes.data % 16
    found = Tensor(memory[first : first + size].view(dtype.stored).reshape(shape), dtype)
    found.number = number
    return found


def put_torch(monkeypatch):
    """It is imported; ``given`` is what of its memory was given to someone."""
    state = SimpleNamespace(stream=0, current=0, capturing=False, gradients=True, given=[])

    def empty(shape, dtype, device):
        state.given.append(aligned(shape, dtype, device.index))
        return state.given[-1]

    state.torch = ModuleType("torch")
    vars(state.torch).update(
        Tensor=Tensor, strided="strided", float32=FLOAT32, float16=FLOAT16, bfloat16=BFLOAT16,
        float64=FLOAT64, uint8=UINT8, int16=INT16, empty=empty,
        empty_like=lambda like: empty(like.shape, like.dtype, like.device),
        is_grad_enabled=lambda: state.gradients,
        nn=SimpleNamespace(Parameter=Parameter),
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda index: state.stream),
        cuda=SimpleNamespace(
            current_device=lambda: state.current, is_current_stream_capturing=lambda: state.capturing
        ),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", state.torch)
    return state
