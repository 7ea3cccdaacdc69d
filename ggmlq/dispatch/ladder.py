"""The one registry of kernels: what a problem is, what a rung is, and which rung serves a problem.

A rung is a module ``ggmlq/<device>/<op>/r<level>_<name>.py`` that ends in a decorated ``launch``.
The folder's listing is the ladder; a new rung touches nothing else.

What an operation is about, the ladder does not know: each has a kind of :class:`Problem`, which its
rungs are asked about, and its module in ``ops/`` calls their ``launch`` with what they agree on.

A device may have a module ``ggmlq/<device>/choice.py`` that knows which rungs are fast for a problem,
because they were measured: ``preference(problem)`` is names, the fastest first, and where that comes
from; ``card()`` what the current device is. It only orders rungs: one that refuses is passed over, a
name that belongs to no rung too, and after those it names come all others from the highest down.
"""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from ..base.announced import announced
from ..errors import MissingDependencyError, UnsupportedError
from .card import Card

DEVICES = ("cpu", "cuda")
CHOICES = {"cpu": "ggmlq.cpu.choice", "cuda": "ggmlq.cuda.cost.choice"}  # modules that order the rungs
PACKAGE = Path(__file__).parents[1]
RENAMED = {  # names of kernels before 0.3, to be dropped in 0.4
    "cuda:roles": "cuda:warp_specialized",
    "cuda:strips": "cuda:packed",
    "cuda:few_rows": "cuda:small_m",
    "cuda:divided": "cuda:split_k",
    "cuda:few_codes": "cuda:small_m_codes",
}
KINDS: dict[str, type[Problem]] = {}  # by operation


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One operation on one shape: what a rung accepts or refuses. Each operation has a kind of its own."""

    device: str  # "cpu" or "cuda"
    card: Card | None = None  # None on a CPU, and where it is unknown: then nothing is refused for it

    op: ClassVar[str]
    setting: ClassVar[str] = ""  # in a few words, what all problems have in common that lists show
    operands: ClassVar[str] = "the operands"
    moved: ClassVar[dict[str, str]] = {"cpu": "host arrays", "cuda": "CuPy arrays"}  # what to pass elsewhere

    def __init_subclass__(cls, op: str) -> None:
        cls.op = op
        KINDS[op] = cls

    @property
    def facts(self) -> tuple[Hashable, ...]:
        """What a kind adds, in the order in which it is made of them."""
        return tuple(value for name, value in vars(self).items() if name not in ("device", "card"))

    @property
    def case(self) -> str:
        """In a few words, what tells it from the others that lists show."""
        return str(self)

    @classmethod
    def here(cls, *facts: Any, device: str) -> Self:
        """One on the current device."""
        return cls(*facts, device=device, card=current_card(device))

    @classmethod
    def shown(cls, format: Any, device: str, card: Card | None) -> Sequence[Self]:
        """Problems of an ordinary size that lists show, with operands of a format."""
        return []


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
    launch: Callable[..., Any]  # takes what the module of its operation in ops/ passes
    refuses: Callable[[Any], str | None] = serves_all  # a problem of its kind: None, or the reason in words
    caution: str | None = None  # why "auto" takes it only where no other rung serves
    narrow: bool = False  # whether ``launch`` writes float16 and bfloat16 as well as float32
    # Whether it does nothing but launch kernels, the same for every x of a shape and a kind. On a GPU it
    # takes float32, float16 and, as uint16, the bits of bfloat16.
    repeats: bool = False
    ends: bool = False  # whether it takes ``end``, ending.py: adds a bias, writes codes


_RUNGS: dict[str, Rung] = {}


def register(
    module: str,
    doc: str | None,
    *,
    arithmetic: str,
    accumulate: str,
    refuses: Callable[[Any], str | None] = serves_all,
    caution: str | None = None,
    narrow: bool = False,
    repeats: bool = False,
    ends: bool = False,
) -> Callable[[Callable[..., Any]], Rung]:
    """Decorate the ``launch`` of a rung's module; pass ``__name__`` and ``__doc__``."""
    facts: dict[str, Any] = {"refuses": refuses, "caution": caution, "narrow": narrow}
    facts |= {"repeats": repeats, "ends": ends}

    def decorate(launch: Callable[..., Any]) -> Rung:
        rung = _rung(module, doc, arithmetic, accumulate, launch, **facts)
        _RUNGS[f"{rung.op}/{rung.name}"] = rung
        chosen.cache_clear()
        return rung

    return decorate


def _rung(
    module: str, doc: str | None, arithmetic: str, accumulate: str,
    launch: Callable[..., Any], **facts: Any,
) -> Rung:  # fmt: skip
    """A rung by the name of its module, ``ggmlq.<device>.<op>.r<level>_<name>``."""
    *_, device, op, stem = module.split(".")
    if op in DEVICES:
        device, op = op, device
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
    found = [rung for rung in _RUNGS.values() if (rung.op, rung.device) == (op, device)]
    return tuple(sorted(found, key=_place))


def _place(rung: Rung) -> tuple[int, str]:
    return rung.level, rung.name


def package_of(op: str, device: str) -> str:
    """The package of an operation's rungs on a device; those of the GRU lie under its own roof."""
    return f"ggmlq.gru.{device}" if op == "gru" else f"ggmlq.{device}.{op}"


@cache
def absent(op: str, device: str) -> str | None:
    """Import the rungs of an operation on a device; why none of them can run here, or None."""
    package = package_of(op, device)
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

    def launch(*arguments: Any) -> None:
        raise MissingDependencyError(str(reason))

    found = []
    package = package_of(op, device)
    for path in PACKAGE.joinpath(*package.split(".")[1:]).glob("r[0-9]*.py"):
        doc, facts = announced(path) or (None, None)
        if facts is not None:
            module = f"{package}.{path.stem}"
            found.append(_rung(module, doc, launch=launch, refuses=lambda problem: reason, **facts))
    return tuple(sorted(found, key=_place))


HIGHEST = "the highest that takes it"


class Choice(NamedTuple):
    """A rung, and why it is taken."""

    rung: Rung
    why: str


def choose(problem: Problem, kernel: str = "auto", arithmetic: str | None = None) -> Rung:
    """The named rung, or the fastest known that does not refuse; without figures the highest."""
    return reasoned(problem, kernel, arithmetic).rung


def reasoned(problem: Problem, kernel: str = "auto", arithmetic: str | None = None) -> Choice:
    """What :func:`choose` gives, and why."""
    try:
        hash((kernel, arithmetic))
    except TypeError:
        return _best(problem, kernel, arithmetic)  # which says what is wrong with them
    kind: Any = type(problem)
    return chosen(kind, problem.device, problem.card, kernel, arithmetic, *problem.facts)


@lru_cache(1 << 12)
def chosen(
    kind: Any, device: str, card: Card | None, kernel: str, arithmetic: str | None, *facts: Hashable
) -> Choice:
    """The same, remembered: for who calls so often that making the problem would cost too much.

    What a rung refuses depends on the problem, its card, and on nothing that changes in a process.
    """
    return _best(kind(*facts, device=device, card=card), kernel, arithmetic)


@cache
def _measured(device: str) -> Any:
    """The module that knows which rungs of a device are fast, or None."""
    name = CHOICES.get(device)
    return importlib.import_module(name) if name else None


def current_card(device: str) -> Card | None:
    """The card that a problem has here; None where there is none."""
    measured = _measured(device)
    card: Card | None = measured.card() if measured else None
    return card


def code_of(device: str) -> str | None:
    """Where the code of a device's kernels comes from, where its module says so."""
    say = getattr(_measured(device), "code", None)
    return None if say is None else str(say())


def _best(problem: Problem, kernel: str, arithmetic: str | None) -> Choice:
    """The first that does not refuse: of the preferred ones, then of all from the highest down."""
    if (missing := absent(problem.op, problem.device)) is not None:
        raise MissingDependencyError(f"{problem}: {missing}")
    measured = _measured(problem.device)
    preferred, why = measured.preference(problem) if measured else ((), HIGHEST)
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
            return Choice(rung, why if rung.name in preferred else HIGHEST)
        why_not.append(f"{rung.name}: {reason}")
    listed = "; ".join(why_not) or f"this version has no kernel for {problem.device} arrays"
    way = "gq.kernels() lists what there is"
    if problem.device != "cpu":
        way += f", {problem.moved['cpu']} move the work to the host"
    raise UnsupportedError(
        f"{problem} with kernel={kernel!r}, arithmetic={arithmetic!r}: no kernel takes it: {listed}; {way}"
    )


def _unknown(problem: Problem, kernel: str, names: list[str]) -> str:
    asked, device = f"{problem} with kernel={kernel!r}", str(kernel).partition(":")[0]
    if device in DEVICES and device != problem.device:
        return (
            f"{asked}: that is a kernel for {device} arrays, {problem.operands} are {problem.device} arrays; "
            f"pass {problem.moved[device]}"
        )
    if str(kernel) in RENAMED:
        return f"{asked}: this kernel is called {RENAMED[str(kernel)]!r} since ggmlq 0.3; pass that name"
    stems = {name.partition(":")[2]: name for name in names}
    near = difflib.get_close_matches(str(kernel).rpartition(":")[2], stems, 1)
    meant = f"did you mean {stems[near[0]]!r}?" if near else "gq.kernels() lists what there is"
    return f"{asked}: there is no such kernel; those for {problem.device} are {', '.join(names)}; {meant}"
