"""Reads ``ggml_tensor``: name, type, lengths, strides, sources, parameters and buffer of a node.

The offsets of its fields differ between versions of ggml, so they are found by experiment: we make tensors
whose lengths, type, sources, view and buffer are known, and search their bytes for these. If a field is found
nowhere, or in two places, the library is refused with an error.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..formats import FORMATS
from .library import InitParams, Symbols, words

LENGTHS = (512, 5, 7, 11)  # no two are equal, and none is a stride
SCALES = (0.4375, 3.25, 7.125)  # of attention: exact as floats, and unlike any other field
HIDDEN = ("AMX", "REPACK", "AARCH64", "KLEIDIAI", "SPACEMIT")  # layouts of weights that cannot be read back
NUMBER = 32  # bytes from the strides, behind which it stands, to the number of the operation
WORDS = 16  # 32-bit words of an operation's parameters
MOST_SOURCES = 10  # of a node, in every year


class Tensors:
    """The offsets of a tensor's fields in one library; methods read the tensor behind a pointer."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        context = symbols.ggml_init(InitParams(64 * symbols.ggml_tensor_overhead(), None, True))
        if not context:
            raise UnsupportedError("libggml: ggml_init gave no context; is the memory full?")
        self._room = symbols.ggml_tensor_overhead()  # the struct and a header before it: enough to search
        f16, f32, q6_K = (
            symbols.ggml_new_tensor_4d(context, FORMATS[name].id, *LENGTHS) for name in ("f16", "f32", "q6_K")
        )
        product = symbols.ggml_mul_mat(context, f16, f32)
        view = symbols.ggml_view_1d(context, f32, 3, 444)
        attention = self._attention(context)
        buffer = symbols.ggml_backend_alloc_ctx_tensors_from_buft(
            context, symbols.ggml_backend_cpu_buffer_type()
        )
        self._type = self._find("type", "=i", [(f16, (1,)), (f32, (0,)), (q6_K, (14,))])
        self._lengths = self._find("lengths", "=4q", [(f16, LENGTHS)])
        self._strides = self._find("strides", "=4Q", [(f16, (2, 1024, 5120, 35840))])
        self._sources = self._find("sources", "=2Q", [(product, (f16, f32))])
        self._origin = self._find("origin of a view", "=2Q", [(view, (f32, 444))])
        self._buffer = self._find("buffer", "=Q", [(f16, (buffer,)), (f32, (buffer,))])
        scaled = attention or symbols.ggml_scale(context, f32, SCALES[0])
        pattern, values = ("=3f", SCALES) if attention else ("=f", SCALES[:1])
        self._words = self._find("parameters", pattern, [(scaled, values)])
        symbols.ggml_backend_buffer_free(buffer)
        symbols.ggml_free(context)

    def _attention(self, context: int) -> int:
        """A node of attention whose parameters can be found; 0 where the library has no such operation."""
        if not self._symbols.has("ggml_flash_attn_ext"):
            return 0
        # The mask is last: some years want its rows in multiples of 64.
        shapes = {"f32": [(64, 3, 2, 1)], "f16": [(64, 32, 2, 1), (64, 32, 2, 1), (32, 64, 1, 1)]}
        operands = [
            self._symbols.ggml_new_tensor_4d(context, FORMATS[name].id, *lengths)
            for name, every in shapes.items()
            for lengths in every
        ]
        return int(self._symbols.ggml_flash_attn_ext(context, *operands, *SCALES))

    def _find(self, field: str, pattern: str, sought: Sequence[tuple[int, tuple[Any, ...]]]) -> int:
        """The only offset at which each tensor holds its numbers."""
        size = struct.calcsize(pattern)
        places = [
            {
                at
                for at in range(0, self._room - size + 1, 4)
                if struct.unpack_from(pattern, ctypes.string_at(tensor, self._room), at) == numbers
            }
            for tensor, numbers in sought
        ]
        offsets = sorted(set.intersection(*places))
        if len(offsets) != 1:
            raise UnsupportedError(
                f"libggml: the {field} of a tensor lies at {offsets or 'no offset'} in its {self._room} "
                "bytes, one offset is expected; this library's tensors are of another kind; "
                "use one of 2024 or later"
            )
        return offsets[0]

    # --- one tensor -----------------------------------------------------------------------

    def source(self, tensor: int, i: int) -> int:
        """Source number i of a tensor, 0 for none."""
        return _pointer(tensor + self._sources + 8 * i)

    def sources(self, tensor: int) -> list[int]:
        """All sources of a tensor but itself."""
        return [s for i in range(MOST_SOURCES) if (s := self.source(tensor, i)) and s != tensor]

    def origin(self, tensor: int) -> int:
        """The tensor whose memory a view looks at, 0 where it has its own."""
        return _pointer(tensor + self._origin)

    def words(self, tensor: int) -> tuple[int, ...]:
        """The parameters of a tensor's operation, as words of 32 bits."""
        return tuple((ctypes.c_int32 * WORDS).from_address(tensor + self._words))

    def set_strides(self, tensor: int, strides: Sequence[int]) -> None:
        """Give a tensor other strides than its lengths make, before it has memory."""
        place = (ctypes.c_uint64 * 4).from_address(tensor + self._strides)
        for i, stride in enumerate(strides):
            place[i] = stride

    def become(self, tensor: int, number: int, parameters: Sequence[int], sources: Sequence[int]) -> None:
        """Make a tensor the result of an operation with this number, these parameters and sources."""
        ctypes.c_int.from_address(tensor + self._strides + NUMBER).value = number
        place = (ctypes.c_int32 * WORDS).from_address(tensor + self._words)
        for i, word in enumerate([*parameters, *[0] * WORDS][:WORDS]):
            place[i] = word
        for i, source in enumerate(sources):
            ctypes.c_void_p.from_address(tensor + self._sources + 8 * i).value = source or None

    def span(self, tensor: int) -> tuple[int, int]:
        """The first address of a tensor's elements, and the one behind the last; (0, 0) without memory."""
        start = self._symbols.ggml_get_data(tensor)
        return (start, start + self.nbytes(tensor)) if start else (0, 0)

    def describe(self, tensor: int) -> dict[str, Any]:
        """Name, type, lengths and strides in ggml's order, and the buffer that holds it."""
        buffer = self._held_by(tensor)
        return {
            "name": words(self._symbols.ggml_get_name(tensor)),
            "type": words(self._symbols.ggml_type_name(ctypes.c_int.from_address(tensor + self._type).value)),
            "ne": list((ctypes.c_int64 * 4).from_address(tensor + self._lengths)),
            "nb": list((ctypes.c_uint64 * 4).from_address(tensor + self._strides)),
            "number": ctypes.c_int.from_address(tensor + self._strides + NUMBER).value,  # of the operation
            "block": int(self._symbols.ggml_blck_size(ctypes.c_int.from_address(tensor + self._type).value)),
            "buffer": words(self._symbols.ggml_backend_buffer_name(buffer)) if buffer else "",
        }

    def readable(self, tensor: int) -> bool:
        """True if the bytes of a tensor can be read; weights in a repacked layout cannot."""
        buffer = self._held_by(tensor)
        if not buffer:
            return False
        name = words(self._symbols.ggml_backend_buffer_name(buffer)).upper()
        return not any(word in name for word in HIDDEN) or self._symbols.ggml_backend_buffer_is_host(buffer)

    def nbytes(self, tensor: int) -> int:
        """The number of bytes from a tensor's first element to its last."""
        return int(self._symbols.ggml_nbytes(tensor))

    def read(self, tensor: int, into: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy bytes of a tensor from its device: as many as there is room for, from an offset on."""
        self._symbols.ggml_backend_tensor_get(tensor, into.ctypes.data, offset, into.size)

    def copy_within(self, tensor: int, spans: Sequence[tuple[int, int]]) -> NDArray[np.uint8] | None:
        """A copy of a tensor that shares memory with one of these spans; None where it shares none."""
        start, end = self.span(tensor)
        if not any(start < last and first < end for first, last in spans) or not self.readable(tensor):
            return None
        copy = np.empty(self.nbytes(tensor), np.uint8)
        self.read(tensor, copy)
        return copy

    def settle(self, tensor: int, under: int) -> None:
        """Give a tensor the memory of another."""
        address = self._symbols.ggml_get_data(under)
        self._symbols.ggml_backend_tensor_alloc(self._held_by(under), tensor, address)

    def _held_by(self, tensor: int) -> int:
        """The buffer of a tensor; a view has that of its origin."""
        return _pointer((_pointer(tensor + self._origin) or tensor) + self._buffer)


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
