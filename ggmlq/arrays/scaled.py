"""ScaledArray: codes of 8 or 16 bits with a scale for every tile, on the host or on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..base import text
from ..base.devices import cuda_device, device_of, is_host, namespace, on_device_of
from ..codes import CODES, Code
from ..codes.scaling import laid_out, values
from ..codes.tiling import Tile, Tiling, checked_tile, expanded, tiling
from ..errors import BlockIndexError, CodeError, DeviceError, DTypeError, ShapeError
from .buffers import refuse_mask
from .prepared import PreparedCopies
from .protocols import OPERATIONS, Operators, inner
from .tensors import bits_of, is_tensor
from .weights import Divided, Index, Transposed, Weights, index_of, picking, shape_of


def as_stored(request: str, array: Any, name: str = "codes") -> Any:
    """An array, or a tensor's bits as an array over its memory."""
    refuse_mask(request, array)
    return bits_of(request, array, name) if is_tensor(array) else array


class Beside(NamedTuple):
    """A checker of the scales and zero points that a caller passes beside codes."""

    request: str
    codes: Any
    tile: Tile
    over: Tiling

    def scales(self, scales: Any) -> Any:
        """The checked scales: float32, or e8m0 as bytes; a single number will do for one tile."""
        scales = as_stored(self.request, scales, "scales")
        if is_host(scales) and not isinstance(scales, np.ndarray):
            scales = np.asarray(scales, np.float32)
        if not scales.shape and self.over.shape == (1, 1):
            scales = namespace(self.codes).asarray(scales, np.float32).reshape(1, 1)
        if scales.dtype.name in CODES["e8m0"].aliases:
            scales = scales.view(np.uint8)
        if scales.dtype not in (np.float32, np.uint8):
            raise DTypeError(
                f"{self.request}: scales are {scales.dtype}; they are float32, or uint8 that hold e8m0; "
                "convert with scales.astype(np.float32)"
            )
        return self._fitting(scales, "scales")

    def zeros(self, zeros: Any, code: Code) -> Any:
        """The checked zero points: integers in the shape of the scales."""
        zeros = as_stored(self.request, zeros, "zeros")
        zeros = np.asarray(zeros) if is_host(zeros) else zeros
        if code.kind != "integer":
            raise CodeError(
                f"{self.request}: zeros with {code.name}; floats have a zero of their own, only integer "
                'codes have zero points; leave zeros out, or take "int8_full" or "uint8"'
            )
        if zeros.dtype.kind not in "iu":
            raise DTypeError(
                f"{self.request}: zeros are {zeros.dtype}; a zero point is the code of 0.0, an integer; "
                "round them, zeros.astype(np.int32)"
            )
        if not zeros.shape and self.over.shape == (1, 1):
            zeros = namespace(self.codes).asarray(zeros).reshape(1, 1)
        if is_host(zeros) and zeros.size and not (code.min <= zeros.min() and zeros.max() <= code.max):
            raise CodeError(
                f"{self.request}: zeros reach from {zeros.min()} to {zeros.max()}; a zero point is a code of "
                f"{code.name}, {code.min} … {code.max}; clip them to that"
            )
        return self._fitting(zeros, "zeros")

    def _fitting(self, array: Any, name: str) -> Any:
        """Raise an error unless scales or zero points lie on the device of the codes, one for each tile."""
        if device_of(array) != device_of(self.codes):
            raise DeviceError(
                f"{self.request}: codes are on {device_of(self.codes)}, {name} on {device_of(array)}; all "
                "parts are on one device; move them with cupy.asarray(a) or a.get()"
            )
        want = self.over.shape
        if array.shape != want:
            hint = ""
            if array.ndim != 2 and array.size == math.prod(want):
                hint = f"; pass {name}.reshape{want}"
            elif array.shape == want[::-1]:
                hint = f"; they look transposed, pass {name}.T"
            raise ShapeError(
                f"{self.request}: {name} have shape {array.shape}; codes {self.codes.shape} in tiles of "
                f"{self.tile} need {want}, one a tile: rows are those of all axes before the last "
                f"together{hint}"
            )
        return array


class Matrix(NamedTuple):
    """A ScaledArray as kernels take it: two dimensions, one device, rows of codes one after the other."""

    codes: Any  # [rows, columns], unit stride along rows of columns
    scales: Any  # float32 [ceil(rows / r), ceil(columns / c)], of any strides
    zeros: Any  # integers like the scales, or None
    code: Code
    over: Tiling

    def row_scales(self, xp: Any) -> Any:
        """The scales of each row, float32 [rows, ceil(columns / c)]."""
        return expanded(xp, self.scales, self.over._replace(c=1))


class ScaledArray(PreparedCopies, Weights):
    """Codes [..., C] and scales [ceil(R / r), ceil(C / c)]: value = scale · (code - zero).

    Parameters
    ----------
    codes : array
        On the host or on a device; 8-bit floats as bytes, or in the dtype that ml_dtypes or torch has for
        them. Nothing is copied.
    scales : array
        float32, or e8m0 as uint8 (powers of two); two-dimensional, of any strides. R is the number of
        rows: of all axes before the last together. A single number will do where there is one tile.
    code : str or Code
        What the codes are: a name in ``gq.codes``.
    tile : (int or None, int or None)
        Rows × columns that share a scale; None is the whole axis.
    zeros : array of integers, optional
        Zero points, of the shape of the scales; only integers have them.

    The parts are plain arrays: each carries every array protocol, DLPack too.

    >>> import numpy as np, ggmlq as gq
    >>> w = gq.quantize_scaled(np.eye(3, 256, dtype=np.float32), "e4m3", (1, 128))
    >>> w
    <ScaledArray e4m3 (3, 256), tile (1, 128), scales float32 (3, 2), 792 bytes, cpu>
    >>> (np.ones(256, np.float32) @ w.T).round(3)
    array([1., 1., 1.], dtype=float32)
    """

    __slots__ = {  # attributes with their docstrings
        "code": "The Code that says what the codes mean.",
        "codes": "The codes, a plain array [..., C] on its device.",
        "scales": "The scales, a plain array [ceil(R / r), ceil(C / c)]: float32, or e8m0 as uint8.",
        "tile": "Rows and columns that share a scale; None is the whole axis.",
        "zeros": "The zero points, integers of the shape of the scales, or None.",
    }

    codes: Any
    scales: Any
    zeros: Any
    code: Code
    tile: Tile
    product: ClassVar[str] = "scaled_linear"
    stored: ClassVar[str] = "s.codes and s.scales"
    decoding: ClassVar[str] = "dequantize_scaled"

    def __init__(self, codes: Any, scales: Any, code: str | Code, tile: Any, zeros: Any = None) -> None:
        self.code = CODES[code]
        request = f"ScaledArray(codes, scales, {self.code.name!r}, {tile!r})"
        if self.code.kind == "scale":
            raise CodeError(
                f"{request}: {self.code.name} is a code for scales, without a zero or a sign; "
                f"codes are {', '.join(c.name for c in CODES.values() if c.kind != 'scale')}"
            )
        self.tile = checked_tile(request, tile)
        self.codes = self.code.checked(request, as_stored(request, codes))
        self.memory = self.codes
        if not self.shape:
            raise ShapeError(f"{request}: codes are a single number; they need an axis, pass at least 1-D")
        self._over = tiling(self.tile, math.prod(self.shape[:-1]), self.shape[-1])
        beside = Beside(request, self.codes, self.tile, self._over)
        self.scales = beside.scales(scales)
        self.zeros = None if zeros is None else beside.zeros(zeros, self.code)

    @classmethod
    @inner
    def assembled(
        cls, codes: Any, scales: Any, code: Code, tile: Tile, zeros: Any = None, over: Tiling | None = None
    ) -> Self:  # fmt: skip
        """A ScaledArray of parts that a quantizer made; nothing is checked, since they fit."""
        array = cls.__new__(cls)
        array.codes = array.memory = codes
        array.scales, array.zeros, array.code, array.tile = scales, zeros, code, tile
        array._over = over or tiling(tile, math.prod(codes.shape[:-1]), codes.shape[-1])
        return array

    @inner
    def passing(self) -> ScaledArray:
        """The array for one product: nothing that is made of its codes outlives it, nor is waited for."""
        array = self.assembled(self.codes, self.scales, self.code, self.tile, self.zeros, self._over)
        array.lasts, array.recorded = False, self.recorded
        if not is_host(self.codes):
            namespace(self.codes).empty(1, np.float32).fill(0)  # between who writes codes and who reads early
        return array

    @inner
    def as_rows(self) -> ScaledArray:
        """The array in two dimensions: all axes before the last become one."""
        if self.ndim == 2:
            return self
        codes = self.codes.reshape(self._over.rows, self._over.columns)
        return self.assembled(codes, self.scales, self.code, self.tile, self.zeros, self._over)

    # --- what it is ---------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the codes."""
        shape: tuple[int, ...] = self.codes.shape
        return shape

    @property
    @inner
    def unit(self) -> int:
        """The columns of a tile: slices begin at multiples of it; 1 where all columns share scales."""
        return self._over.c if self._over.shape[1] > 1 else 1

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on."""
        return device_of(self.codes)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts())

    @property
    def scale(self) -> str:
        """The type of the scales: ``"float32"`` or ``"e8m0"``."""
        return "e8m0" if self.scales.dtype == np.uint8 else "float32"

    @property
    @inner
    def tiling(self) -> Tiling:
        """The division of all rows and columns into tiles, in numbers."""
        return self._over

    def parts(self) -> tuple[Any, ...]:
        """Codes, scales and, where there are any, zero points."""
        if self.zeros is None:
            return self.codes, self.scales
        return self.codes, self.scales, self.zeros

    @inner
    def matrix(self) -> Matrix:
        """Everything in two dimensions, as kernels take it; a copy where codes do not lie in rows."""
        codes = self.codes.reshape(self._over.rows, self._over.columns)
        beside = codes.strides[-1] == codes.itemsize or codes.shape[-1] < 2
        if not beside or (codes.strides[0] < codes.shape[-1] * codes.itemsize and len(codes) > 1):
            codes = namespace(codes).ascontiguousarray(codes)  # rows that run up, one after the other
        return Matrix(codes, values(self.scales), self.zeros, self.code, self._over)

    def facts(self) -> list[tuple[str, object]]:
        return [
            ("code", self.code.name),
            ("shape", self.shape),
            ("tile", f"{self.tile} rows × columns"),
            ("scales", f"{self.scale} {self.scales.shape}{'' if self.zeros is None else ', zero points'}"),
            ("bytes", text.size(self.nbytes)),
            ("device", self.device),
        ]

    def __repr__(self) -> str:
        zeros = "" if self.zeros is None else ", zeros"
        return (
            f"<ScaledArray {self.code.name} {self.shape}, tile {self.tile}, "
            f"scales {self.scale} {self.scales.shape}{zeros}, {text.size(self.nbytes)}, {self.device}>"
        )

    # --- rows ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> ScaledArray:
        """Index the axes before the last, and slice the last from the start of a tile on.

        Whole tiles of rows keep their scales, as views where the codes are one; rows out of tiles bring
        the scales of their tile along, one a row.
        """
        shape = self.codes.shape
        if len(shape) > 2 and (matrix := self.matrix_at(index)) is not None:
            return matrix
        kind, steps, place = type(index), (index,), None
        if len(shape) < 2 or not (kind is slice or (kind is int and -shape[0] <= index < shape[0])):
            # Most indices pick whole rows of the first axis, and need none of this.
            place = index_of(self, shape, index, self.unit, True, "index s.codes")
            steps = place.steps
        try:
            codes = self.codes[steps]
            rows = self._rows(steps)
        except (IndexError, TypeError) as error:
            raise BlockIndexError(
                f"{picking(index, self)}: {error}; its shape is {shape}; stay within it"
            ) from None
        if type(codes) is np.ndarray:
            return self._part(codes, rows, place)
        with on_device_of(picking(index, self), codes):
            return self._part(codes, rows, place)

    def _rows(self, steps: tuple[Any, ...]) -> Any:
        """The numbers of the rows that steps pick, with all axes before the last as one."""
        lead = self.codes.shape[:-1]
        if len(steps) == 1:
            step, length, inner = steps[0], lead[0], self._over.rows // (lead[0] or 1)
            if type(step) is slice and step.step is None:
                start, stop, _ = step.indices(length)
                return range(start * inner, stop * inner)
            if type(step) is int:
                return range(step % length * inner, (step % length + 1) * inner)
        numbers = np.arange(self._over.rows).reshape(lead)
        return numbers[tuple(_on_host(step) for step in steps)].reshape(-1)

    def _part(self, codes: Any, rows: Any, place: Index | None) -> ScaledArray:
        """The array of some rows of codes with their scales, cut to the columns of an index."""
        pick, r = self._picked(rows)
        scales, zeros = self.scales[pick], None if self.zeros is None else self.zeros[pick]
        if place is not None:
            c, first, end = self._over.c, place.first, place.end
            codes = codes[..., first:end]
            tiles = slice(first // c, -(-end // c) if end > first else first // c)
            scales, zeros = scales[:, tiles], None if zeros is None else zeros[:, tiles]
        return ScaledArray.assembled(codes, scales, self.code, (r, self.tile[1]), zeros)

    def reshape(self, *shape: Any) -> ScaledArray:
        """The rows under other leading axes; the last axis, along which tiles lie, stays as long."""
        request = f"reshape{shape} of {self!r}"
        dims = shape_of(request, self, shape)
        if dims[-1:] != self.shape[-1:]:
            raise ShapeError(
                f"{request}: the last axis would have {dims[-1] if dims else 'no'} elements; tiles lie along "
                f"its {self.shape[-1]}, and it stays so; reshape s.dequantize() and quantize it again"
            )
        with on_device_of(request, self.codes):
            return self._of([self.codes.reshape(dims), *self.parts()[1:]])

    def _picked(self, rows: Any) -> tuple[Any, int | None]:
        """The rows of scales for some rows of codes, and how many of those rows share one."""
        r, tall, count = self._over.r, self.tile[0], len(rows)
        if not count:
            return slice(0, 0), tall
        if tall is None:
            return slice(None), None
        first, last = int(rows[0]), int(rows[-1])
        together = type(rows) is range or (
            last - first + 1 == count and (count < 3 or bool((np.diff(rows) == 1).all()))
        )
        if together and (first % r == 0 or first // r == last // r):
            return slice(first // r, last // r + 1), tall
        return np.asarray(rows) // r, 1

    def __iter__(self) -> Iterator[ScaledArray]:
        if self.ndim < 2:
            raise BlockIndexError(
                f"iteration over {self!r}: it has no leading axis; iterate over s.codes or np.asarray(s)"
            )
        return (self[i] for i in range(len(self)))

    # --- elsewhere ----------------------------------------------------------------------

    def to(self, device: str) -> ScaledArray:
        """A copy on ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; the array itself if it is there already."""
        here = device == "cuda" and not is_host(self.codes)
        if device == self.device or (here and self.codes.device.id == cuda_device().current()):
            return self
        if device == "cpu":
            return self._of(laid_out(np, part, part.get()) for part in self.parts())
        upload, xp = cuda_device().upload, cuda_device().cupy()
        with cuda_device().named(device):
            return self._of(laid_out(xp, part, upload(part, device)) for part in self.parts())

    def copy(self) -> ScaledArray:
        """A copy of its own, whose parts may be written to; scales keep their order."""
        with on_device_of(f"copy() of {self!r}", self.codes):
            xp = namespace(self.codes)
            return self._of(laid_out(xp, part, part.copy()) for part in self.parts())

    def _of(self, parts: Any) -> ScaledArray:
        codes, scales, *zeros = parts
        return ScaledArray(codes, scales, self.code, self.tile, *zeros)

    def __reduce__(self) -> tuple[Any, ...]:
        return ScaledArray, (self.codes, self.scales, self.code, self.tile, self.zeros)

    # --- values -------------------------------------------------------------------------

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ShapeError(
                f"np.asarray({self!r}, copy=False): decoding makes a new array; allow the copy, or take "
                "s.codes and s.scales"
            )
        if not is_host(self.codes):
            raise DeviceError(
                f'np.asarray({self!r}): it is not on the host; use s.to("cpu"), or s.dequantize() for '
                "floats on the device"
            )
        floats = self.dequantize()
        return floats if dtype is None else np.asarray(floats, dtype)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Transposed) and isinstance(other.T, ScaledArray | Divided):
            return OPERATIONS[self.product](self, other.T)
        if isinstance(other, Operators):
            raise ShapeError(
                f"s @ … with {self!r} and a {type(other).__name__}: a product of two is x @ w.T, which is "
                "gq.scaled_linear(x, w), with w a ScaledArray [N, K]; write .T behind it"
            )
        return super().__matmul__(other)


def _on_host(step: Any) -> Any:
    return step if isinstance(step, slice) or is_host(step) else step.get()
