"""Arithmetics: how a model multiplies, rounds and sums. The parts of a layer are written once on them.

kernels.py   the kernels of gq.linear, gq.expert_linear and gq.attention, in float32; rope; attention in steps
host.py      everything on the CPU by compiled kernels
cuda.py      everything on a GPU: kernels, and CuPy for the rest
oracles.py   everything in float64 on decoded weights; or as llama.cpp multiplies on x86
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...base.devices import cuda_device
from ...errors import UnsupportedError
from .host import Host
from .kernels import Kernels

ARITHMETICS = {None: "host.Host", "exact": "oracles.Exact", "ggml-cpu": "oracles.GgmlCpu"}

__all__ = ["ARITHMETICS", "Host", "Kernels", "arithmetic_of"]


def arithmetic_of(name: str | None, device: str, invariant: bool = False) -> Kernels:
    """The arithmetic of a name on a device; ``invariant``: bits of a row depend on no other row."""
    if invariant and name is not None:
        raise UnsupportedError(
            f"model.load: invariant=True with arithmetic={name!r}; it takes the fastest kernels "
            "whose rows keep their bits; leave one of them out"
        )
    if device != "cpu" and name is None:
        cuda_device().named(device)  # which refuses what is not there
        return _made("cuda.Cuda", device, invariant)
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
    return _made(ARITHMETICS[name], *((invariant,) if name is None else ()))


def _made(place: str, *arguments: Any) -> Kernels:
    """The arithmetic of a module's class; others are not imported."""
    module, _, name = place.partition(".")
    arithmetic: Kernels = getattr(import_module(f".{module}", __name__), name)(*arguments)
    return arithmetic
