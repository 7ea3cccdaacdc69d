"""Oracles: operations in float64 on the host, slow and right, in the arithmetic of any program."""

from .agreement import row_errors
from .attention import attention, attention_bound
from .bound import bound
from .gru import gru
from .linear import expert_linear, gated_linear, linear
from .multiply import multiply
from .nodes import ATTENTIONS, node
from .operands import Activations, Weights, activations, weights
from .rules import ARITHMETICS, ONE_TYPE, Quantizer, Rule, rule
from .scaled_linear import scaled_linear

__all__ = [
    "ARITHMETICS", "ATTENTIONS", "ONE_TYPE", "Activations", "Quantizer", "Rule", "Weights", "activations",
    "attention", "attention_bound", "bound", "expert_linear", "gated_linear", "gru", "linear", "multiply",
    "node", "row_errors", "rule", "scaled_linear", "weights",
]  # fmt: skip
