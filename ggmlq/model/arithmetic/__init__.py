"""Arithmetics: how a model multiplies, rounds and sums. The parts of a layer are written once on them.

kernels.py    the kernels of gq.linear, gq.expert_linear and gq.attention, in float32
exact.py      everything in float64, on decoded weights; keys and values in the types of the cache
ggml_cpu.py   as llama.cpp multiplies on x86: activations as 8-bit codes, GELU from a table of halves
flash.py      llama.cpp's attention in one node: its sums in halves
parts.py      attention in steps, so that scores and weights are arrays
"""

from __future__ import annotations

from ...errors import UnsupportedError
from .exact import Exact
from .ggml_cpu import GgmlCpu
from .kernels import Kernels

ARITHMETICS = {None: Kernels, "exact": Exact, "ggml-cpu": GgmlCpu}

__all__ = ["ARITHMETICS", "Exact", "GgmlCpu", "Kernels", "arithmetic_of"]


def arithmetic_of(name: str | None) -> Kernels:
    """The arithmetic of a name."""
    if name not in ARITHMETICS:
        raise UnsupportedError(
            f"model.load: arithmetic={name!r}; None takes the fastest kernels, others are "
            f"{', '.join(repr(one) for one in ARITHMETICS if one)}; choose one of these"
        )
    return ARITHMETICS[name]()
