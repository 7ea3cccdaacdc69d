"""transformers: its kernel module for GGUF, for any number of rows, on a GPU and on a CPU.

transformers keeps blocks packed where a kernel module has four functions. Without one for the machine it
decodes the whole model; with one it still decodes the weights for more than 8 rows, and all on a CPU.
It does so for some architectures alone. Files of others it decodes before anything of this is asked, so
the sentence of ``enable`` names those architectures, and such a file is a warning.
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
from .switch import Change, Switch

PACKAGE = "transformers.integrations.gguf"


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


def _limits() -> str:
    """The architectures whose blocks transformers keeps, in words."""
    package, mapping = import_module("transformers"), import_module(f"{PACKAGE}.gguf_conversion_mapping")
    return f"transformers {package.__version__} keeps {', '.join(sorted(mapping.GGUF_ARCHS))} packed"


def _said() -> str:
    return (
        f"{_limits()} and decodes files of all other architectures in full; for these use ggmlq.torch.load_"
    )


def _warning(read_header: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """The method that reads a file's header, with a warning where transformers decodes the file."""

    def call(self: Any, gguf_file: str) -> None:
        read_header(self, gguf_file)
        if not self.supported and not self.quantization_config.dequantize:
            name = import_module(f"{PACKAGE}.reader").read_gguf_metadata(gguf_file)[0]["general.architecture"]
            warnings.warn(
                f"{_limits()} and decodes {name!r} in full: the model takes the memory of its floats; use "
                "ggmlq.torch.load_(model, file), which keeps it packed",
                stacklevel=2,
            )

    return call


def _changes() -> Iterator[Change]:
    kernels, utils = import_module(f"{PACKAGE}.kernels"), import_module(f"{PACKAGE}.utils")
    quantizer = import_module("transformers.quantizers.quantizer_gguf").GgufHfQuantizer
    yield kernels, "_gguf_kernel", kernels.GgufKernel(KERNEL)
    yield kernels, "kernel_can_read", _can_read
    yield kernels, "MAX_GEMV_ROWS", sys.maxsize
    yield utils, "MAX_GEMV_ROWS", sys.maxsize
    yield quantizer, "is_trainable", property(lambda self: True)  # of adapters: blocks stay frozen
    yield quantizer, "read_header", _warning(quantizer.read_header)


SWITCH = Switch("transformers", "transformers", "5.24.0", _changes, _said)
enable, disable = SWITCH.enable, SWITCH.disable
