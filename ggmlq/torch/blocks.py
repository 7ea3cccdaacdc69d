"""Arrays of blocks over the memory of tensors, for the kernels: one for each tensor, while its storage lives.

A tensor of bytes is all that a program holds. What kernels prepare of it stays beside, in an array that is
looked up by the storage and dropped with it, and replaced when torch counts a write to the tensor.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
import torch

import ggmlq as gq

from ..base.devices import cuda_module
from ..ops.door import as_torch_works
from .checks import PREPARED, format_of

Key = tuple[int, tuple[int, ...], tuple[int, ...], int]  # address, shapes of tensor and array, type
ALIGNED, WORDS = 128, 16  # bytes to which kernels want packed weights and blocks aligned

_LOCK = threading.RLock()  # a storage may go while an array is looked up
_ARRAYS: dict[Key, tuple[Any, int, gq.QuantArray]] = {}  # with the storage, weakly, and the count of writes


def known(w: torch.Tensor, type: int, shape: tuple[int, ...]) -> gq.QuantArray | None:
    """The array over a tensor with this type and shape; None if there is none, or an old one.

    Callers ask before they check, so the tensor is looked at here: another view of the same memory, with
    steps between its bytes or other lengths, begins at the same address.
    """
    if w.dtype is not torch.uint8 or not w.is_contiguous():
        return None
    there = _ARRAYS.get((w.data_ptr(), w.shape, shape, type & ~PREPARED))
    if there is None or there[0]() is not w.untyped_storage() or there[1] != _writes(w):
        return None
    return there[2]


def array_over(w: torch.Tensor, type: int, shape: tuple[int, ...]) -> gq.QuantArray:
    """The array of blocks of this shape over the bytes of a tensor; the same one for the same tensor.

    The tensor was checked: it is [..., N, bytes per row], or strips, which alone have fewer axes than that.
    """
    with _LOCK:
        array = known(w, type, shape)
        if array is not None:
            return array
        fmt, storage = format_of(type), w.untyped_storage()
        _check_memory(w, storage)
        if type & PREPARED and w.dim() == 1:
            array = _of_strips(w, fmt, shape)
        else:
            raw = _bytes(w).reshape(*shape[:-1], fmt.row_bytes(shape[-1]))
            array = gq.QuantArray(fmt, shape, raw).lasting()
        if w.is_contiguous():  # else the bytes are a copy, which is good for one call
            key = w.data_ptr(), tuple(w.shape), shape, type & ~PREPARED
            _drop_left(storage)
            gone = weakref.ref(storage, lambda gone: _drop(key, gone))
            _ARRAYS[key] = gone, _writes(w), array
        return array


def _check_memory(w: torch.Tensor, storage: Any) -> None:
    """Refuse a tensor whose storage became smaller, which torch lets a program do."""
    last = w.storage_offset() + sum((n - 1) * step for n, step in zip(w.shape, w.stride(), strict=True))
    if w.numel() and last >= storage.nbytes():
        raise gq.errors.ShapeError(
            f"torch.ops.ggmlq: w has bytes up to {last + 1} of a storage that has {storage.nbytes()}; a "
            "storage that was made smaller holds no blocks; resize it, and fill w again, before the call"
        )


def _drop(key: Key, gone: Any) -> None:
    """Drop the array of a storage that went; another storage may have its address since."""
    with _LOCK:
        if (there := _ARRAYS.get(key)) is not None and there[0] is gone:
            del _ARRAYS[key]


def _drop_left(storage: Any) -> None:
    """Drop arrays over memory that this storage has left: FSDP gives it other memory, again and again."""
    first, size = storage.data_ptr(), storage.nbytes()
    left = [k for k, (of, *_) in _ARRAYS.items() if of() is storage and not first <= k[0] < first + size]
    for key in left:
        del _ARRAYS[key]


def _writes(w: torch.Tensor) -> int:
    """The number of writes that torch counted; inference tensors have no count, and an error says so."""
    try:
        return w._version
    except RuntimeError:
        return 0


def forget(w: torch.Tensor) -> None:
    """Drop what kernels prepared of a tensor, after a write that torch does not count, as to w.numpy()."""
    storage = w.untyped_storage()
    with _LOCK:
        for key in [key for key, (gone, *_) in _ARRAYS.items() if gone() is storage]:
            del _ARRAYS[key]


def _of_strips(w: torch.Tensor, fmt: gq.Format, shape: tuple[int, ...]) -> gq.QuantArray:
    """The array of what ``prepare`` made: over its memory on a GPU; on the host of the bytes, restored."""
    on_host = cuda_module("layouts.to_blocks")
    if w.device.type == "cpu":
        return gq.QuantArray(fmt, shape, on_host.restored_on_host(fmt, shape, _bytes(w))).lasting()
    # A parameter that was flattened with others may lie anywhere: it is copied, and the copy stays.
    packed = library().from_dlpack(w.detach().clone()) if w.data_ptr() % ALIGNED else _bytes(w)
    pack = cuda_module("layouts.pack")
    weights = pack.PackedWeights(packed.reshape(on_host.packed_shape(fmt, shape)), pack.layout_of(fmt))
    array = gq.QuantArray(fmt, shape, packed)
    return array.packed_alone(weights.fragments, pack.pack_weights, weights).lasting()


def file_bytes(w: torch.Tensor, type: int, shape: tuple[int, ...]) -> torch.Tensor:
    """The file's bytes [..., N, bytes per row] of a tensor that ``prepare`` may have made, where it is."""
    if w.dim() != 1 or w.is_meta:
        return w
    q = array_over(w, type | PREPARED, shape)
    if w.device.type == "cpu":
        return torch.from_numpy(np.array(q.raw))
    with as_torch_works(torch, w.device, q.memory):
        raw: torch.Tensor = cuda_module("layouts.to_blocks").restored(q).tensor
    return raw


def library() -> Any:
    """The library of arrays over torch's memory on a GPU."""
    return cuda_module("driver.serving").torch_library()


def _bytes(w: torch.Tensor) -> Any:
    """The bytes of a tensor as an array, NumPy's or over torch's memory, which does not keep the tensor.

    Bytes that are not in a row, or on a GPU begin where kernels cannot load words, are copied.
    """
    if w.device.type != "cpu":
        if not w.is_contiguous() or w.data_ptr() % WORDS:
            return library().from_dlpack(w.detach().clone(memory_format=torch.contiguous_format))
        return library().borrowed(w)
    if not w.is_contiguous():
        return w.detach().contiguous().numpy()
    size, address = w.numel(), w.data_ptr()
    raw = (
        np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
        if size
        else np.empty(0, np.uint8)
    )
    raw.flags.writeable = False
    return raw
