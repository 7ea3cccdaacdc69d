"""The one registry of kernels: what a problem is, what a rung is, and which rung serves a problem.

A rung is a module ``ggmlq/<device>/<op>/r<level>_<name>.py`` that ends in a decorated ``launch``.
The folder's listing is the ladder; a new rung touches nothing else.

A device may have a module ``ggmlq/<device>/choice.py`` that knows which rungs are fast for a problem,
because they were measured. It only orders them: a rung that refuses is passed over, a name that
belongs to no rung too, and after those it names come all others from the highest down.
"""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from .announced import announced
from .errors import MissingDependencyError, UnsupportedError
from .formats import Format

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
    made = partial(_rung, module, doc, arithmetic, accumulate, refuses=refuses, caution=caution)

    def decorate(launch: Callable[[Any, Any, Any], None]) -> Rung:
        rung = made(launch)
        _RUNGS[f"{rung.op}/{rung.name}"] = rung
        _ordered.cache_clear()
        _remembered.cache_clear()
        chosen.cache_clear()
        return rung

    return decorate


def _rung(
    module: str, doc: str | None, arithmetic: str, accumulate: str,
    launch: Callable[[Any, Any, Any], None], **facts: Any,
) -> Rung:  # fmt: skip
    """A rung by the name of its module, ``ggmlq.<device>.<op>.r<level>_<name>``."""
    _, device, op, stem = module.rsplit(".", 3)
    level, _, name = stem.partition("_")
    teaches = (doc or "").strip().partition("\n")[0]
    return Rung(
        op, device, f"{device}:{name}", int(level[1:]), teaches, arithmetic, accumulate, launch, **facts
    )


def rungs(op: str, device: str) -> tuple[Rung, ...]:
    """The rungs of an operation on a device, from the lowest; imported when first asked for.

    Where their language is missing, what their files say of them: :func:`absent` has the words.
    """
    if absent(op, device) is not None:
        return _announced(op, device)
    return _ordered(op, device, tuple(_RUNGS))


@cache
def _ordered(op: str, device: str, registered: tuple[str, ...]) -> tuple[Rung, ...]:
    found = [rung for rung in _RUNGS.values() if (rung.op, rung.device) == (op, device)]
    return tuple(sorted(found, key=_place))


def _place(rung: Rung) -> tuple[int, str]:
    return rung.level, rung.name


@cache
def absent(op: str, device: str) -> str | None:
    """Import the rungs of an operation on a device; why none of them can run here, or None."""
    package = f"{__package__}.{device}.{op}"
    if importlib.util.find_spec(package) is None:
        return None
    try:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if module.name[0] == "r" and module.name[1:2].isdecimal():
                importlib.import_module(f"{package}.{module.name}")
    except MissingDependencyError as error:
        return str(error)
    return None


@cache
def _announced(op: str, device: str) -> tuple[Rung, ...]:
    """The rungs of a device as their files announce them: to be listed, not to be launched."""
    reason = absent(op, device)

    def launch(x: Any, q: Any, out: Any) -> None:
        raise MissingDependencyError(str(reason))

    found = []
    for path in Path(__file__).parent.joinpath(device, op).glob("r[0-9]*.py"):
        doc, facts = announced(path) or (None, None)
        if facts is not None:
            module = f"{__package__}.{device}.{op}.{path.stem}"
            found.append(_rung(module, doc, launch=launch, refuses=lambda problem: reason, **facts))
    return tuple(sorted(found, key=_place))


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
    if (missing := absent(problem.op, problem.device)) is not None:
        raise MissingDependencyError(f"{problem}: {missing}")
    by_name = {rung.name: rung for rung in reversed(rungs(problem.op, problem.device))}
    if kernel not in ("auto", *by_name):
        raise UnsupportedError(_unknown(problem, kernel, list(by_name)))
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


def _unknown(problem: Problem, kernel: str, names: list[str]) -> str:
    asked, device = f"{problem} with kernel={kernel!r}", str(kernel).partition(":")[0]
    if device in DEVICES and device != problem.device:
        way = 'x.get() and q.to("cpu")' if device == "cpu" else 'cupy.asarray(x) and q.to("cuda")'
        return (
            f"{asked}: that is a kernel for {device} arrays, x and q are {problem.device} arrays; pass {way}"
        )
    stems = {name.partition(":")[2]: name for name in names}
    near = difflib.get_close_matches(str(kernel).rpartition(":")[2], stems, 1)
    meant = f"did you mean {stems[near[0]]!r}?" if near else "gq.kernels() lists what there is"
    return f"{asked}: there is no such kernel; those for {problem.device} are {', '.join(names)}; {meant}"


@lru_cache(1 << 12)
def chosen(
    fmt: Format, m: int, n: int, k: int, index: int, kernel: str = "auto", arithmetic: str | None = None
) -> Rung:
    """What :func:`choose` says of a product on the current CUDA device, whose number is ``index``.

    A tenth of the time that it takes to make a problem and look that up; a device stays what it is.
    """
    return choose(Problem("linear", fmt, m, n, k, "cuda"), kernel, arithmetic)
