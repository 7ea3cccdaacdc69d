"""Parts of layers that remember by a state in place of keys: short convolutions and the gated delta rule.

Products have the rows of all sequences; here each sequence goes on from its own state (``state.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..base.devices import namespace
from .arithmetic.kernels import Array
from .caches import Part
from .step import Step, joined


def over_states(
    step: Step, layer: int, rows: Sequence[Array], function: Callable[..., Array], which: slice = slice(None)
) -> Array:  # fmt: skip
    """``function(rows, before, behind)`` of each sequence, one after the other.

    ``which``: of the layer's arrays, those that the function goes on from and writes.
    """
    parts = []
    for part, some in step.parts:
        assert isinstance(part, Part), "steps with a state are not recorded on a GPU"
        before, behind = part.state.arrays(layer, rows[0])
        parts.append(function([x[some] for x in rows], before[which], behind[which]))
    return joined(parts)


def convolution(step: Step, x: Array, name: str, layer: int, node: str) -> Array:
    """The causal convolution of each column [T, C] over the last few tokens, told as ``node``."""
    weights = step.weights.vector(f"blk.{layer}.{name}.weight")

    def of_one(rows: list[Array], before: list[Array], behind: list[Array]) -> Array:
        step.tell("conv_states", before[0].T, layer)
        step.tell("conv_input", namespace(x).concatenate([before[0], rows[0]]).T, layer)
        return step.a.convolved(rows[0], weights, before[0], behind[0])

    return step.tell(node, over_states(step, layer, [x], of_one, slice(1)), layer)


def delta_rule(step: Step, heads: Sequence[Array], layer: int) -> Array:
    """What queries [T, H, D] read from a state that keys and values were written to, [T, H, D].

    ``heads``: queries, keys, values, the logarithm of what stays [T, H] and the share of what is new [T, H].
    """

    def of_one(rows: list[Array], before: list[Array], behind: list[Array]) -> Array:
        return step.a.delta_rule(rows, before[0], behind[0])

    return over_states(step, layer, heads, of_one, slice(1, 2))


def unit(step: Step, x: Array, node: str, layer: int) -> Array:
    """Heads of length 1, told as ``node``."""
    width = x.shape[-1]
    return step.tell(
        node, step.a.norm(x, step.config.epsilon / width) * x.dtype.type(1 / math.sqrt(width)), layer
    )
