"""Parts of layers that remember by a state in place of keys: short convolutions and the gated delta rule.

Products have the rows of all sequences; here each sequence goes on from its own state (``state.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..base.devices import namespace
from .arithmetic.kernels import Array, Past
from .caches import Part
from .step import Step


def pasts(step: Step, layer: int, like: Array) -> list[Past]:
    """The states of the step's sequences in a layer, of the type of rows."""
    number, states = step.config.unkeyed(layer), []
    for part, rows in step.parts:
        assert isinstance(part, Part), "steps with a state are not recorded on a GPU"
        states.append(Past(rows, *part.states(number, like)))
    return states


def convolution(step: Step, x: Array, name: str, layer: int, node: str) -> Array:
    """The causal convolution of each column [T, C] over the last few tokens, told as ``node``."""
    states = pasts(step, layer, x)
    for rows, before, _ in states:
        step.tell("conv_states", before[0].T, layer)
        step.tell("conv_input", namespace(x).concatenate([before[0], x[rows]]).T, layer)
    weights = step.weights.vector(f"blk.{layer}.{name}.weight")
    return step.tell(node, step.a.convolved(x, weights, states), layer)


def delta_rule(step: Step, heads: Sequence[Array], layer: int) -> Array:
    """Readings [T, H, D] of queries from a state that keys and values were written to."""
    return step.a.delta_rule(heads, pasts(step, layer, heads[0]))


def unit(step: Step, x: Array, node: str, layer: int) -> Array:
    """Heads of length 1, told as ``node``."""
    width = x.shape[-1]
    y = step.a.norm(x, step.config.epsilon / width) * x.dtype.type(1 / math.sqrt(width))
    return step.tell(node, y, layer)
