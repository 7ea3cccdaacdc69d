"""ComfyUI-GGUF: its linear layers multiply packed weights, and LoRA patches run beside them.

Its own layers decode the weight for every call, and add patches to the decoded weight. A file in
``custom_nodes`` with the line ``from ggmlq.torch.hosts.comfyui import NODE_CLASS_MAPPINGS`` adds a node that
switches a workflow over; or call ``enable()`` once ComfyUI has loaded its nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

import ggmlq as gq

from ..products import product
from .switch import Change, Switch

Branch = tuple[float, torch.Tensor, torch.Tensor]  # strength, up [N, rank], down [rank, K]


def forward(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """The product of a GGMLOps.Linear; the layer's own where blocks or patches are of another kind."""
    weight = layer.weight
    type: Any = getattr(weight, "tensor_type", None)
    shape: Any = getattr(weight, "tensor_shape", ())
    branches = _branches(weight, input)
    if type is None or gq.formats[int(type)].block_size == 1 or len(shape) != 2 or branches is None:
        decoded: torch.Tensor = layer.__ggmlq_own_forward__(input)
        return decoded
    blocks = weight.to(input.device).as_subclass(torch.Tensor).reshape(shape[0], -1)
    y = product(input, blocks, int(type), shape[0])
    for strength, up, down in branches:
        y = y + (torch.nn.functional.linear(torch.nn.functional.linear(input, down), up) * strength).to(
            y.dtype
        )
    if layer.bias is not None:
        y = y + layer.get_weight(layer.bias.to(input.device), input.dtype).to(y.dtype)
    return y


def _branches(weight: Any, input: torch.Tensor) -> list[Branch] | None:
    """The patches of a weight as branches of low rank; None where one of them is something else."""
    branches = []
    for patches, _ in getattr(weight, "patches", ()):
        for strength, patch, strength_model, offset, function, *_ in patches:
            parts = getattr(patch, "weights", None)
            if parts is None and isinstance(patch, tuple) and len(patch) == 2 and patch[0] == "lora":
                parts = patch[1]
            plain = strength_model == 1 and offset is None and function is None
            if parts is None or not plain or any(part is not None for part in parts[3:]):
                return None
            up, down, alpha = parts[:3]
            if not (isinstance(up, torch.Tensor) and up.dim() == down.dim() == 2):
                return None
            scale = 1.0 if alpha is None else float(alpha) / down.shape[0]
            there = {"device": input.device, "dtype": input.dtype}
            branches.append((float(strength) * scale, up.to(**there), down.to(**there)))
    return branches


def _changes() -> Iterator[Change]:
    loaded = [getattr(one, "__dict__", {}) for one in list(sys.modules.values())]
    modules = [names for names in loaded if isinstance(names.get("GGMLOps"), type) and "GGMLTensor" in names]
    if not modules:
        raise ImportError("no loaded module has GGMLOps and GGMLTensor; start it from ComfyUI")
    linear: Any = modules[0]["GGMLOps"].Linear
    linear.__ggmlq_own_forward__ = linear.forward_ggml_cast_weights
    yield linear, "forward_ggml_cast_weights", forward


SWITCH = Switch("comfyui", "ComfyUI-GGUF", "its version of 2026-01", _changes)
enable, disable = SWITCH.enable, SWITCH.disable


class Node:
    """A node between a loader and a sampler: products of packed weights, or the host's own."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("MODEL",), "switch", "bootleg"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """The inputs, as ComfyUI asks for them."""
        return {"required": {"model": ("MODEL",), "packed": ("BOOLEAN", {"default": True})}}

    def switch(self, model: Any, packed: bool) -> tuple[Any]:
        """Hand the model on, with the products that the workflow wants."""
        if packed != SWITCH.enabled:
            (enable if packed else disable)()
        return (model,)


NODE_CLASS_MAPPINGS = {"GGMLQProducts": Node}
