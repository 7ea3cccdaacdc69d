"""``gq.kernels``: tables of the kernels of an operation, and of those that ``kernel="auto"`` takes."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..base import text
from ..codes import CODES
from ..errors import DeviceError, MissingDependencyError, ShapeError, UnsupportedError
from ..formats import FORMATS
from .cards import card_named
from .epilogue import is_written
from .ladder import DEVICES, KINDS, Problem, absent, code_of, current_card, explain, rungs
from .problems import GRU_WIDTHS  # which registers the kinds of problems
from .views import Choices, Listed, View, in_words, listed

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
        shape = next((rung.choices.view.shape for rung in self), None)
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
    notes += [origin for kind in kinds if op == "linear" and (origin := code_of(kind))]
    steps: list[Listed] = []
    auto: list[Taken] = []
    for kind in kinds:
        choices = Choices(View(KINDS[op], kind, named, _formats(op, format), shape, rows))
        records = [listed(rung, choices) for rung in rungs(op, kind, named)]
        if format is None:
            steps += records
            continue
        here = named or current_card(kind)
        shown = KINDS[op].shown(format, kind, here, *([] if shape is None else [shape]))
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
    view = next(step for step in steps if step.device == "cuda").choices.view
    name = view.card.name if view.card else "this GPU"
    problem: Any = next(iter(view.problems()), None)
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
