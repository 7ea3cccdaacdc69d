"""``GatedExperts``: the experts of one layer of a mixture, in place of a module of transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import ggmlq as gq

from .modules import Experts

ROLES = {  # by names in a file
    "ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down", "ffn_gate_up_exps": "up",
}  # fmt: skip


class GatedExperts(torch.nn.Module):
    """Gate, up and down of all experts, packed: ``down(activation(gate(x)) * up(x))``, summed with weights.

    Parameters
    ----------
    gate, up, down : QuantArray
        Weights [E, N, K], [E, N, K] and [E, K, N]. Where ``gate`` is None, ``up`` is [E, 2N, K] with the
        gate's rows first, or there is no gate: ``down(activation(up(x)))``.
    activation : callable
        It bends what the gate gives.
    biases : mapping, optional
        Tensors [E, N], [E, N] and [E, K] by the names gate, up and down.
    """

    def __init__(
        self, gate: gq.QuantArray | None, up: gq.QuantArray, down: gq.QuantArray,
        activation: Callable[[torch.Tensor], torch.Tensor], biases: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        added = {} if biases is None else biases
        self.gate = None if gate is None else Experts(gate, added.get("gate"))
        self.up, self.down = Experts(up, added.get("up")), Experts(down, added.get("down"))
        count, rows, columns = up.shape
        self.halves = gate is None and rows == 2 * down.shape[2]
        if (gate is not None and gate.shape != up.shape) or down.shape != (
            count, columns, rows // 2 if self.halves else rows,
        ):  # fmt: skip
            raise gq.errors.ShapeError(
                f"GatedExperts(gate, up, down): shapes are {gate and gate.shape}, {up.shape}, {down.shape}; "
                "they are [E, N, K], the same, and [E, K, N]; pass the stacks of one layer"
            )
        self.act_fn, self.num_experts = activation, count

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Sums [T, K] of the experts that ``top_k_index`` [T, U] names, by their weights [T, U]."""
        up = self.up(hidden_states, top_k_index)
        gate = None if self.gate is None else self.gate(hidden_states, top_k_index)
        if self.halves:
            gate, up = up.chunk(2, -1)
        y: torch.Tensor = self.down(self.gated(gate, up), top_k_index, top_k_weights)
        return y

    def gated(self, gate: Any, up: torch.Tensor) -> torch.Tensor:
        """The rows that down multiplies."""
        return self.act_fn(up) if gate is None else self.act_fn(gate) * up  # type: ignore[no-any-return]


class ClampedExperts(GatedExperts):
    """The experts of gpt-oss, with biases."""

    def gated(self, gate: Any, up: torch.Tensor) -> torch.Tensor:
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
        whole = stacks["up.weight"].shape[1] == _rows(old) if "up.weight" in stacks else False
        if len(stacks) == (2 if whole else 3) * (1 + _has_biases(old)):
            new = _packed_experts(old, stacks).train(old.training)
            device = old.down_proj.device
            self._model.set_submodule(path, new if device.type == "meta" else new.to(device))
        return True


def _has_biases(part: Any) -> bool:
    return hasattr(part, "gate_up_proj_bias")


def _rows(part: Any) -> int:
    """Rows of the first matrix of each expert; gpt-oss has them as columns."""
    first = getattr(part, "gate_up_proj", None)
    return int((part.up_proj if first is None else first).shape[2 if _has_biases(part) else 1])


def _is_gated(part: Any) -> bool:
    first, down = (
        getattr(part, "gate_up_proj", getattr(part, "up_proj", None)),
        getattr(part, "down_proj", None),
    )
    if not isinstance(first, torch.nn.Parameter) or not isinstance(down, torch.nn.Parameter):
        return False
    if first.dim() != 3 or down.dim() != 3:
        return False
    if _has_biases(part):  # gpt-oss has its matrices the other way round, gate and up in turns
        return tuple(first.shape) == (len(down), down.shape[2], 2 * down.shape[1])
    rows = down.shape[2] * (1 + hasattr(part, "gate_up_proj"))
    return tuple(first.shape) == (len(down), rows, down.shape[1]) and callable(getattr(part, "act_fn", None))


def _packed_experts(part: Any, stacks: Mapping[str, Any]) -> GatedExperts:
    arrays: dict[str, Any] = {role: stacks.get(f"{role}.weight") for role in ("gate", "up", "down")}
    biases = {role: stacks[f"{role}.bias"] for role in arrays if f"{role}.bias" in stacks}
    count, width, hidden = part.down_proj.shape
    if _has_biases(part):
        hidden, width = width, hidden
    if arrays["down"].shape != (count, width, hidden):
        raise gq.errors.ShapeError(
            f"load_(model, file): the model has {count} experts of {hidden} × {width}, the file a "
            f"stack of shape {arrays['down'].shape}; the file is of another model, or names lead astray"
        )
    if not biases:
        return GatedExperts(**arrays, activation=part.act_fn)
    dtype = part.gate_up_proj_bias.dtype
    floats = {role: torch.from_numpy(np.array(bias, np.float32)).to(dtype) for role, bias in biases.items()}
    return ClampedExperts(**arrays, activation=torch.sigmoid, biases=floats)
