"""The default run of ``ggmlq check``: all edges in the first layout, few in others and with other threads."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.text import count
from ..formats import Format
from ..llama import Bridge, Device, Measurement
from . import batches, strided
from .batches import Batch, Mixture, in_batches
from .cases import Case, edges
from .strided import Strided

# --- one product on a library ---------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """Settings of a run that all its cases share."""

    device: str
    backend: str  # of the device; it decides which arithmetic is tried first
    threads: int = 1
    repack: bool | str = False
    repeats: int = 3
    time_runs: int = 0
    arithmetic: str | None = None  # what the kernels claim


@dataclass(frozen=True)
class Product:
    """The operands of a case beside the library that multiplies them; rows of all batches are one matrix."""

    bridge: Bridge
    case: Case
    x: NDArray[np.float32]
    q: QuantArray
    ids: NDArray[np.int32] | None
    how: Settings

    @property
    def arrays(self) -> dict[str, Any]:
        """The operands as a saved case holds them."""
        operands = {"x": self.x, "raw": self.q.raw}
        if self.ids is not None:
            operands["ids"] = self.ids
        if isinstance(self.case, Batch):
            operands |= {name: np.array(counts) for name, counts in self.case.json_facts.items()}
        return operands

    def run(self) -> Measurement:
        """The product itself, repeated and timed as the settings say; results of batches as rows."""
        how, case, ids = self.how, self.case, self.ids
        x, q = self.x, self.q
        if isinstance(case, Strided):
            return case.measure(self.bridge, x, q, how.device, how.threads, how.repeats)
        batched = isinstance(case, Batch)
        if isinstance(case, Batch):
            (x, q), ids = case.axes(x, q), None
        result = self.bridge.measure(
            x, q, how.device, threads=how.threads, repack=how.repack, repeats=how.repeats,
            time_runs=how.time_runs, ids=ids, batched=batched,
        )  # fmt: skip
        if not batched:
            return result
        shape = (*(self.x.shape[:1] if self.ids is None else self.ids.shape), case.n)
        repeats = tuple(one.reshape(shape) for one in result.repeats)
        return replace(result, y=result.y.reshape(shape), repeats=repeats)

    def multiply(
        self, x: Any, *, threads: int | None = None, repeats: int = 1, expert: int | None = None
    ) -> Measurement:
        """The library's product of other activations [M, K] with the same weights, layout and device.

        ``expert``: the one whose weights make a plain product. LibraryFailedError where the library dies.
        """
        how, q = self.how, self.q if expert is None else self.q[expert]
        return self.bridge.measure(
            x, q, how.device, threads=threads or how.threads, repack=how.repack, repeats=repeats
        )


# Rows that a repacked layout of ggml takes at a time: AMX, and the widest of those that interleave rows.
TILED, INTERLEAVED = 32, 16
LONG = 4096  # a K that every layout takes: AMX of 2025 took multiples of it only
MANY = 32  # threads: more than small weights have rows for
BATCHES = (3,)


@dataclass(frozen=True)
class Trial:
    """A case, and how it is run."""

    case: Case
    how: Settings


def group_of(layout: str | bool) -> int:
    """Rows of weights that a layout takes at a time."""
    if not layout:
        return 1
    return TILED if str(layout).upper() == "AMX" else INTERLEAVED


def few(fmt: Format, seed: int, layout: str | bool, k: int = 0) -> list[Case]:
    """A few cases: one row of activations and many, tails, batches; with ``k`` each has that K."""
    block = max(fmt.block_size, 32)
    usual = 1024 // block * block
    shapes = [(1, 64, usual), (8, 7, usual + block), (64, 64, usual), (65, 65, usual + block)]
    cases = [_case(fmt, m, n, k or k_of, seed, layout) for m, n, k_of in shapes]
    return [*cases, batched(fmt, seed, layout, k)]


def batched(fmt: Format, seed: int, layout: str | bool = False, k: int = 0) -> Case:
    """A case with activations of three axes."""
    return in_batches(_case(fmt, 5, 64, k or max(256, fmt.block_size), seed, layout), BATCHES)


def split(fmt: Format, seed: int, layout: str | bool, k: int = 0) -> list[Case]:
    """Cases for other numbers of threads: few rows of weights for each thread, and more of them."""
    block = max(fmt.block_size, 32)
    shapes = [(2, 257, block), (9, 64, 1024 // block * block)]
    return [_case(fmt, m, n, k or k_of, seed, layout) for m, n, k_of in shapes]


def _case(fmt: Format, m: int, n: int, k: int, seed: int, layout: str | bool) -> Case:
    group = group_of(layout)
    return Case(fmt, m, -(-n // group) * group, k, "normal", seed)


def other_threads(device: Device, threads: int) -> list[int]:
    """Numbers of threads to try beside the one in use; none for a device without threads."""
    counts = {1, 2, os.cpu_count() or 1, MANY} if device.backend == "CPU" else set()
    return sorted(counts - {threads})


@dataclass(frozen=True)
class Plan:
    """The trials of a run, which follow from the library and the options."""

    bridge: Bridge
    device: Device
    how: Settings
    seed: int = 0
    threads: Sequence[int] = ()  # other numbers of threads to try

    def products(self, fmt: Format, layouts: Iterable[str | bool]) -> list[Trial]:
        """Trials of one type: the edges in the first layout, a few cases in the others."""
        trials: list[Trial] = []
        for i, layout in enumerate(layouts):
            if i == 0:
                trials += self.edges(fmt, layout)
            else:
                trials += self._in(self.suitable(fmt, layout, few), layout)
            trials += self._with_other_threads(fmt, layout)
        return trials

    def edges(self, fmt: Format, layout: str | bool) -> list[Trial]:
        """All edges and batches; long rows in a layout that takes none of these."""
        usual = [*edges(fmt, self.seed, group_of(layout)), batched(fmt, self.seed, layout)]
        usual += [] if layout else strided.default_cases(fmt, self.seed)
        if layout and not any(self._takes(fmt, layout, usual)):
            usual = self.suitable(fmt, layout, few) or usual
        return self._in(usual, layout)

    def _with_other_threads(self, fmt: Format, layout: str | bool) -> list[Trial]:
        if not self.threads:
            return []
        cases = self.suitable(fmt, layout, split)
        return [
            Trial(case, replace(self.how, repack=layout, threads=n)) for n in self.threads for case in cases
        ]

    def mixtures(
        self, fmt: Format, layouts: Iterable[str | bool], experts: tuple[int, int] | None
    ) -> list[Trial]:
        """Products with experts: the edges in the first layout, three of them in the others."""
        trials: list[Trial] = []
        for i, layout in enumerate(layouts):
            tiled = batches.TILED if self.device.backend == "CPU" else batches.TILED_ON_GPU
            cases = batches.default_cases(fmt, self.seed, group_of(layout), experts, tiled)
            if i:
                cases = [case for case in cases if case.m in (1, 65, tiled[0])][-3:]
                fitting = self._takes(fmt, layout, cases)
                cases = [case for case, fits in zip(cases, fitting, strict=True) if fits]
            trials += self._in(cases, layout)
        return trials

    def suitable(self, fmt: Format, layout: str | bool, cases: Callable[..., list[Case]]) -> list[Case]:
        """The cases that the device multiplies in this layout; if none, those with long rows."""
        for k in (0, LONG):
            usual = cases(fmt, self.seed, layout, k)
            if not layout:
                return usual
            fitting = self._takes(fmt, layout, usual)
            if any(fitting):
                return [case for case, fits in zip(usual, fitting, strict=True) if fits]
        return []

    def _in(self, cases: Iterable[Case], layout: str | bool) -> list[Trial]:
        return [Trial(case, replace(self.how, repack=layout)) for case in cases]

    def _takes(self, fmt: Format, layout: str | bool, cases: Sequence[Case]) -> list[bool]:
        shapes = [case.axes_of() for case in cases]
        return self.bridge.takes(fmt, shapes, self.device.name, repack=layout)


def spread(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, one of each layout and type, then the next one of each: large and plain ones first."""
    places = Counter[tuple[str, str]]()
    ranked = []
    for trial in sorted(trials, key=lambda t: (t.case.data != "normal", -t.case.m * t.case.n)):
        of = (trial.case.format.name, str(trial.how.repack))
        ranked.append((places[of], trial))
        places[of] += 1
    return [trial for _, trial in sorted(ranked, key=lambda pair: pair[0])]


def untried(device: Device, devices: Sequence[Device], trials: Sequence[Trial]) -> list[str]:
    """Things that exist and that no trial touches, each with its option."""
    layouts = {str(trial.how.repack).lower() for trial in trials if trial.how.repack}
    threads = {trial.how.threads for trial in trials}
    left: list[str] = []
    if True not in {trial.how.repack for trial in trials}:
        missing = [name for name in device.layouts if name.lower() not in layouts]
        left += [f"weights in {', '.join(missing)} (--buffer)"] if missing else []
    if all(trial.how.repack for trial in trials):
        left.append("the plain layout")
    if device.backend == "CPU" and len(threads) == 1:
        left.append(f"other numbers of threads than {min(threads)} (--threads)")
    if not any(isinstance(trial.case, Mixture) for trial in trials):
        left.append("products with experts (--experts edges)")
    others = [one.name for one in devices if one.name != device.name]
    return left + ([f"{', '.join(others)} (--device)"] if others else [])


def trial_lines(trials: Sequence[Trial]) -> list[str]:
    """Lines on the trials, one a layout: the number of cases, their types and threads."""
    lines = []
    for layout in dict.fromkeys(trial.how.repack for trial in trials):
        inside = [trial for trial in trials if trial.how.repack == layout]
        names = list(dict.fromkeys(trial.case.format.name for trial in inside))
        types = ", ".join(names) if len(names) <= 9 else f"{len(names)} types"
        (most, _), *others = Counter(trial.how.threads for trial in inside).most_common()
        where = "the device's own layout" if layout is True else layout or "plain layout"
        rest = ", ".join(str(threads) for threads, _ in sorted(others))
        also = f", {sum(count for _, count in others)} of them with {rest}" if others else ""
        lines.append(f"{where}: {len(inside)} cases of {types} with {count(most, 'thread')}{also}")
    return lines
