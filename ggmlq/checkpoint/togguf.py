"""Converts a folder of safetensors to a GGUF file: planned in full, then streamed, whole or not at all.

Numbers go through float32, as in llama.cpp's converter. A tensor that already has its new type is copied as
it is; any other tensor is converted a few rows at a time.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import convert, gguf, safetensors
from ..arrays.array import QuantArray
from ..base.mixes import FILE_TYPES
from ..convert import rules
from ..errors import ConvertError, UnsupportedError
from ..formats import FORMATS, Format
from ..gguf import Metadata, Streamed, Typed
from ..gguf.header import TensorInfo
from ..gguf.source import checked_path
from ..ops import quantize
from ..ops.quantize import prepare
from ..safetensors import SafetensorsFile
from . import grids
from .config import Config, check_embedding, parameters
from .general import general
from .layout import always_f32, tensors
from .values import Values
from .vocabulary import vocabulary

# --- types of a mix, for a file which is planned and not yet written -------------------------


class Planned:
    """A stand-in for a GGUF file that is not written yet, with the facts that a mix needs, without values."""

    byteorder = "little"

    def __init__(self, source: str, metadata: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> None:
        self.path, self.paths = source, (source,)
        self.metadata = Metadata.of(metadata)
        self._infos = {info.name: info for info in tensors}

    def info(self, name: str) -> TensorInfo:
        """The facts about a tensor of the planned file."""
        return self._infos[name]

    def __getitem__(self, name: str) -> QuantArray:
        raise ConvertError(
            f"tensor {name!r} of {self.path}: it is planned only; write the file and open that"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __len__(self) -> int:
        return len(self._infos)


def is_mix(type: str) -> bool:
    """True for the name of a mix; an error for a name that only resembles one."""
    return rules.find(type, False) is not None


def planned(file: Planned, type: str) -> convert.Plan:
    """The plan with the types of a mix; an error if it needs an importance matrix, since none is there."""
    try:
        return convert.plan_quantize(file, type)
    except ConvertError as error:
        raise ConvertError(
            f"convert {file.path!r} to {type}: {error}; or in two steps: `ggmlq convert` without --type, "
            "then `ggmlq quantize`, which takes --imatrix and --keep"
        ) from error


# --- the conversion --------------------------------------------------------------------------

STEP = 1 << 21  # numbers made at a time
OWN = ("f32", "f16", "bf16", "q8_0")  # the converter's own types; others follow llama.cpp's quantizer


@dataclass(frozen=True)
class Tensor:
    """One tensor of the new file."""

    name: str
    format: Format
    values: Values
    kept: bool = False  # blocks of the checkpoint's own grid

    @property
    def nbytes(self) -> int:
        """Bytes in the new file."""
        return self.values.rows * self.format.row_bytes(self.values.columns)


@dataclass(frozen=True)
class Plan:
    """A conversion ready to be run: what ``--dry-run`` shows."""

    source: str
    architecture: str
    tensors: list[Tensor]
    metadata: Mapping[str, Any]
    mix: tuple[str, Plan] | None = None  # its name, and the plan of the file that it is made of
    notes: tuple[str, ...] = ()


def to_gguf(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str = "auto",
    *,
    pre: str | None = None,
) -> Plan:
    """Write a checkpoint of Hugging Face as a GGUF file, as llama.cpp's converter does.

    Parameters
    ----------
    source : str or os.PathLike
        The folder with config.json, the tokenizer and the safetensors; or a file of it.
    target : str or os.PathLike
        The new file.
    type : str
        Of the matrices: ``"f32"``, ``"f16"``, ``"bf16"``, ``"q8_0"``, or another that needs no importance;
        ``"auto"`` is bf16 for a checkpoint in bfloat16, else f16; matrices of 4 bits (GPTQ, AWQ, AutoRound,
        MLX) become blocks of the same grids, or it is an error. Norms, biases and routers are float32.
        Or a mix of types, ``"q4_K_M"``: the same bytes as of ``"auto"`` and then
        :func:`ggmlq.convert.quantize`, whose file lies beside the target meanwhile.
    pre : str, optional
        The name of the pre-tokenizer, where nothing recognises it.

    Raises
    ------
    ConvertError
        Before a byte is written, for an architecture, a tensor or a pre-tokenizer that is not known.
    """
    with safetensors.open(
        checked_path("to_gguf(source, target)", source, "pass the folder of the model")
    ) as file:
        planned = plan(file, type, pre)
        write(planned, target)
        return planned


def plan(file: SafetensorsFile, type: str = "auto", pre: str | None = None) -> Plan:
    """The plan of the GGUF file that a checkpoint becomes."""
    if str(type).lower() != "auto" and is_mix(type):
        return _mixed(plan(file, "auto" if grids.of(file) is None else "f16", pre), type)
    if file.missing:
        raise ConvertError(
            f"{file.path}: {len(file.missing)} of {len(file)} tensors are missing, {file.missing[0]!r} "
            "first; the download is incomplete; fetch the rest"
        )
    config, regrided = Config(file), grids.of(file)
    checkpoint: Any = regrided or file
    check_embedding(checkpoint, config)
    words = vocabulary(config, pre)
    values_by_name = tensors(checkpoint, config, words)
    fmt = FORMATS[_guessed(file)] if str(type).lower() == "auto" else FORMATS[type]
    if fmt.name not in FILE_TYPES or fmt.name in rules.WANT_IMATRIX or fmt.needs_imatrix:
        raise ConvertError(
            f"--type {fmt.name}: a checkpoint is converted to one of {', '.join(OWN)} or another type that "
            "needs no importance of columns; convert it to bf16 first, then `ggmlq quantize`"
        )
    if not fmt.can_quantize:
        raise UnsupportedError(f"--type {fmt.name}: this version cannot encode it; convert to bf16")
    metadata: dict[str, Any] = {"general.architecture": config.family.arch}
    metadata |= general(config, values_by_name) | parameters(config, FILE_TYPES[fmt.name], values_by_name)
    metadata |= {"general.quantization_version": Typed(rules.QUANTIZATION_VERSION, "uint32")} | words
    listed = [Tensor(name, _format(name, values, fmt), values) for name, values in values_by_name.items()]
    if regrided is None or str(type).lower() != "auto":
        return Plan(file.path, config.family.arch, listed, metadata)
    listed = [_kept(tensor) for tensor in listed]
    matrices = [tensor for tensor in listed if tensor.kept]
    if len(matrices) < len(regrided.stems):
        raise ConvertError(
            f"{file.path}: {len(regrided.stems) - len(matrices)} of {len(regrided.stems)} matrices of 4 "
            "bits are stacked or scaled in GGUF, where their blocks are made anew; pass --type f16, or "
            "another type"
        )
    types = Counter(tensor.format.name for tensor in matrices)
    metadata["general.file_type"] = Typed(FILE_TYPES[max(types, key=lambda name: types[name])], "uint32")
    weights = sum(tensor.values.rows * tensor.values.columns for tensor in matrices)
    note = f"0 of {weights:,} weights changed in {len(matrices)} matrices of 4 bits, which are " + ", ".join(
        f"{name} ({n})" for name, n in types.items()
    )
    return Plan(file.path, config.family.arch, listed, metadata, notes=(note,))


def _kept(tensor: Tensor) -> Tensor:
    """The tensor as blocks of its own grid, where it has one; an error where a weight would change."""
    if tensor.values.blocks is None:
        return tensor
    return replace(tensor, format=tensor.values.blocks(np.arange(1)).format, kept=True)


def _mixed(whole: Plan, type: str) -> Plan:
    infos = [TensorInfo(t.name, t.format, t.values.shape, 0, t.nbytes, 0) for t in whole.tensors]
    chosen = planned(Planned(whole.source, whole.metadata, infos), type)
    formats = {step.name: step.after for step in chosen.steps}
    tensors = [replace(tensor, format=formats[tensor.name]) for tensor in whole.tensors]
    return replace(whole, tensors=tensors, metadata={**whole.metadata, **chosen.metadata}, mix=(type, whole))


def _guessed(file: SafetensorsFile) -> str:
    """The type for ``"auto"``: that of the first matrix in bf16 or f16; f16 if there is none."""
    for name in file:
        entry = file.info(name)
        if len(entry.shape) > 1 and entry.dtype in ("BF16", "F16"):
            return entry.dtype.lower()
    return "f16"


def _format(name: str, values: Values, fmt: Format) -> Format:
    if always_f32(name, values.shape):
        return FORMATS["f32"]
    if fmt.name in OWN:
        return fmt if values.columns % fmt.block_size == 0 else FORMATS["f16"]
    if rules.why_left(name, FORMATS["f32"], values.shape):
        return FORMATS["f16"]
    return rules.fallback(f"tensor {name!r} to {fmt.name}", fmt, values.columns)


def write(plan: Plan, target: str | os.PathLike[str]) -> list[str]:
    """Write the file of a plan; it is there in full or not at all."""
    if plan.mix is not None:
        return _write_mix(*plan.mix, target)
    counts: dict[Format, int] = {}
    for tensor in plan.tensors:
        counts[tensor.format] = counts.get(tensor.format, 0) + tensor.values.rows * tensor.values.columns
    for fmt, count in counts.items():
        if fmt.block_size > 1:
            prepare(fmt, count, False)
    return gguf.save(target, {tensor.name: _written(tensor) for tensor in plan.tensors}, plan.metadata)


def _write_mix(type: str, whole: Plan, target: str | os.PathLike[str]) -> list[str]:
    """Write a mix by way of a temporary file of whole floats beside the target, then quantize that file."""
    try:
        room = tempfile.TemporaryDirectory(prefix=".ggmlq-", dir=os.path.dirname(os.path.abspath(target)))
    except OSError as error:
        raise ConvertError(
            f"convert {whole.source!r} to {os.fspath(target)!r}: no file can be made beside it: "
            f"{error.strerror}; name a file in a folder that may be written to"
        ) from error
    with room as folder:
        path = os.path.join(folder, "whole.gguf")
        write(whole, path)
        return convert.quantize(path, target, type).paths


def _written(tensor: Tensor) -> Any:
    plain = tensor.values.plain
    if plain is not None and plain.format is tensor.format:
        return plain
    return Streamed(tensor.format, tensor.values.shape, lambda: parts(tensor))


def parts(tensor: Tensor) -> Iterator[QuantArray]:
    """The rows of a tensor in its type, a few at a time and in order."""
    values = tensor.values
    step = max(1, STEP // max(values.columns, 1))
    for start in range(0, values.rows, step):
        rows = np.arange(start, min(start + step, values.rows))
        if tensor.kept and values.blocks is not None:
            yield values.blocks(rows)
            continue
        block = values.read(rows)
        if not np.isfinite(block).all():
            row, column = np.argwhere(~np.isfinite(block))[0].tolist()
            raise ConvertError(
                f"tensor {tensor.name!r}, row {start + row}, column {column} is {block[row, column]}; only "
                "finite values are converted; the checkpoint is damaged, fetch it again"
            )
        yield _encoded(tensor, block if len(values.shape) > 1 else block.reshape(-1))


def _encoded(tensor: Tensor, block: Any) -> QuantArray:
    if tensor.format.name == "f16" and block.size and np.abs(block).max() >= 65520:
        raise ConvertError(
            f"tensor {tensor.name!r} has {np.abs(block).max():g}, f16 ends at 65504; take --type bf16 or f32"
        )
    return quantize(np.ascontiguousarray(block), tensor.format)
