"""The one registry of kernels: what a problem is, what a rung is, and which rung serves a problem.

A rung is a module ``ggmlq/<device>/<op>/r<level>_<name>.py`` that ends in a decorated ``launch``.
The folder's listing is the ladder; a new rung touches nothing else.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from . import text
from .errors import DeviceError, UnsupportedError
from .formats import FORMATS, Format

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Problem:
    """One operation on one shape: what a rung accepts or refuses."""

    op: str
    format: Format
    m: int  # rows of activations
    n: int  # rows of weights
    k: int  # length of both
    device: str  # "cpu" or "cuda"
    lasting: bool = True  # whether the weights keep their bytes, so that a kernel may keep them in its order

    def __str__(self) -> str:
        return f"{self.op}[{self.format.name}, M={self.m}, N={self.n}, K={self.k}, {self.device}]"


def serves_all(problem: Problem) -> str | None:
    """The ``refuses`` of a rung that takes every problem."""
    return None


@dataclass(frozen=True)
class Rung:
    """One step of the ladder."""

    op: str
    device: str
    name: str  # "cpu:panels"
    level: int  # from the file's name
    teaches: str  # first line of the file
    arithmetic: str  # what it multiplies: docs/arithmetic.md
    accumulate: str  # "int32", "f32" …: fixes its tolerance
    launch: Callable[[Any, Any, Any], None]  # x [M, K], weights [N, K], out f32 [M, N]
    refuses: Callable[[Problem], str | None] = serves_all  # None, or the reason in words


_RUNGS: dict[str, Rung] = {}


def register(
    module: str,
    doc: str | None,
    *,
    arithmetic: str,
    accumulate: str,
    refuses: Callable[[Problem], str | None] = serves_all,
) -> Callable[[Callable[[Any, Any, Any], None]], Rung]:
    """Decorate the ``launch`` of a rung's module; pass ``__name__`` and ``__doc__``."""
    _, device, op, stem = module.rsplit(".", 3)
    level, _, name = stem.partition("_")
    teaches = (doc or "").strip().partition("\n")[0]

    def decorate(launch: Callable[[Any, Any, Any], None]) -> Rung:
        full = f"{device}:{name}"
        rung = Rung(op, device, full, int(level[1:]), teaches, arithmetic, accumulate, launch, refuses)
        _RUNGS[f"{op}/{full}"] = rung
        _ordered.cache_clear()
        chosen.cache_clear()
        return rung

    return decorate


def rungs(op: str, device: str) -> tuple[Rung, ...]:
    """The rungs of an operation on a device, from the lowest; imported when first asked for."""
    _load(f"{__package__}.{device}.{op}")
    return _ordered(op, device, tuple(_RUNGS))


@cache
def _ordered(op: str, device: str, registered: tuple[str, ...]) -> tuple[Rung, ...]:
    found = [rung for rung in _RUNGS.values() if (rung.op, rung.device) == (op, device)]
    return tuple(sorted(found, key=lambda rung: (rung.level, rung.name)))


@cache
def _load(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        return
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name[0] == "r" and module.name[1:2].isdecimal():
            importlib.import_module(f"{package}.{module.name}")


def choose(problem: Problem, kernel: str = "auto", arithmetic: str | None = None) -> Rung:
    """The named rung, or the highest one that does not refuse."""
    why_not = []
    for rung in reversed(rungs(problem.op, problem.device)):
        if kernel not in ("auto", rung.name):
            reason: str | None = "not the one asked for"
        elif arithmetic not in (None, rung.arithmetic):
            reason = f"multiplies in {rung.arithmetic}, {arithmetic} was asked for"
        else:
            reason = rung.refuses(problem)
        if reason is None:
            return rung
        why_not.append(f"{rung.name}: {reason}")
    listed = "; ".join(why_not) or f"this version has no kernel for {problem.device} arrays"
    way = "gq.kernels() lists what there is"
    if problem.device != "cpu":
        way += ', q.to("cpu") and x.get() move the work to the host'
    raise UnsupportedError(
        f"{problem} with kernel={kernel!r}, arithmetic={arithmetic!r}: no kernel takes it: {listed}; {way}"
    )


@lru_cache(1 << 12)
def chosen(
    fmt: Format, m: int, n: int, k: int, index: int, kernel: str = "auto", arithmetic: str | None = None
) -> Rung:
    """What :func:`choose` says of a product on the current CUDA device, whose number is ``index``.

    It is asked once for each: a device stays what it is. On the host the answer may change.
    """
    return choose(Problem("linear", fmt, m, n, k, "cuda"), kernel, arithmetic)


class Ladder(list[Rung]):
    """Rungs that print as a table."""

    def __repr__(self) -> str:
        header = ["kernel", "level", "arithmetic", "teaches"]
        return text.table(header, [[r.name, r.level, r.arithmetic, r.teaches] for r in self])


def kernels(
    op: str = "linear", format: str | int | Format | None = None, device: str | None = None
) -> Ladder:
    """The ladder of an operation: records that print as a table.

    Parameters
    ----------
    op : str
        The operation.
    format : str, int or Format, optional
        Only kernels that take weights of this format (of some ordinary shape).
    device : str, optional
        ``"cpu"`` or ``"cuda"``; both if not given.

    >>> import ggmlq as gq
    >>> gq.kernels(device="cpu")[0].name
    'cpu:naive'
    """
    fmt = None if format is None else FORMATS[format]
    kinds = DEVICES if device is None else (str(device).partition(":")[0],)
    if kinds[0] not in DEVICES:
        raise DeviceError(f"kernels(device={device!r}): no such device; devices are cpu and cuda")
    if op not in _operations():
        raise UnsupportedError(
            f"kernels({op!r}): no such operation; this version has {', '.join(_operations())}"
        )
    found = [rung for kind in kinds for rung in rungs(op, kind)]
    if fmt is not None:
        k = fmt.block_size * (4096 // fmt.block_size)
        found = [r for r in found if r.refuses(Problem(op, fmt, 64, 4096, k, r.device)) is None]
    return Ladder(found)


@cache
def _operations() -> tuple[str, ...]:
    """The folders that hold rungs, of any device."""
    places = [importlib.import_module(f"{__package__}.{device}").__path__[0] for device in DEVICES]
    return tuple(sorted({rung.parent.name for place in places for rung in Path(place).glob("*/r[0-9]*.py")}))
