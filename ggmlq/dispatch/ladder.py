"""The one registry of kernels: what a problem is, what a rung is, and which rung serves a problem.

A rung is a module ``ggmlq/<device>/<op>/r<level>_<name>.py`` that ends in a decorated ``launch``. The
folder's listing is the ladder; a new rung touches nothing else. Each operation has its kind of
:class:`Problem`, which its rungs accept or refuse, and a module in ``ops/`` that calls their ``launch``
with the arguments that :class:`Rung` lists.

A device may have a module that orders its rungs by speed, named in ``CHOICES``. Its
``preference(problem)`` gives names, the fastest first, and the source of that order; its ``card()`` is the
current device. Where its table lacks a problem, ``is_measured(problem)`` is False and ``shortlist(problem)``
names rungs to time. The module only orders rungs: rungs that refuse and names without a rung are passed over,
and rungs that it does not name come last, from the highest down. :func:`choose` takes the first rung that
accepts; :func:`explain` also says why.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from ..base import missing
from ..base.threads import num_threads
from ..errors import MissingDependencyError, UnsupportedError
from .card import Card


def announced(path: Path) -> tuple[str | None, dict[str, Any]] | None:
    """The docstring of a rung's file, and the constants that it passes to ``register``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        for call in getattr(node, "decorator_list", ()):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register":
                words = {
                    keyword.arg: keyword.value.value
                    for keyword in call.keywords
                    if keyword.arg and isinstance(keyword.value, ast.Constant)
                }
                return ast.get_docstring(tree), words
    return None


RENAMED = {  # names of kernels before 0.3, to be dropped in 0.4
    "cuda:roles": "cuda:warp_specialized",
    "cuda:few_rows": "cuda:small_m",
    "cuda:divided": "cuda:split_k",
    "cuda:few_codes": "cuda:small_m_codes",
}


def unknown(problem: Any, kernel: str, names: list[str], devices: tuple[str, ...]) -> str:
    """The words for a kernel of this name, which none of ``names`` is."""
    request, device = f"{problem} with kernel={kernel!r}", str(kernel).partition(":")[0]
    if device in devices and device != problem.device:
        return (
            f"{request}: that is a kernel for {device} arrays, {problem.operands} are {problem.device} "
            "arrays; "
            f"pass {problem.moved[device]}"
        )
    if name := RENAMED.get(str(kernel)):
        return f"{request}: this kernel is called {name!r} since ggmlq 0.3; pass that name"
    stems = {name.partition(":")[2]: name for name in names}
    near = difflib.get_close_matches(str(kernel).rpartition(":")[2], stems, 1)
    meant = f"did you mean {stems[near[0]]!r}?" if near else "gq.kernels() lists what there is"
    return f"{request}: there is no such kernel; those for {problem.device} are {', '.join(names)}; {meant}"


DEVICES = ("cpu", "cuda")
CHOICES = {
    "cpu": "ggmlq.cpu.choice",
    "cuda": "ggmlq.cuda.kernels.cost.choice",
}  # modules that order the rungs
PACKAGE = Path(__file__).parents[1]
KINDS: dict[str, type[Problem]] = {}  # by operation


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One operation on one shape, which a rung accepts or refuses. Each operation has its own kind."""

    device: str  # "cpu" or "cuda"
    card: Card | None = None  # None on a CPU, and where it is unknown: then nothing is refused for it
    captured: bool = False  # "auto" is to choose while a CUDA graph is recorded, or without CuPy's cuBLAS

    op: ClassVar[str]
    setting: ClassVar[str] = ""  # the part that all problems in a list have in common, in a few words
    operands: ClassVar[str] = "the operands"
    moved: ClassVar[dict[str, str]] = {"cpu": "host arrays", "cuda": "CuPy arrays"}  # operands on a device

    def __init_subclass__(cls, op: str) -> None:
        cls.op = op
        KINDS[op] = cls

    @property
    def case(self) -> str:
        """The facts by which this problem differs from others of a list, in a few words."""
        return str(self)

    @classmethod
    def here(cls, *facts: Any, device: str) -> Self:
        """A problem on the current device."""
        return cls(*facts, device=device, card=current_card(device))

    @classmethod
    def shown(
        cls, format: Any, device: str, card: Card | None, shape: tuple[int, int] | None = None
    ) -> Sequence[Self]:
        """Problems with operands of this format, for ``gq.kernels(format=…)``; ``shape``: their N and K."""
        return []

    def with_rows(self, rows: int) -> Self:
        """A problem like this one with another number of rows of activations, or tokens."""
        return self


def serves_all(problem: Problem) -> str | None:
    """None, no reason: the ``refuses`` of a rung that takes every problem."""
    return None


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: a kernel, the problems that it takes, and how an operation launches it.

    ``launch`` writes into ``out``, a C-contiguous array that shares no memory with an operand:

        linear          launch(x [M, K], q [N, K], out float32 [M, N])                x floats, q a QuantArray
        scaled_linear   launch(x [M, K], w [N, K], out float32 [M, N])                two ScaledArrays
        expert_linear   launch(x [R, K], q [E, N, K], ids int64 [T, U], out float32 [T, U, N])
                                                R is T or T·U; x and q as in linear or in scaled_linear
        gru             launch(calls)           a ggmlq.gru.run.Call for each direction

    All operands lie on ``device``; rows of x lie one after the other. No axis of out has length 0, nor has K.

    Flags say what else an operation may do with it:

        refuses   a problem of its kind -> None, or the reason in words why it cannot serve it
        caution   the reason why "auto" takes it only where no other rung serves
        narrow    ``out``, on the host x too, may be of 16 bits: its columns are even, and the rung rounds
        repeats   it does nothing but launch kernels, the same for all x of one shape and dtype, so that its
                  launches can be recorded and repeated; on a GPU x may then be float32, float16 or, as
                  uint16, the bits of bfloat16
        ends      ``launch(x, w, out, end=Epilogue(…))`` adds a bias, and writes codes into ``out``
        adds      it adds the residual of that Epilogue, too
        gates     the rows up to which it multiplies with the gate of that Epilogue
        invariant a row of ``out`` has its bits whatever the other rows are; or a ``launch`` so that it has
    """

    op: str
    device: str
    name: str  # "cpu:panels"
    level: int  # from the file's name
    teaches: str  # first line of the file
    arithmetic: str  # docs/arithmetic.md
    accumulate: str  # "int32", "f32" …: fixes its tolerance
    launch: Callable[..., Any]
    refuses: Callable[[Any], str | None] = serves_all
    caution: str | None = None
    narrow: bool = False
    repeats: bool = False
    ends: bool = False
    adds: bool = False
    gates: int = 0
    invariant: bool | Callable[..., Any] = False


_RUNGS: dict[str, Rung] = {}
_GENERATION = [0]


def register(
    module: str, doc: str | None, *, arithmetic: str, accumulate: str, **flags: Any
) -> Callable[[Callable[..., Any]], Rung]:  # fmt: skip
    """Decorate the ``launch`` of a rung's module; pass ``__name__`` and ``__doc__``.

    ``flags``: what else :class:`Rung` says of it, by its names, from ``refuses`` on.
    """

    def decorate(launch: Callable[..., Any]) -> Rung:
        rung = _rung(module, doc, arithmetic, accumulate, launch, **flags)
        _RUNGS[f"{rung.op}/{rung.name}"] = rung
        forget_choices()
        return rung

    return decorate


def _rung(
    module: str, doc: str | None, arithmetic: str, accumulate: str,
    launch: Callable[..., Any], **flags: Any,
) -> Rung:  # fmt: skip
    """The rung of a module, ``ggmlq.<device>.<op>.r<level>_<name>``."""
    *_, device, op, stem = module.replace(".ladder.", ".").split(".")
    if op in DEVICES:
        device, op = op, device
    level, _, name = stem.partition("_")
    teaches = (doc or "").strip().partition("\n")[0]
    return Rung(
        op, device, f"{device}:{name}", int(level[1:]), teaches, arithmetic, accumulate, launch, **flags
    )


def rungs(op: str, device: str, card: Card | None = None) -> tuple[Rung, ...]:
    """The rungs of an operation on a device, from the lowest; the first call imports them.

    Where a package is missing (:func:`absent` says which), they are read from their files, to be listed.
    """
    if absent(op, device, card) is not None:
        return _announced(op, device)
    return _ordered(rung for rung in _RUNGS.values() if (rung.op, rung.device) == (op, device))


def _ordered(steps: Iterable[Rung]) -> tuple[Rung, ...]:
    return tuple(sorted(steps, key=lambda rung: (rung.level, rung.name)))


def package_of(op: str, device: str) -> str:
    """The package with an operation's rungs on a device; rungs of the GRU lie in ``ggmlq.gru.<device>``."""
    room = "ggmlq.cuda.ladder" if device == "cuda" else f"ggmlq.{device}"
    return f"ggmlq.gru.{device}" if op == "gru" else f"{room}.{op}"


def absent(op: str, device: str, card: Card | None = None) -> str | None:
    """The reason why no rung of an operation can run on a device; None once they are imported.

    For a card that is not here nothing runs: its rungs are looked at, which needs no package of a GPU's.
    """
    is_here = card is None or card.here
    if device == "cuda" and is_here and (reason := missing.arrays_for_gpu()) is not None:
        return reason
    try:
        _import_rungs(op, device)
    except MissingDependencyError as error:
        return str(error)  # not remembered: torch, with which rungs for GPUs run, may be imported later
    return None


@cache
def _import_rungs(op: str, device: str) -> None:
    if importlib.util.find_spec(package := package_of(op, device)) is None:
        return
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name[0] == "r" and module.name[1:2].isdecimal():
            importlib.import_module(f"{package}.{module.name}")


@cache
def _announced(op: str, device: str) -> tuple[Rung, ...]:
    """The rungs of a device as read from their files, for lists; they cannot be launched."""
    reason = absent(op, device)

    def launch(*arguments: Any) -> None:
        raise MissingDependencyError(str(reason))

    package, steps = package_of(op, device), list[Rung]()
    for path in PACKAGE.joinpath(*package.split(".")[1:]).glob("r[0-9]*.py"):
        doc, facts = announced(path) or (None, None)
        if facts is not None:
            facts |= {"launch": launch, "refuses": lambda problem: reason}
            steps.append(_rung(f"{package}.{path.stem}", doc, **facts))
    return _ordered(steps)


HIGHEST = "the highest that takes it"


class Choice(NamedTuple):
    """A rung, and the reason for taking it."""

    rung: Rung
    why: str


ORDINARY_ROWS = 8  # a choice for any number of rows is that for so many


def choose(
    problem: Problem, kernel: str = "auto", arithmetic: str | None = None, invariant: bool = False
) -> Rung:  # fmt: skip
    """The rung of that name, or the fastest that accepts the problem; the highest, if none was measured.

    ``invariant``: a rung, the same for any number of rows, whose rows do not depend on each other.
    """
    if invariant:
        problem = problem.with_rows(ORDINARY_ROWS)
    try:
        hash((kernel, arithmetic))
    except TypeError:
        return _first(problem, kernel, arithmetic).rung  # raises: there is no kernel of such a name
    rung = _explained(num_threads(), problem, kernel, arithmetic, invariant).rung
    return _alone(rung) if invariant else rung


@cache
def _alone(rung: Rung) -> Rung:
    """The rung with the launch under which rows do not depend on each other."""
    return replace(rung, launch=rung.invariant) if callable(rung.invariant) else rung


def explain(problem: Problem) -> Choice:
    """The rung that :func:`choose` takes by itself, and the reason for it."""
    return _explained(num_threads(), problem, "auto", None, False)


@lru_cache(1 << 12)
def _explained(threads: int, *call: Any) -> Choice:
    """The choice of a call; a refusal depends on the problem and its card, the fastest on the threads too."""
    return _first(*call)


def contenders(problem: Problem) -> tuple[str, ...]:
    """The rungs of which a first product on a CPU or card of no table takes the fastest; else none."""
    return _contenders(num_threads(), problem)


@lru_cache(1 << 12)
def _contenders(threads: int, problem: Problem) -> tuple[str, ...]:
    measured = _measured(problem.device)
    return () if measured.is_measured(problem) else tuple(measured.shortlist(problem))


def forget_choices() -> None:
    """Choose anew from now on: a rung was registered, or times were measured."""
    _explained.cache_clear()
    _contenders.cache_clear()
    _GENERATION.append(_GENERATION.pop() + 1)


def generation() -> int:
    """A number of the choices that hold now; another one, once they are forgotten."""
    return _GENERATION[0]


@cache
def _measured(device: str) -> Any:
    """The module that orders the rungs of a device, or None."""
    name = CHOICES.get(device)
    return importlib.import_module(name) if name else None


def answer_of(device: str, name: str, *arguments: Any) -> Any:
    """The answer of the module that orders a device's rungs; None if it has no such function."""
    function = getattr(_measured(device), name, None)
    return None if function is None else function(*arguments)


def current_card(device: str) -> Card | None:
    """The card of a problem on the current device; None on a CPU, and without a GPU."""
    card: Card | None = answer_of(device, "card")
    return card


def _first(problem: Problem, kernel: str, arithmetic: str | None, invariant: bool = False) -> Choice:
    """The first rung that does not refuse: of the preferred ones, then of all from the highest down."""
    if (lack := absent(problem.op, problem.device, problem.card)) is not None:
        raise MissingDependencyError(f"{problem}: {lack}")
    measured = _measured(problem.device)
    options = {"timed": False} if invariant else {}  # what was timed since may not change bits
    preferred, why = measured.preference(problem, **options) if measured else ((), HIGHEST)
    by_name = {rung.name: rung for rung in reversed(rungs(problem.op, problem.device, problem.card))}
    if kernel not in ("auto", *by_name):
        raise UnsupportedError(unknown(problem, kernel, list(by_name), DEVICES))
    order = dict.fromkeys([name for name in preferred if name in by_name] + list(by_name))
    why_not = []
    for rung in sorted((by_name[name] for name in order), key=lambda rung: rung.caution is not None):
        if kernel not in ("auto", rung.name):
            reason: str | None = "not the one asked for"
        elif arithmetic not in (None, rung.arithmetic):
            reason = f"multiplies in {rung.arithmetic}, {arithmetic} was asked for"
        elif invariant and not rung.invariant:
            reason = "bits of its rows depend on how many there are, and invariant=True was asked for"
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
