"""The interface of a format: what a file of a type states, and what follows from that.

Every ggml block means ``value[i] = scale[i // group] * code[i] - offset[i // group]`` with int8
codes. A format file states its layout (a NumPy dtype) and three verbs: codes, scale, offset.
Dequantization and every generic kernel are written once on top of them.

The verbs exist twice in each file. ``unpack`` works on whole NumPy arrays. The *atoms* ``code``,
``scale`` and ``offset`` work on the bytes of one block in plain Python; Numba compiles the same
text for the CPU and for the GPU. Tests hold the two together.
"""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import UnsupportedError

Bytes = NDArray[np.uint8]
Blocks = NDArray[Any]  # structured, one element a block (scalars: a plain dtype)
Floats = NDArray[np.float32]


class Parts(NamedTuple):
    """Blocks taken apart: ``scale * codes - offset`` are the values."""

    codes: NDArray[np.int8]  # [..., block_size]
    scale: Floats  # [..., block_size // group]
    offset: Floats | None  # like scale, or None where the format has no offset


class Scales(NamedTuple):
    """The numbers in a block of which its scales are made, for kernels that store these numbers.

    ``scale(g) = d * unit * (sub(g) - zero)`` and ``offset(g) = m * sign * low(g)``, exact in float32. d
    and m are the first and the second half of the block, ``sub`` and ``low`` give bytes (1 where there
    are none).
    """

    sub: Callable[[Bytes, int], int] | None = None
    zero: int = 0
    unit: float = 1
    low: Callable[[Bytes, int], int] | None = None
    nibbles: bool = False  # the byte of ``sub`` is both: its high four bits are those of ``low``
    sign: int = 1
    table: Floats | None = None  # or: scale(g) = table[sub(g)], without a half
    d: Callable[[Bytes], int] | None = None  # bits of d, where no field of the block holds it


PLAIN = Scales()


@dataclass(frozen=True, eq=False, kw_only=True)
class Format(ABC):
    """One ggml type: what its bytes mean."""

    name: str  # ggml's own spelling
    id: int  # ggml's enum value
    block_size: int  # elements a block
    dtype: np.dtype[Any]  # one block; its itemsize is the only statement of the size
    needs_imatrix: bool = False

    @property
    def bits_per_weight(self) -> float:
        """Storage cost of one element in bits."""
        return 8 * self.dtype.itemsize / self.block_size

    @property
    @abstractmethod
    def can_quantize(self) -> bool:
        """True where :func:`ggmlq.quantize` can write this format."""

    @property
    def half2_dtype(self) -> np.dtype[Any] | None:
        """The dtype with the pair of halves as one ``half2`` field, where ggml has that."""
        return None

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row with so many elements (a multiple of the block size)."""
        return elements // self.block_size * self.dtype.itemsize

    def byteswapped(self, raw: Bytes) -> Bytes:
        """A copy of rows of bytes with every number in the other byte order."""
        return raw.view(self.dtype).byteswap().view(np.uint8)

    @abstractmethod
    def decode(self, blocks: Blocks, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Blocks [..., n] to values [..., n * block_size], with the bits of ggml's float32."""

    @abstractmethod
    def encode(self, x: Floats, imatrix: Floats | None = None) -> Blocks:
        """Finite float32 rows [rows, K] to blocks [rows, K // block_size], with ggml's bytes."""

    @abstractmethod
    def invalid(self, blocks: Blocks) -> NDArray[np.bool_]:
        """A mask of the blocks with a scale (or value) that is NaN, infinite or forbidden."""

    def __repr__(self) -> str:
        return (
            f"<{self.name}: id {self.id}, {self.block_size} weights in {self.dtype.itemsize} "
            f"bytes, {self.bits_per_weight:g} bits a weight>"
        )

    def __reduce__(self) -> tuple[Any, ...]:  # descriptors are unique: pickle by name
        return _by_name, (self.name,)


CATALOGUE: dict[str, Format] = {}  # filled by the package, once it has imported them all


def _by_name(name: str) -> Format:
    return CATALOGUE[name]


def no_atom(block: Bytes, g: int) -> np.float32:
    """The offset atom of formats without an offset."""
    return np.float32(0)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BlockFormat(Format):
    """A format of blocks with integer codes. See the module's docstring for the verbs."""

    group: int  # elements that share a scale (and an offset)
    unpack: Callable[[Blocks], Parts]
    code: Callable[[Bytes, int], int]  # element i of the block
    scale: Callable[[Bytes, int], np.float32]  # group g of the block
    offset: Callable[[Bytes, int], np.float32] = no_atom
    scales: Scales = PLAIN
    index: Callable[[Bytes, int], int] | None = None  # bits of element i, where two of them mean one code
    zero: int = 0  # stored code = code + zero, which the -8*s formula of q4_0 needs
    pack: Callable[[Floats, Floats | None], Blocks] | None = None  # [rows, n, block_size] -> [rows, n]
    compiled_only: bool = False  # there is an encoder, but a search too long for NumPy: no ``pack``
    imatrix: Literal["ignored", "optional", "required"] = "ignored"  # by ggml's encoder
    search: Literal["never", "weighted", "always"] = "never"  # when pack tries many scales: it is slow then
    fallback: str | None = None  # llama.cpp's choice for rows that are no whole blocks; f16 after that
    half2: str | None = None  # name of the union of two neighbouring halves in ggml's struct
    forbidden: Callable[[Blocks], NDArray[np.bool_]] | None = None  # beyond non-finite floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs_imatrix", self.imatrix == "required")
        if self.block_size % self.group:
            raise ValueError(f"{self.name}: group {self.group} does not divide {self.block_size}")
        assert self.dtype.fields is not None
        assert self.dtype.names is not None
        end = 0
        for field in self.dtype.names:
            kind, offset = self.dtype.fields[field][:2]
            if offset != end:
                raise ValueError(f"{self.name}.{field}: at byte {offset}, expected {end}")
            end += kind.itemsize
        if end != self.dtype.itemsize:
            raise ValueError(f"{self.name}: fields end at {end} of {self.dtype.itemsize} bytes")
        parts = self.unpack(np.zeros(2, self.dtype))
        groups = self.block_size // self.group
        for part, dtype, n in (
            (parts.codes, np.int8, self.block_size),
            (parts.scale, np.float32, groups),
            (parts.offset, np.float32, groups),
        ):
            if part is not None and (part.dtype != dtype or part.shape != (2, n)):
                raise ValueError(f"{self.name}: unpack gave {part.dtype} {part.shape}")
        if (parts.offset is None) is self.has_offset:
            raise ValueError(f"{self.name}: unpack and the offset atom disagree")

    @property
    def has_offset(self) -> bool:
        """True where values have an offset besides the scale."""
        return self.offset is not no_atom

    @property
    def formula(self) -> str:
        """The formula of a value in ggml's letters: the head of the format's file states it."""
        match = re.search("``value = (.*?)``", sys.modules[self.unpack.__module__].__doc__ or "")
        return match[1] if match else f"scale * q{' - offset' if self.has_offset else ''}"

    @property
    def can_quantize(self) -> bool:
        return self.pack is not None or self.compiled_only

    @property
    def half2_dtype(self) -> np.dtype[Any] | None:
        if self.half2 is None:
            return None
        fields: list[tuple[Any, ...]] = []
        for name in self.dtype.names or ():
            kind = self.dtype[name]
            if kind != np.dtype("<f2"):
                fields.append((name, kind.base, kind.shape))
            elif not any(field[0] == self.half2 for field in fields):
                fields.append((self.half2, "<f2", (2,)))
        return np.dtype(fields)

    def decode(self, blocks: Blocks, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        with np.errstate(invalid="ignore", over="ignore"):  # damaged scales are data, not a bug
            codes, scale, offset = self.unpack(blocks)
            by_group = (*scale.shape, self.group)
            values: Floats = codes.reshape(by_group) * scale[..., None]
            if offset is not None:
                values -= offset[..., None]  # two roundings, as in ggml: never a fused one
            n = math.prod(blocks.shape[-1:])  # a single block has no axis
            flat = values.reshape(*blocks.shape[:-1], n * self.block_size)
            return flat.astype(dtype, copy=False)

    def encode(self, x: Floats, imatrix: Floats | None = None) -> Blocks:
        if self.pack is None:
            raise UnsupportedError(f"{self.name}.encode(x): {self._no_pack()}")
        with np.errstate(all="ignore"):  # ggml's own arithmetic, overflow and all
            weights = None if self.imatrix == "ignored" else imatrix
            return self.pack(x.reshape(x.shape[0], -1, self.block_size), weights)

    def _no_pack(self) -> str:
        if self.can_quantize:
            return f"{self.name} has no encoder in NumPy; ggmlq.quantize(x, {self.name!r}) has a compiled one"
        return f"this version only decodes {self.name}"

    def invalid(self, blocks: Blocks) -> NDArray[np.bool_]:
        bad = np.zeros(blocks.shape, np.bool_)
        for name in blocks.dtype.names or ():
            if blocks.dtype[name].kind == "f":
                bad |= ~np.isfinite(blocks[name])
        return bad if self.forbidden is None else bad | self.forbidden(blocks)
