"""diffusers: the layers of models that are loaded with ``GGUFQuantizationConfig``.

Its own layers decode the whole weight for every call, or call kernels for CUDA that know a few types and that
torch.compile cannot see. With these the weights stay packed for any number of rows, on a CPU too.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from ..products import product
from .switch import Change, Switch


def forward(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """The product of a GGUFLinear, in its compute dtype as its own forward has it."""
    weight = layer.weight
    type = int(weight.quant_type)
    blocks = weight.as_tensor() if hasattr(weight, "as_tensor") else weight
    x = inputs if layer.compute_dtype is None else inputs.to(layer.compute_dtype)
    return product(x, blocks, type, layer.out_features, layer.bias)


def dequantize_gguf_tensor(tensor: Any) -> Any:
    """The values of a GGUFParameter as float32; any other tensor as it is."""
    if not hasattr(tensor, "quant_type"):
        return tensor
    return torch.ops.ggmlq.dequantize(
        tensor.as_tensor(), int(tensor.quant_type), list(tensor.quant_shape), torch.float32
    )


def _changes() -> Iterator[Change]:
    utils = import_module("diffusers.quantizers.gguf.utils")
    yield utils.GGUFLinear, "forward", forward
    yield utils, "dequantize_gguf_tensor", dequantize_gguf_tensor


SWITCH = Switch("diffusers", "diffusers", "0.42.1", _changes)
enable, disable = SWITCH.enable, SWITCH.disable
