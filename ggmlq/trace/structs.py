"""Reads ``ggml_tensor`` for a trace: name, type, lengths, strides, sources and buffer of a node.

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
from ..llama.symbols import InitParams, Symbols, words

LENGTHS = (512, 5, 7, 11)  # no two are equal, and none is a stride
SCALES = (0.4375, 3.25, 7.125)  # of attention: exact as floats, and unlike any other field
HIDDEN = ("AMX", "REPACK", "AARCH64", "KLEIDIAI", "SPACEMIT")  # layouts of weights that cannot be read back
SOURCES = 5  # sources of a node at most: attention has so many


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
        self._scales = attention and self._find("parameters", "=3f", [(attention, SCALES)])
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

    def scales(self, tensor: int) -> tuple[float, ...]:
        """Scale, largest bias and soft cap of an attention."""
        return tuple((ctypes.c_float * 3).from_address(tensor + self._scales))

    def describe(self, tensor: int) -> dict[str, Any]:
        """Name, type, lengths and strides in ggml's order, and the buffer that holds it."""
        buffer = self._held_by(tensor)
        return {
            "name": words(self._symbols.ggml_get_name(tensor)),
            "type": words(self._symbols.ggml_type_name(ctypes.c_int.from_address(tensor + self._type).value)),
            "ne": list((ctypes.c_int64 * 4).from_address(tensor + self._lengths)),
            "nb": list((ctypes.c_uint64 * 4).from_address(tensor + self._strides)),
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

    def read(self, tensor: int, into: NDArray[np.uint8]) -> None:
        """Copy all bytes of a tensor from its device."""
        self._symbols.ggml_backend_tensor_get(tensor, into.ctypes.data, 0, into.size)

    def _held_by(self, tensor: int) -> int:
        """The buffer of a tensor; a view has that of its origin."""
        return _pointer((_pointer(tensor + self._origin) or tensor) + self._buffer)


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
