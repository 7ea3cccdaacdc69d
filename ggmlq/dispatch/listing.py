"""``gq.kernels``: tables of the kernels of an operation, and of those that ``kernel="auto"`` takes."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

from ..base import text
from ..codes import CODES
from ..errors import DeviceError, MissingDependencyError, ShapeError, UnsupportedError
from ..formats import FORMATS
from .card import Card, card_named
from .epilogue import is_written
from .ladder import DEVICES, KINDS, Problem, Rung, absent, answer_of, current_card, explain, rungs
from .problems import GRU_WIDTHS  # which registers the kinds of problems

# --- records, worked out when they are read -----------------------------------------------------
# :func:`ladder.explain` is asked for each number of rows up to ``FEW``, then for growing ones, and the steps
# between two that differ are halved. So a rung that is taken only for a few numbers of rows between two steps
# would not be seen.

FEW, MOST_ROWS = 33, 4096  # rows of activations: up to which each is asked about; the last one
GROWTH = 1.15  # from step to step
COARSE = (1, 2, 3, 4, 8, 9, 16, 28, 32, 33, 64, 128, 512, 4096)  # steps where all formats are asked about
STAND_IN = "NVIDIA H200"  # the card of lists on a machine without a GPU
Ranges = tuple[range, ...]


def grid() -> list[int]:
    """The numbers of rows at which choices are compared."""
    rows = list(range(1, FEW + 1))
    while rows[-1] < MOST_ROWS:
        rows.append(min(MOST_ROWS, int(rows[-1] * GROWTH)))
    return rows


@dataclass(frozen=True)
class Choices:
    """The kernels that ``auto`` takes on a device, by rows: of an operation, for operands of some formats."""

    kind: type[Problem]
    device: str
    named: Card | None  # the card that the caller names
    formats: tuple[Any, ...]
    shape: tuple[int, int] | None
    rows: int  # that figures are for

    @property
    def card(self) -> Card | None:
        """The named card, the current one, or the one that was measured."""
        if self.device != "cuda":
            return None
        return self.named or current_card(self.device) or card_named("kernels", STAND_IN)

    @cached_property
    def problems(self) -> list[Problem]:
        """A problem for each format that the operation takes."""
        shown = (self.kind.shown(name, self.device, self.card, self.shape) for name in self.formats)
        return [problems[0] for problems in shown if problems]

    @cached_property
    def taken(self) -> dict[str, Ranges]:
        """Ranges of rows by kernel, over all formats."""
        if absent(self.kind.op, self.device, self.named) is not None:
            return {}
        rows: dict[str, list[range]] = {}
        steps = grid() if len(self.problems) == 1 else COARSE
        for problem in self.problems:
            for name, span in spans(problem, steps):
                rows.setdefault(name, []).append(span)
        return {name: joined(parts) for name, parts in rows.items()}

    @cached_property
    def problem(self) -> Problem | None:
        """The problem that figures are for; None in a list of no format."""
        return self.problems[0].with_rows(self.rows) if len(self.formats) == 1 and self.problems else None

    @cached_property
    def packed(self) -> dict[str, bool | None]:
        """By kernel, True if the package has its code for the rows at which it is taken, or the list's."""
        if (problem := self.problem) is None:
            return {}
        cases = {}
        for rung in rungs(self.kind.op, self.device, self.named):
            spans = self.taken.get(rung.name, ())
            rows = {end for span in spans for end in (span[0], span[-1])}
            rows |= {m for m in COARSE if any(m in span for span in spans)}
            if rows or rung.refuses(problem) is None:
                cases[rung.name] = [problem.with_rows(m) for m in sorted(rows)] or [problem]
        return answer_of(self.device, "packed", cases) or {}


def spans(problem: Problem, steps: Iterable[int]) -> Iterable[tuple[str, range]]:
    """The kernel that ``auto`` takes, for each range of rows."""

    def taken(rows: int) -> str:
        try:
            return explain(problem.with_rows(rows)).rung.name
        except UnsupportedError:  # no kernel takes it
            return ""

    first, *others = steps
    start, name = first, taken(first)
    for rows in others:
        while taken(rows) != name:
            change = first + 1 + bisect_left(range(first + 1, rows), True, key=lambda m: taken(m) != name)
            yield name, range(start, change)
            start, first, name = change, change, taken(change)
        first = rows
    yield name, range(start, first + 1)


def joined(parts: Iterable[range]) -> Ranges:
    """Rows in as few ranges as can be, in order."""
    whole: list[range] = []
    for part in sorted(parts, key=lambda part: part.start):
        if whole and part.start <= whole[-1].stop:
            whole[-1] = range(whole[-1].start, max(whole[-1].stop, part.stop))
        else:
            whole.append(part)
    return tuple(whole)


@dataclass(frozen=True)
class Listed(Rung):
    """A rung in a list, with what ``auto`` does with it.

    taken      the ranges of rows of activations, up to 4096, at which ``auto`` takes it on the card; of all
               formats if the list is of none. Empty: it is there to be read, or for a call that names it
    packed     True if its code for these rows comes with the package, so that nothing is compiled; None where
               that is not known, or where it takes no such rows
    estimate   microseconds for the shape and rows of the list, estimated or measured; None as above
    floor      microseconds that no such kernel can go below, by the data sheet of the card
    """

    choices: Choices = field(repr=False, compare=False, kw_only=True)

    @cached_property
    def taken(self) -> Ranges:
        return self.choices.taken.get(self.name, ())

    @cached_property
    def packed(self) -> bool | None:
        return self.choices.packed.get(self.name)

    @cached_property
    def estimate(self) -> float | None:
        return self._figure("estimate")

    @cached_property
    def floor(self) -> float | None:
        return self._figure("floor")

    def _figure(self, name: str) -> float | None:
        problem = self.choices.problem
        if problem is None or self.refuses(problem) is not None:
            return None
        us: float | None = answer_of(self.device, name, problem, self.name)
        return us


def listed(rung: Rung, choices: Choices) -> Listed:
    """A rung as a record of a list."""
    return Listed(**{each.name: getattr(rung, each.name) for each in fields(Rung)}, choices=choices)


def in_words(taken: Ranges) -> str:
    """Ranges of rows in a few characters: ``1-8, 64-``."""
    return ", ".join(
        str(span.start)
        if len(span) == 1
        else f"{span.start}-" + ("" if span[-1] == MOST_ROWS else str(span[-1]))
        for span in taken
    )


# --- lists --------------------------------------------------------------------------------------

LESSON = (
    "auto: the rows of activations at which it is taken. A kernel without any is a lesson, or for other "
    "machines: it runs where a call names it."
)
GATED, OF_A_GATE = (
    "gated_linear",
    ('pass "linear", for experts "expert_linear", for weights with scales "scaled_linear"'),
)
ROWS = 1  # rows of activations that estimates and floors are for, if the caller names none


class Taken(NamedTuple):
    """The kernel that ``kernel="auto"`` takes for a problem, and the reason."""

    problem: Problem
    kernel: str
    why: str

    @property
    def device(self) -> str:
        """The device, ``"cpu"`` or ``"cuda"``."""
        return self.problem.device


def taken(problems: Iterable[Problem]) -> list[Taken]:
    """The kernels that ``kernel="auto"`` takes for some problems, with reasons."""
    choices = [(problem, explain(problem)) for problem in problems]
    return [Taken(problem, choice.rung.name, choice.why) for problem, choice in choices]


class Ladder(list[Listed]):
    """Rungs that print as a table; ``auto`` says which of them ``kernel="auto"`` takes, for one format.

    ``notes`` say why kernels of a device cannot run here, if so, and where their code comes from.
    """

    auto: list[Taken]
    notes: list[str]

    def __init__(self, rungs: list[Listed], auto: list[Taken], notes: list[str], figures: str = "") -> None:
        super().__init__(rungs)
        self.auto, self.notes, self._figures = auto, notes, figures

    def __repr__(self) -> str:
        header, rows = ["kernel", "level", "arithmetic", "auto"], []
        if self._figures:
            header += ["packed", "estimate, µs", "floor, µs"]
        for rung in self:
            cells: list[object] = [rung.name, rung.level, rung.arithmetic, in_words(rung.taken)]
            if self._figures:
                cells += [_yes_or_no(rung.packed), _us(rung.estimate), _us(rung.floor)]
            rows.append([*cells, rung.teaches])
        parts = [text.table([*header, "teaches"], rows)] if self else []
        parts += [LESSON] if any(rung.taken for rung in self) and not all(rung.taken for rung in self) else []
        if self.auto:
            rows = [[f"auto, {t.problem.case}", t.kernel, t.why] for t in self.auto]
            parts.append(text.table([self._setting(), "takes", "because it is"], rows))
        return "\n\n".join([*parts, *([self._figures] if self._figures else []), *self.notes])

    def _setting(self) -> str:
        """The part that the problems of ``auto`` have in common."""
        shape = next((rung.choices.shape for rung in self), None)
        return self.auto[0].problem.setting if shape is None else "N={}, K={}".format(*shape)


def _yes_or_no(fact: bool | None) -> str:
    return "" if fact is None else "yes" if fact else "no"


def _us(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.3g}"


def kernels(
    op: str = "linear",
    format: Any = None,
    device: str | None = None,
    *,
    card: str | None = None,
    shape: tuple[int, int] | None = None,
    rows: int = ROWS,
) -> Ladder:
    """The kernels of an operation, as a list that prints as a table.

    Each record has ``.name .device .level .arithmetic .teaches .refuses``, and ``.taken``: the ranges of rows
    of activations at which ``kernel="auto"`` takes it, none if it is there to be read. For a format it also
    has ``.packed``: whether its code comes with the package; and ``.estimate`` and ``.floor``, in
    microseconds, which no CPU has.

    Parameters
    ----------
    op : str
        The operation.
    format : str, int or Format, optional
        Only kernels that take operands of this format (weights, of some ordinary shape); ``.auto``
        of the list, and its print, then say which of them ``kernel="auto"`` takes for a few numbers
        of rows, and why.
    device : str, optional
        ``"cpu"`` or ``"cuda"``; both if not given.
    card : str, optional
        A GPU that need not be here: its name as NVIDIA writes it, or a capability such as ``"sm_89"``.
    shape : (N, K), optional
        The shape of the weights; an ordinary one if not given.
    rows : int
        The rows of activations that ``.estimate`` and ``.floor`` are for.

    >>> import ggmlq as gq
    >>> gq.kernels(device="cpu")[0].name
    'cpu:naive'
    >>> gq.kernels(format="f32", device="cpu").auto[0].why
    'the highest that takes it'
    >>> table = gq.kernels(format="q4_K", card="NVIDIA GeForce RTX 4090", rows=8)
    >>> {kernel.name: kernel.taken for kernel in table if kernel.taken}
    {'cuda:gemv': (range(1, 33),), 'cuda:mma_bf16': (range(33, 129),), 'cuda:mma_f16': (range(129, 4097),)}
    """
    request = f"kernels({op!r}, card={card!r})"
    kinds = DEVICES if device is None else (str(device).partition(":")[0],)
    if kinds[0] not in DEVICES:
        raise DeviceError(f"kernels(device={device!r}): no such device; devices are cpu and cuda")
    if op not in KINDS:
        what = "no such operation" if op != GATED else "it takes the kernels of its two products"
        way = text.meant(str(op), KINDS, "pass one of these") if op != GATED else OF_A_GATE
        raise UnsupportedError(f"kernels({op!r}): {what}; this version has {', '.join(sorted(KINDS))}; {way}")
    named = None if card is None else card_named(request, card)
    if named is not None:
        if device is not None and kinds != ("cuda",):
            raise DeviceError(f"{request} with device={device!r}: a card is a GPU; leave out device=")
        kinds = ("cuda",)
        if (reason := absent(op, "cuda", named)) is not None:
            raise MissingDependencyError(f"{request}: {reason}")
    shape, rows = _checked(request, shape, rows)
    reasons = {kind: absent(op, kind, named) for kind in kinds}
    notes = [f"No {kind} kernel can run here. {reason}" for kind, reason in reasons.items() if reason]
    notes += [origin for kind in kinds if op == "linear" and (origin := answer_of(kind, "code"))]
    steps: list[Listed] = []
    auto: list[Taken] = []
    for kind in kinds:
        choices = Choices(KINDS[op], kind, named, _formats(op, format), shape, rows)
        records = [listed(rung, choices) for rung in rungs(op, kind, named)]
        if format is None:
            steps += records
            continue
        shown = KINDS[op].shown(format, kind, choices.card, shape)
        able = [rung for rung in records if any(rung.refuses(problem) is None for problem in shown)]
        steps += able
        auto += taken(shown) if able else []
    return Ladder(steps, auto, notes, _setting(steps, rows) if format is not None else "")


def _checked(request: str, shape: Any, rows: Any) -> tuple[tuple[int, int] | None, int]:
    """The shape (N, K) and rows of a call as integers from 1 on."""
    try:
        n, k = (1, 1) if shape is None else map(operator.index, shape)
        count = operator.index(rows)
    except (TypeError, ValueError):
        n = k = count = 0
    if min(n, k, count) < 1:
        raise ShapeError(
            f"{request} with shape={shape!r}, rows={rows!r}: the shape of weights is (N, K), and rows are "
            "those of activations, all integers from 1 on; pass shape=(4096, 14336), rows=8"
        )
    return (None if shape is None else (n, k)), count


def _formats(op: str, format: Any) -> tuple[Any, ...]:
    """The formats that a list is of: the one of the caller, or all that the operation has."""
    if format is not None:
        return (format,)
    if op == "scaled_linear":
        return tuple(code.name for code in CODES.values() if is_written(code))
    if op == "gru":
        return GRU_WIDTHS
    return tuple(FORMATS) if op in ("linear", "expert_linear") else ()


def _setting(steps: list[Listed], rows: int) -> str:
    """A sentence on the card, the shape and the rows of a table's figures."""
    timed = any(step.estimate for step in steps if step.device == "cpu")
    here = f"Estimates of cpu were timed on this machine, M={rows}." if timed else ""
    if not any(step.device == "cuda" for step in steps):
        return here
    choices = next(step for step in steps if step.device == "cuda").choices
    name = choices.card.name if choices.card else "this GPU"
    problem: Any = next(iter(choices.problems), None)
    size = f", N={problem.n}, K={problem.k}" if hasattr(problem, "k") else ""
    return (
        f"Estimates and floors of cuda are for {name}, M={rows}{size}: by its data sheet and by what kernels "
        f"take on an H200, not measured on others. {here}"
    ).rstrip()


def summary(formats: Iterable[str], device: str) -> list[dict[str, Any]]:
    """The kernels of ``linear`` that ``auto`` takes on the current device, for ``ggmlq doctor``."""
    return [
        {
            "format": name,
            "kernel": rung.name,
            "rows": [[span[0], span[-1]] for span in rung.taken],
            "packed": rung.packed,
            "estimate_us": rung.estimate,
            "floor_us": rung.floor,
            "why": explain(problem.with_rows(rung.taken[0][0])).why,
        }
        for name in formats
        for rung in sorted(kernels(format=name, device=device), key=_first_row)
        if rung.taken and (problem := rung.choices.problem) is not None
    ]


def _first_row(rung: Listed) -> int:
    return rung.taken[0].start if rung.taken else 0
