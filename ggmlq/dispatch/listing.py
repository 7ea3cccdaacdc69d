"""``gq.kernels``: tables of the kernels of an operation, and of those that ``kernel="auto"`` takes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

from ..base import text
from ..errors import DeviceError, UnsupportedError
from .ladder import DEVICES, KINDS, Problem, Rung, absent, code_of, current_card, explain, rungs


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


class Ladder(list[Rung]):
    """Rungs that print as a table; ``auto`` says which of them ``kernel="auto"`` takes, for one format.

    ``notes`` say why kernels of a device cannot run here, if so, and where their code comes from.
    """

    auto: list[Taken]
    notes: list[str]

    def __init__(self, rungs: list[Rung], auto: list[Taken], notes: list[str]) -> None:
        super().__init__(rungs)
        self.auto, self.notes = auto, notes

    def __repr__(self) -> str:
        header = ["kernel", "level", "arithmetic", "teaches"]
        parts = (
            [text.table(header, [[r.name, r.level, r.arithmetic, r.teaches] for r in self])] if self else []
        )
        if self.auto:
            rows = [[f"auto, {t.problem.case}", t.kernel, t.why] for t in self.auto]
            parts.append(text.table([self.auto[0].problem.setting, "takes", "because it is"], rows))
        return "\n\n".join([*parts, *self.notes])


def kernels(op: str = "linear", format: Any = None, device: str | None = None) -> Ladder:
    """The kernels of an operation, as a list that prints as a table.

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

    >>> import ggmlq as gq
    >>> gq.kernels(device="cpu")[0].name
    'cpu:naive'
    >>> gq.kernels(format="f32", device="cpu").auto[0].why
    'the highest that takes it'
    """
    import_module(f"{__package__}.problems")  # which registers the kinds of problems
    kinds = DEVICES if device is None else (str(device).partition(":")[0],)
    if kinds[0] not in DEVICES:
        raise DeviceError(f"kernels(device={device!r}): no such device; devices are cpu and cuda")
    if op not in KINDS:
        raise UnsupportedError(
            f"kernels({op!r}): no such operation; this version has {', '.join(sorted(KINDS))}; "
            + text.meant(str(op), KINDS, "pass one of these")
        )
    notes = [f"No {kind} kernel can run here. {reason}" for kind in kinds if (reason := absent(op, kind))]
    notes += [origin for kind in kinds if op == "linear" and (origin := code_of(kind))]
    steps: list[Rung] = []
    auto: list[Taken] = []
    for kind in kinds:
        if format is None:
            steps += rungs(op, kind)
            continue
        shown = KINDS[op].shown(format, kind, current_card(kind))
        able = [rung for rung in rungs(op, kind) if any(rung.refuses(problem) is None for problem in shown)]
        steps += able
        auto += taken(shown) if able else []
    return Ladder(steps, auto, notes)
