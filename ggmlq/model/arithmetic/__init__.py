"""Arithmetics: how a model multiplies, rounds and sums. The parts of a layer are written once on them.

kernels.py    the kernels of gq.linear, gq.expert_linear and gq.attention, in float32
exact.py      everything in float64, on decoded weights; keys and values in the types of the cache
cuda.py       everything on a GPU: kernels, and CuPy for the rest
ggml_cpu.py   as llama.cpp multiplies on x86: activations as 8-bit codes, GELU from a table of halves
flash.py      llama.cpp's attention in one node: its sums in halves
parts.py      attention in steps, so that scores and weights are arrays
"""

from __future__ import annotations

from ...base.devices import cuda_device
from ...errors import UnsupportedError
from .cuda import Cuda
from .kernels import Kernels
from .oracles import Exact, GgmlCpu

ARITHMETICS = {None: Kernels, "exact": Exact, "ggml-cpu": GgmlCpu}

__all__ = ["ARITHMETICS", "Cuda", "Exact", "GgmlCpu", "Kernels", "arithmetic_of"]


def arithmetic_of(name: str | None, device: str) -> Kernels:
    """The arithmetic of a name on a device."""
    if device != "cpu" and name is None:
        cuda_device().named(device)  # which refuses what is not there
        return Cuda(device)
    if device != "cpu" and name in ARITHMETICS:
        raise UnsupportedError(
            f"model.load: arithmetic={name!r} with device={device!r}; it is computed on the CPU alone; "
            "leave one of them out"
        )
    if name not in ARITHMETICS:
        raise UnsupportedError(
            f"model.load: arithmetic={name!r}; None takes the fastest kernels, others are "
            f"{', '.join(repr(one) for one in ARITHMETICS if one)}; choose one of these"
        )
    return ARITHMETICS[name]()
