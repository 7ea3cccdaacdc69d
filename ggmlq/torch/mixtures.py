"""``GatedExperts``: the experts of one layer of a mixture, in place of a module of transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

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
    """

    def __init__(
        self, gate: gq.QuantArray, up: gq.QuantArray, down: gq.QuantArray,
        activation: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:  # fmt: skip
        super().__init__()
        self.gate, self.up, self.down = Experts(gate), Experts(up), Experts(down)
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
        bent = self.act_fn(self.gate(hidden_states, top_k_index)) * self.up(hidden_states, top_k_index)
        y: torch.Tensor = self.down(bent, top_k_index, top_k_weights)
        return y


class Mixtures:
    """The modules of a model that :class:`GatedExperts` replaces, transformers', as their stacks come in."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._parts = {name: part for name, part in model.named_modules() if _is_gated(part)}
        self._stacks: dict[str, dict[str, gq.QuantArray]] = {name: {} for name in self._parts}

    def place(self, source: str, target: str) -> str | None:
        """The place of a stack, by its name in the file and that of its first expert in a checkpoint."""
        match = re.fullmatch(r"(.+\.experts)\.\d+\..+", target)
        path, role = self.renamed(match[1]) if match else "", ROLES.get(source.split(".")[-2])
        return f"{path}.{role}.weight" if role and path in self._parts else None

    def renamed(self, target: str) -> str:
        """The name that a model has today for one of an older checkpoint."""
        today = target.replace(".block_sparse_moe.", ".mlp.")
        inside = today.rpartition(".mlp.")[0]
        return today if f"{inside}.mlp.experts" in self._parts else target

    def take(self, target: str, array: Any) -> bool:
        """Keep a stack, and put the packed module into the model with the last; False for another place."""
        path, _, role = target.removesuffix(".weight").rpartition(".")
        if path not in self._parts or role not in ROLES.values():
            return False
        stacks = self._stacks[path]
        stacks[role] = array
        if len(stacks) == len(ROLES):
            old = self._parts[path]
            new = _packed_experts(old, stacks).train(old.training)
            device = old.gate_up_proj.device
            self._model.set_submodule(path, new if device.type == "meta" else new.to(device))
        return True


def _is_gated(part: Any) -> bool:
    up, down = getattr(part, "gate_up_proj", None), getattr(part, "down_proj", None)
    if not isinstance(up, torch.nn.Parameter) or not isinstance(down, torch.nn.Parameter):
        return False
    if up.dim() != 3 or down.dim() != 3 or hasattr(part, "gate_up_proj_bias"):
        return False
    return tuple(up.shape) == (len(down), 2 * down.shape[2], down.shape[1]) and callable(part.act_fn)


def _packed_experts(part: Any, stacks: Mapping[str, gq.QuantArray]) -> GatedExperts:
    count, twice, width = part.gate_up_proj.shape
    if stacks["gate"].shape != (count, twice // 2, width):
        raise gq.errors.ShapeError(
            f"load_(model, file): the model has {count} experts of {twice // 2} × {width}, the file a "
            f"stack of shape {stacks['gate'].shape}; the file is of another model, or names lead astray"
        )
    return GatedExperts(**stacks, activation=part.act_fn)
