"""The one registry of kernels: what a problem is, what a rung is, and which rung serves a problem.

A rung is a module ``ggmlq/<device>/<op>/r<level>_<name>.py`` that ends in a decorated ``launch``.
The folder's listing is the ladder; a new rung touches nothing else.

A device may have a module ``ggmlq/<device>/choice.py`` that knows which rungs are fast for a problem,
because they were measured. It only orders them: a rung that refuses is passed over, a name that
belongs to no rung too, and after those it names come all others from the highest down.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from . import text
from .errors import DeviceError, UnsupportedError
from .formats import FORMATS, Format

DEVICES = ("cpu", "cuda")
USUAL = (1, 64)  # rows of activations: some kernels are for few of them


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
    caution: str | None = None  # why "auto" takes it only where no other rung serves


_RUNGS: dict[str, Rung] = {}


def register(
    module: str,
    doc: str | None,
    *,
    arithmetic: str,
    accumulate: str,
    refuses: Callable[[Problem], str | None] = serves_all,
    caution: str | None = None,
) -> Callable[[Callable[[Any, Any, Any], None]], Rung]:
    """Decorate the ``launch`` of a rung's module; pass ``__name__`` and ``__doc__``."""
    _, device, op, stem = module.rsplit(".", 3)
    level, _, name = stem.partition("_")
    teaches = (doc or "").strip().partition("\n")[0]

    def decorate(launch: Callable[[Any, Any, Any], None]) -> Rung:
        full = f"{device}:{name}"
        rung = Rung(
            op, device, full, int(level[1:]), teaches, arithmetic, accumulate, launch, refuses, caution
        )
        _RUNGS[f"{op}/{full}"] = rung
        _ordered.cache_clear()
        _remembered.cache_clear()
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


HIGHEST = "the highest that takes it"


def choose(problem: Problem, kernel: str = "auto", arithmetic: str | None = None) -> Rung:
    """The named rung, or the fastest known that does not refuse; without figures the highest."""
    return reasoned(problem, kernel, arithmetic)[0]


def reasoned(problem: Problem, kernel: str = "auto", arithmetic: str | None = None) -> tuple[Rung, str]:
    """What :func:`choose` gives, and why."""
    measured = _measured(problem.device)
    if measured is None:
        return _best(problem, kernel, arithmetic, (), "")
    return _remembered(problem, kernel, arithmetic, measured.card(), tuple(_RUNGS))


@cache
def _measured(device: str) -> Any:
    """The module that knows which rungs of a device are fast, or None."""
    name = f"{__package__}.{device}.choice"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


@lru_cache(1 << 12)
def _remembered(
    problem: Problem, kernel: str, arithmetic: str | None, card: Any, registered: tuple[str, ...]
) -> tuple[Rung, str]:
    """The best rung on a card; what a rung refuses may depend on the card, and on nothing else outside."""
    return _best(problem, kernel, arithmetic, *_measured(problem.device).preference(problem, card))


def _best(
    problem: Problem, kernel: str, arithmetic: str | None, preferred: tuple[str, ...], why: str
) -> tuple[Rung, str]:
    """The first that does not refuse: of the preferred ones, then of all from the highest down."""
    by_name = {rung.name: rung for rung in reversed(rungs(problem.op, problem.device))}
    order = dict.fromkeys([name for name in preferred if name in by_name] + list(by_name))
    why_not = []
    for rung in sorted((by_name[name] for name in order), key=lambda rung: rung.caution is not None):
        if kernel not in ("auto", rung.name):
            reason: str | None = "not the one asked for"
        elif arithmetic not in (None, rung.arithmetic):
            reason = f"multiplies in {rung.arithmetic}, {arithmetic} was asked for"
        else:
            reason = rung.refuses(problem)
        if reason is None:
            return rung, why if rung.name in preferred else HIGHEST
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

    A tenth of the time that it takes to make a problem and look that up; a device stays what it is.
    """
    return choose(Problem("linear", fmt, m, n, k, "cuda"), kernel, arithmetic)


class Choice(NamedTuple):
    """What ``kernel="auto"`` takes for so many rows of activations, and why."""

    device: str
    m: int
    kernel: str
    why: str


SHOWN = (1, 8, 64, 512)  # rows of activations
ORDINARY = 4096  # N, and about K, where a list is of kernels for a format


def choices(fmt: Format, device: str, op: str = "linear") -> list[Choice]:
    """What auto takes for an ordinary shape on a device, CuPy's current one if it is a GPU."""
    found = []
    for m in SHOWN:
        rung, why = reasoned(_ordinary(op, fmt, m, device))
        found.append(Choice(device, m, rung.name, why))
    return found


def _ordinary(op: str, fmt: Format, m: int, device: str) -> Problem:
    return Problem(op, fmt, m, ORDINARY, fmt.block_size * (ORDINARY // fmt.block_size), device)


class Ladder(list[Rung]):
    """Rungs that print as a table; ``auto`` says which of them ``kernel="auto"`` takes, for one format."""

    auto: list[Choice]

    def __init__(self, rungs: list[Rung], auto: list[Choice]) -> None:
        super().__init__(rungs)
        self.auto = auto

    def __repr__(self) -> str:
        header = ["kernel", "level", "arithmetic", "teaches"]
        shown = text.table(header, [[r.name, r.level, r.arithmetic, r.teaches] for r in self])
        if not self.auto:
            return shown
        taken = [[f"auto, M={choice.m}", choice.kernel, choice.why] for choice in self.auto]
        return f"{shown}\n\n{text.table([f'N=K={ORDINARY}', 'takes', 'because it is'], taken)}"


def kernels(
    op: str = "linear", format: str | int | Format | None = None, device: str | None = None
) -> Ladder:
    """The ladder of an operation: records that print as a table.

    Parameters
    ----------
    op : str
        The operation.
    format : str, int or Format, optional
        Only kernels that take weights of this format (of some ordinary shape); ``.auto`` of the
        list, and its print, then say which of them ``kernel="auto"`` takes for a few numbers of
        rows, and why.
    device : str, optional
        ``"cpu"`` or ``"cuda"``; both if not given.

    >>> import ggmlq as gq
    >>> gq.kernels(device="cpu")[0].name
    'cpu:naive'
    >>> gq.kernels(format="q4_0", device="cpu").auto[0].why
    'the highest that takes it'
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
    if fmt is None:
        return Ladder(found, [])
    found = [r for r in found if any(r.refuses(_ordinary(op, fmt, m, r.device)) is None for m in USUAL)]
    able = dict.fromkeys(rung.device for rung in found)
    return Ladder(found, [choice for kind in able for choice in choices(fmt, kind, op)])


@cache
def _operations() -> tuple[str, ...]:
    """The folders that hold rungs, of any device."""
    places = [importlib.import_module(f"{__package__}.{device}").__path__[0] for device in DEVICES]
    return tuple(sorted({rung.parent.name for place in places for rung in Path(place).glob("*/r[0-9]*.py")}))
