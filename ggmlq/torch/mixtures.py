"""``GatedExperts``: the experts of one layer of a mixture, in place of a module of transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import ggmlq as gq

from .modules import Experts

ROLES = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}  # by names in a file


class GatedExperts(torch.nn.Module):
    """Gate, up and down of all experts, packed: ``down(activation(gate(x)) * up(x))``, summed with weights.

    Parameters
    ----------
    gate, up, down : QuantArray
        Weights [E, N, K], [E, N, K] and [E, K, N].
    activation : callable
        It bends what the gate gives.
    biases : mapping, optional
        Tensors [E, N], [E, N] and [E, K] by the names gate, up and down.
    """

    def __init__(
        self, gate: gq.QuantArray, up: gq.QuantArray, down: gq.QuantArray,
        activation: Callable[[torch.Tensor], torch.Tensor], biases: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        added = {} if biases is None else biases
        self.gate, self.up = Experts(gate, added.get("gate")), Experts(up, added.get("up"))
        self.down = Experts(down, added.get("down"))
        if gate.shape != up.shape or down.shape != (gate.shape[0], gate.shape[2], gate.shape[1]):
            raise gq.errors.ShapeError(
                f"GatedExperts(gate, up, down): shapes are {gate.shape}, {up.shape}, {down.shape}; they are "
                "[E, N, K], the same, and [E, K, N]; pass the three stacks of one layer"
            )
        self.act_fn, self.num_experts = activation, gate.shape[0]

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Sums [T, K] of the experts that ``top_k_index`` [T, U] names, by their weights [T, U]."""
        gate, up = self.gate(hidden_states, top_k_index), self.up(hidden_states, top_k_index)
        y: torch.Tensor = self.down(self.gated(gate, up), top_k_index, top_k_weights)
        return y

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The rows that down multiplies."""
        return self.act_fn(gate) * up


class ClampedExperts(GatedExperts):
    """The experts of gpt-oss, with biases."""

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The rows that down multiplies."""
        return swiglu_oai(gate, up)


def swiglu_oai(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation of gpt-oss: numbers below a limit, and 1 more than up."""
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


class Mixtures:
    """The modules of a model that :class:`GatedExperts` replaces, transformers', as their stacks come in."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._parts = {name: part for name, part in model.named_modules() if _is_gated(part)}
        packed = {name for name, part in model.named_modules() if isinstance(part, GatedExperts)}
        self._places = packed | self._parts.keys()
        self._stacks: dict[str, dict[str, Any]] = {name: {} for name in self._parts}

    def __bool__(self) -> bool:
        """True for a model that has experts of a layer in one module."""
        return bool(self._places)

    def place(self, source: str, target: str) -> str | None:
        """The place of a stack, by its name in the file and that of its first expert in a checkpoint."""
        match = re.fullmatch(r"(.+\.experts)\.\d+\..+", target)
        path, role = self.renamed(match[1]) if match else "", ROLES.get(source.split(".")[-2])
        return f"{path}.{role}.{source.rpartition('.')[2]}" if role and path in self._places else None

    def renamed(self, target: str) -> str:
        """The name that a model has today for one of an older checkpoint."""
        today = target.replace(".block_sparse_moe.", ".mlp.")
        inside = today.rpartition(".mlp.")[0]
        return today if f"{inside}.mlp.experts" in self._places else target

    def take(self, target: str, array: Any) -> bool:
        """Keep a stack, and put the packed module into the model with the last; False for another place."""
        path, *end = target.rsplit(".", 2)
        if path not in self._parts or len(end) < 2 or end[0] not in ROLES.values():
            return False
        stacks, old = self._stacks[path], self._parts[path]
        stacks[".".join(end)] = array
        if len(stacks) == len(ROLES) * (1 + _has_biases(old)):
            new = _packed_experts(old, stacks).train(old.training)
            device = old.gate_up_proj.device
            self._model.set_submodule(path, new if device.type == "meta" else new.to(device))
        return True


def _has_biases(part: Any) -> bool:
    return hasattr(part, "gate_up_proj_bias")


def _is_gated(part: Any) -> bool:
    up, down = getattr(part, "gate_up_proj", None), getattr(part, "down_proj", None)
    if not isinstance(up, torch.nn.Parameter) or not isinstance(down, torch.nn.Parameter):
        return False
    if up.dim() != 3 or down.dim() != 3:
        return False
    if _has_biases(part):  # gpt-oss has its matrices the other way round, gate and up in turns
        return tuple(up.shape) == (len(down), down.shape[2], 2 * down.shape[1])
    return tuple(up.shape) == (len(down), 2 * down.shape[2], down.shape[1]) and callable(
        getattr(part, "act_fn", None)
    )


def _packed_experts(part: Any, stacks: Mapping[str, Any]) -> GatedExperts:
    arrays = {role: stacks[f"{role}.weight"] for role in ROLES.values()}
    biases = {role: stacks[f"{role}.bias"] for role in arrays if f"{role}.bias" in stacks}
    count, width, hidden = part.down_proj.shape
    if _has_biases(part):
        hidden, width = width, hidden
    if arrays["gate"].shape != (count, hidden, width):
        raise gq.errors.ShapeError(
            f"load_(model, file): the model has {count} experts of {hidden} × {width}, the file a "
            f"stack of shape {arrays['gate'].shape}; the file is of another model, or names lead astray"
        )
    if not biases:
        return GatedExperts(**arrays, activation=part.act_fn)
    dtype = part.gate_up_proj_bias.dtype
    floats = {role: torch.from_numpy(np.array(bias, np.float32)).to(dtype) for role, bias in biases.items()}
    return ClampedExperts(**arrays, activation=torch.sigmoid, biases=floats)
