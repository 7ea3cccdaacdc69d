"""Checkpoints of 4 bits (GPTQ, AWQ, AutoRound, MLX) as blocks of the same grids: no weight changes.

    GPTQ   qweight [K / 8, N], qzeros [K / g, N / 8], scales [K / g, N], g_idx [K]; nibbles down a column,
           value = scale * (q - zero); what is stored is the zero less 1, but in its second format
    AWQ    qweight [K, N / 8], qzeros [K / g, N / 8], scales [K / g, N]; nibbles along a row, in an order
    MLX    weight [N, K / 8], scales [N, K / g], biases [N, K / g]; value = scale * q + bias

A group of g columns becomes blocks of 32 with one scale: q4_0 where all zeros are 8, q4_1 where offsets are
halves, else q5_0, whose codes hold q - zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.text import short
from ..errors import ConvertError
from ..formats import FORMATS, BlockFormat
from ..formats._direct import direct
from ..safetensors import SafetensorsFile
from ..safetensors.header import Entry
from .values import Values

Floats = NDArray[np.float32]
BLOCK = 32
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each nibble of AWQ's words
PARTS = (".qweight", ".qzeros", ".scales", ".g_idx", ".biases")
WAY_OUT = "take the checkpoint that it was made from"


class Grid(NamedTuple):
    """Weights as codes [N, K], and for each group of columns a scale and an offset [N, groups], float32."""

    codes: NDArray[np.uint8]
    scales: Floats
    zeros: NDArray[np.uint8] | None  # value = scale * (code - zero)
    offsets: Floats  # value = scale * code + offset

    def values(self) -> Floats:
        """The weights in float32, as the checkpoint means them."""
        n, k = self.codes.shape
        codes = self.codes.reshape(n, self.scales.shape[1], -1).astype(np.float32)
        if self.zeros is not None:
            return ((codes - self.zeros[..., None]) * self.scales[..., None]).reshape(n, k)
        return (codes * self.scales[..., None] + self.offsets[..., None]).reshape(n, k)


class Regrided(Mapping[str, Any]):
    """A checkpoint whose tensors of 4 bits are arrays of blocks under the names of the weights."""

    def __init__(self, file: SafetensorsFile, kind: str, settings: Mapping[str, Any]) -> None:
        self._file, self._kind, self._settings = file, kind, settings
        self.stems = [name.removesuffix(".scales") for name in file if name.endswith(".scales")]
        hidden = {stem + part for stem in self.stems for part in PARTS}
        self._names = [name for name in file if name not in hidden]
        self._names += [f"{stem}.weight" for stem in self.stems if f"{stem}.weight" not in file]
        self._packed = {f"{stem}.weight": stem for stem in self.stems}
        self._last: tuple[str, Any] = "", None
        self._made: tuple[str, Any] = "", None

    def __getattr__(self, name: str) -> Any:  # folder, config, missing and the rest are the file's
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._packed or name in self._names

    def info(self, name: str) -> Entry:
        """The facts about a tensor: those of weights have the shape of the weights."""
        stem = self._packed.get(name)
        if stem is None:
            return self._file.info(name)
        scales = self._file.info(stem + ".scales").shape
        words = self._file.info(stem + (".weight" if self._kind == "mlx" else ".qweight")).shape
        if len(scales) != 2 or len(words) != 2 or 0 in scales + words:
            raise ConvertError(
                f"{self._where(stem)}: words of shape {words}, scales of shape {scales}; both are matrices; "
                f"the checkpoint is damaged, or of another format; {WAY_OUT}"
            )
        if self._kind == "mlx":
            return Entry(name, "F16", (scales[0], 8 * words[1]), 0, 0)
        return Entry(name, "F16", (scales[1], words[0] * (8 if self._kind == "gptq" else 1)), 0, 0)

    def __getitem__(self, name: str) -> Any:
        stem = self._packed.get(name)
        if stem is None:
            return self._file[name]
        return Values(
            self.info(name).shape, lambda rows: self.grid(stem).values()[rows],
            blocks=lambda rows: self.blocks(stem)[rows],
        )  # fmt: skip

    def grid(self, stem: str) -> Grid:
        """The codes, scales and offsets of a layer's weights; the last one is kept."""
        if self._last[0] != stem:
            self._last = stem, self._read(stem)
        grid: Grid = self._last[1]
        return grid

    def blocks(self, stem: str) -> QuantArray:
        """The blocks of a layer's weights; the last ones are kept."""
        if self._made[0] != stem:
            self._made = stem, blocks(self._where(stem), self.grid(stem))
        q: QuantArray = self._made[1]
        return q

    def _read(self, stem: str) -> Grid:
        try:
            return _READERS[self._kind](self, stem)
        except ConvertError:
            raise
        except (ValueError, KeyError, IndexError) as error:
            raise ConvertError(
                f"{self._where(stem)}: its parts do not fit each other as {self._kind} writes them "
                f"({error}); the checkpoint is damaged, or of another format; {WAY_OUT}"
            ) from None

    def floats(self, name: str) -> Floats:
        """A part of floats, in float32."""
        return np.asarray(self._file[name], np.float32)

    def words(self, name: str) -> NDArray[np.uint8]:
        """The nibbles of words of 32 bits, [..., words, 8], the lowest first."""
        words = np.ascontiguousarray(self._file.stored(name)).view(np.uint32)
        return (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.uint8)

    def _where(self, stem: str) -> str:
        return f"{self._file.path}: {short(stem)}"


def of(file: SafetensorsFile) -> Regrided | None:
    """The checkpoint with its weights of 4 bits as blocks; None for one without such."""
    table = file.config.get("quantization_config") or file.config.get("quantization")
    if not isinstance(table, dict) or not any(name.endswith(".scales") for name in file):
        return None
    method = str(table.get("quant_method", "mlx" if "group_size" in table else ""))
    if method == "auto-round":
        method = "awq" if "awq" in str(table.get("packing_format")) else "gptq"
    if method not in _READERS:
        return None
    bits = table.get("bits", table.get("w_bit"))
    if bits != 4 or table.get("mode", "affine") != "affine":
        raise ConvertError(
            f"{file.path}: {method} with {bits} bits ({table.get('mode', 'integers')}); grids of 4 bits "
            f"become blocks without a change; {WAY_OUT}"
        )
    return Regrided(file, method, table)


def _gptq(file: Regrided, stem: str) -> Grid:
    codes = file.words(stem + ".qweight").transpose(1, 0, 2).reshape(file.info(stem + ".weight").shape)
    scales = file.floats(stem + ".scales").T
    if f"{stem}.g_idx" in file._file:
        order = file._file.stored(stem + ".g_idx")
        if not np.array_equal(order, np.arange(codes.shape[1]) // (codes.shape[1] // scales.shape[1])):
            raise ConvertError(
                f"{file._where(stem)}: its columns are grouped by importance (desc_act, g_idx), and a block "
                f"holds columns beside each other; {WAY_OUT}"
            )
    zeros = file.words(stem + ".qzeros").reshape(scales.shape[1], -1).T
    if file._settings.get("checkpoint_format") != "gptq_v2":
        zeros = zeros + 1
    return _zeroed(codes, scales, zeros)


def _awq(file: Regrided, stem: str) -> Grid:
    def ordered(name: str) -> NDArray[np.uint8]:
        words = file.words(name)
        return words[..., np.argsort(ORDER)].reshape(len(words), -1).T

    return _zeroed(ordered(stem + ".qweight"), file.floats(stem + ".scales").T, ordered(stem + ".qzeros"))


def _mlx(file: Regrided, stem: str) -> Grid:
    codes = file.words(stem + ".weight")
    scales, offsets = (file.floats(stem + end) for end in (".scales", ".biases"))
    return Grid(codes.reshape(len(codes), -1), scales, None, offsets)


def _zeroed(codes: NDArray[np.uint8], scales: Floats, zeros: NDArray[np.uint8]) -> Grid:
    return Grid(codes, scales, zeros, -scales * zeros)


_READERS = {"gptq": _gptq, "awq": _awq, "mlx": _mlx}


def blocks(where: str, grid: Grid) -> QuantArray:
    """The blocks of a grid; an error where a single weight would differ."""
    n, k = grid.codes.shape
    group = k // grid.scales.shape[1]
    if group % BLOCK or group * grid.scales.shape[1] != k:
        raise ConvertError(f"{where}: groups of {group} columns are no blocks of {BLOCK}; {WAY_OUT}")
    fmt, numbers = _fitting(grid)
    made = np.zeros((n * k // BLOCK, 1), fmt.dtype)
    repeated = np.repeat(grid.scales, group // BLOCK, axis=1).reshape(-1, 1)
    with np.errstate(over="ignore"):
        made["d"] = repeated
        if fmt.has_offset:
            made["m"] = np.repeat(grid.offsets, group // BLOCK, axis=1).reshape(-1, 1)
    places = direct(fmt)
    assert places is not None
    raw = made.view(np.uint8).reshape(len(made), -1)
    places.write(raw, numbers.reshape(-1, BLOCK))
    q = QuantArray.from_bytes(raw.reshape(n, -1), fmt, (n, k))
    want = grid.values()
    changed = int((np.asarray(q) != want).sum())
    if changed:
        raise ConvertError(
            f"{where}: {changed} of {want.size} weights would change as {fmt.name}, whose scales are halves; "
            f"{WAY_OUT}, or convert this one with --type f16 or another type, which rounds"
        )
    return q


def _fitting(grid: Grid) -> tuple[BlockFormat, NDArray[np.intp]]:
    """The smallest format that holds a grid, and the number of each weight's level in it."""
    codes = grid.codes.astype(np.intp)
    with np.errstate(over="ignore"):
        halves = np.array_equal(grid.offsets.astype(np.float16).astype(np.float32), grid.offsets)
    if grid.zeros is not None and (grid.zeros == 8).all():
        return _format("q4_0"), codes
    if grid.zeros is None or halves:
        return _format("q4_1"), codes
    zeros = np.repeat(grid.zeros.astype(np.intp), codes.shape[1] // grid.zeros.shape[1], axis=1)
    return _format("q5_0"), codes - zeros + 16


def _format(name: str) -> BlockFormat:
    fmt = FORMATS[name]
    assert isinstance(fmt, BlockFormat)
    return fmt
