"""transformers: its kernel module for GGUF, for any number of rows, on a GPU and on a CPU.

transformers keeps blocks packed where a kernel module has four functions. Without one for the machine it
decodes the whole model; with one it still decodes the weights for more than 8 rows, and all on a CPU.
It does so for some architectures alone, and not at all before version 5.17. Files of others it decodes
before anything of this is asked, so the sentence of ``enable`` names those architectures, and the first such
file is a warning; ``from_gguf`` (pretrained.py) keeps them packed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

import ggmlq as gq

from ..products import product
from .pretrained import from_gguf, known
from .switch import Change, Switch

__all__ = ["disable", "enable", "from_gguf"]

PACKAGE = "transformers.integrations.gguf"
SINCE = 5, 17  # the version from which it keeps blocks of some architectures


def mul_mat_vec(weight: torch.Tensor, x: torch.Tensor, ggml_type: int, out_features: int) -> torch.Tensor:
    """Rows x [M, K] times rows of blocks [N, bytes], for any M; autograd knows the gradient of x."""
    return product(x, weight, ggml_type, out_features)


def mul_mat_id(
    blocks: torch.Tensor, x: torch.Tensor, ids: torch.Tensor, ggml_type: int, out_features: int
) -> torch.Tensor:
    """Each token times the experts that ids [T, U] name for it."""
    y: torch.Tensor = torch.ops.ggmlq.expert_linear(x, blocks, ids, ggml_type, out_features)
    return y


def dequantize(
    weight: torch.Tensor, ggml_type: int, rows: int, cols: int, dtype: torch.dtype
) -> torch.Tensor:
    """Values of blocks [rows, cols]."""
    values: torch.Tensor = torch.ops.ggmlq.dequantize(weight, ggml_type, [rows, cols], dtype)
    return values


def get_rows(
    weight: torch.Tensor, ids: torch.Tensor, ggml_type: int, cols: int, dtype: torch.dtype
) -> torch.Tensor:
    """Values of the rows that ids name."""
    values: torch.Tensor = torch.ops.ggmlq.get_rows(weight, ggml_type, ids, dtype)
    return values


KERNEL = SimpleNamespace(
    mul_mat_vec=mul_mat_vec, mul_mat_id=mul_mat_id, dequantize=dequantize, get_rows=get_rows,
    GEMV_TYPES=frozenset(fmt.id for fmt in gq.formats.values() if fmt.block_size > 1),
)  # fmt: skip


def _can_read(tensor: Any) -> bool:
    """True for tensors of any device, a CPU too."""
    return True


def _version() -> tuple[str, bool]:
    """The version of transformers, and whether it has a loader that keeps blocks."""
    version = str(import_module("transformers").__version__)
    major, minor = (int(part) for part in version.split(".")[:2])
    return version, (major, minor) >= SINCE


def _limits() -> str:
    """The architectures whose blocks transformers keeps, in words."""
    version, keeps = _version()
    if not keeps:
        return f"transformers {version} keeps none packed (from {SINCE[0]}.{SINCE[1]} on it keeps a few)"
    architectures = import_module(f"{PACKAGE}.gguf_conversion_mapping").GGUF_ARCHS
    return f"transformers {version} keeps {', '.join(sorted(architectures))} packed"


def _said() -> str:
    has, lacks = known()
    others = f", and with a newer transformers {', '.join(lacks)}" if lacks else ""
    return (
        f"{_limits()} and decodes files of all other architectures in full, by "
        "from_pretrained(folder, gguf_file=name); ggmlq.torch.hosts.transformers.from_gguf(path) keeps "
        f"{', '.join(has)} packed{others}"
    )


class Warned:
    """One warning while the host is switched on, from the first file that it decodes."""

    def __init__(self) -> None:
        self.done = False

    def warn(self, file: str) -> None:
        """Say that a file is decoded, and what keeps it packed."""
        if self.done:
            return
        self.done = True
        name = gq.open(file).metadata.get("general.architecture")
        warnings.warn(
            f"{_limits()} and decodes {name!r} in full: the model takes the memory of its floats; use "
            "ggmlq.torch.hosts.transformers.from_gguf(path), or ggmlq.torch.load_(model, path), which keep "
            "it packed",
            stacklevel=3,
        )

    def header(self, read_header: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        """The method that reads a file's header, with the warning where transformers decodes the file."""

        def call(quantizer: Any, gguf_file: str) -> None:
            read_header(quantizer, gguf_file)
            if not quantizer.supported and not quantizer.quantization_config.dequantize:
                self.warn(gguf_file)

        return call

    def checkpoint(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """The function that decodes a file, with the warning; without tensors it reads the metadata."""

        def call(path: str, return_tensors: bool = False, *rest: Any, **options: Any) -> Any:
            if return_tensors:
                self.warn(path)
            return load(path, return_tensors, *rest, **options)

        return call


def _changes() -> Iterator[Change]:
    warned = Warned()
    if not _version()[1]:
        legacy = import_module("transformers.modeling_gguf_pytorch_utils")
        yield legacy, "load_gguf_checkpoint", warned.checkpoint(legacy.load_gguf_checkpoint)
        return
    kernels, utils = import_module(f"{PACKAGE}.kernels"), import_module(f"{PACKAGE}.utils")
    quantizer = import_module("transformers.quantizers.quantizer_gguf").GgufHfQuantizer
    yield kernels, "_gguf_kernel", kernels.GgufKernel(KERNEL)
    yield kernels, "kernel_can_read", _can_read
    yield kernels, "MAX_GEMV_ROWS", sys.maxsize
    yield utils, "MAX_GEMV_ROWS", sys.maxsize
    yield quantizer, "is_trainable", property(lambda self: True)  # of adapters: blocks stay frozen
    yield quantizer, "read_header", warned.header(quantizer.read_header)


SWITCH = Switch("transformers", "transformers", "5.0.0 to 5.24.0", _changes, _said)
enable, disable = SWITCH.enable, SWITCH.disable
