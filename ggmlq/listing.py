"""The ladders as tables: which kernels there are, and which of them ``kernel="auto"`` takes."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import text
from .errors import DeviceError, UnsupportedError
from .formats import FORMATS, Format
from .ladder import DEVICES, Problem, Rung, absent, reasoned, rungs

USUAL = (1, 64)  # rows of activations: some kernels are for few of them


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
    """Rungs that print as a table; ``auto`` says which of them ``kernel="auto"`` takes, for one format.

    ``notes``: why kernels of a device cannot run here, if so.
    """

    auto: list[Choice]
    notes: list[str]

    def __init__(self, rungs: list[Rung], auto: list[Choice], notes: list[str]) -> None:
        super().__init__(rungs)
        self.auto, self.notes = auto, notes

    def __repr__(self) -> str:
        header = ["kernel", "level", "arithmetic", "teaches"]
        parts = (
            [text.table(header, [[r.name, r.level, r.arithmetic, r.teaches] for r in self])] if self else []
        )
        if self.auto:
            taken = [[f"auto, M={choice.m}", choice.kernel, choice.why] for choice in self.auto]
            parts.append(text.table([f"N=K={ORDINARY}", "takes", "because it is"], taken))
        return "\n\n".join([*parts, *self.notes])


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
    notes = [f"No {kind} kernel can run here. {reason}" for kind in kinds if (reason := absent(op, kind))]
    if fmt is None:
        return Ladder(found, [], notes)
    found = [r for r in found if any(r.refuses(_ordinary(op, fmt, m, r.device)) is None for m in USUAL)]
    able = dict.fromkeys(rung.device for rung in found)
    return Ladder(found, [choice for kind in able for choice in choices(fmt, kind, op)], notes)


@cache
def _operations() -> tuple[str, ...]:
    """The folders that hold rungs, of any device."""
    places = [importlib.import_module(f"{__package__}.{device}").__path__[0] for device in DEVICES]
    return tuple(sorted({rung.parent.name for place in places for rung in Path(place).glob("*/r[0-9]*.py")}))
