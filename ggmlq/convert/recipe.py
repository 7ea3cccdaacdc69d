"""Recipes: a type for each tensor so that quantizing loses least within a size.

    target      bits a weight: bytes of all tensors, those that stay included, over all their elements
    size        bytes of the whole file, header and padding included

A recipe minimizes the sum over the tensors of importance * (value - new value)^2, each times a factor from
measure.py, which also measures; without an importance matrix all columns count alike. knapsack.py chooses.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, NoReturn

import numpy as np

from ..base.mixes import FILE_TYPES
from ..base.text import short
from ..base.text import size as sized
from ..errors import ConvertError
from ..formats import FORMATS, Format
from ..gguf import Streamed, read_imatrix
from ..gguf.header import DEFAULT_ALIGNMENT, aligned
from ..gguf.writer import file_bytes
from . import rules, typefile
from .knapsack import Solution, solve
from .measure import ELEMENTS, OBJECTIVES, Measured, Sensitivity, TensorTrial, factors, measure, prices
from .model import Model
from .plan import FLOATS, Importance, Source, check_target, opened, plan_quantize, read, tensor_weights
from .step import Plan, Step, nbytes_in
from .typefile import Keep

SLACK = 0.3  # bits a weight that a recipe may stay below its target

# The types to try for each tensor, beside its own; without the types for models that were trained in them.
CANDIDATES = (
    "q2_K", "q3_K", "q4_0", "q4_1", "q4_K", "q5_0", "q5_1", "q5_K", "q6_K", "q8_0", "f16",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Types by tensor, ready to be carried out: ``gq.convert.run(recipe.plan, path)``."""

    plan: Plan
    bits_per_weight: float
    target: float
    lowest: float  # that can be reached
    highest: float
    error: float  # weighted, of all tensors whose type was chosen
    relative: float  # to their energy: an NMSE
    deviation: float  # of the error, as a share of it: it was estimated from some of the rows
    gap: float  # no other choice of types has an error smaller by more than this share
    measured: Mapping[str, Measured]

    @property
    def types(self) -> Mapping[str, Format]:
        """The chosen types of the tensors that llama.cpp would quantize, by name."""
        return self.plan.types

    @property
    def keep(self) -> list[tuple[str, str]]:
        """The types as pairs of pattern and type."""
        return typefile.patterns(self.types)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the types for ``ggmlq quantize --tensor-types`` and ``llama-quantize --tensor-type-file``."""
        return typefile.write(path, self.types)

    def __str__(self) -> str:
        sure = f" (estimated, +-{self.deviation:.1%})" if self.deviation else ""
        best = "no choice of types has less" if self.gap < 1e-6 else f"at most {self.gap:.2%} above the least"
        return (
            f"recipe: {self.bits_per_weight:.3f} bits a weight of {self.target:.3f}; error "
            f"{self.relative:.3e}{sure}, {best}"
        )


def recipe(
    source: Source,
    target: float | None = None,
    *,
    size: int | None = None,
    imatrix: Importance = None,
    types: Sequence[str | int | Format] = CANDIDATES,
    keep: Keep = (),
    any_name: bool = False,
    allow_requantize: bool = False,
    objective: str = "both",
    elements: int = ELEMENTS,
    sensitivities: Mapping[str, Sensitivity] | None = None,
    progress: bool | None = None,
) -> Recipe:
    """Choose a type for each tensor so that the model has a size and loses as little as possible.

    Parameters
    ----------
    source : path or open file
        The model. What is measured is remembered with an open file, for further targets.
    target : float
        Bits a weight at most, over all tensors; the result has at most 0.3 less.
    size : int
        In place of it: bytes of the whole file at most.
    imatrix, keep, any_name, allow_requantize
        As in :func:`quantize`; without importance only the types that do without.
    types : sequence
        The types to choose among, beside what each tensor has.
    objective : str
        What is least: ``"error"``, the sum of all tensors' errors; ``"relative"``, the sum of each tensor's
        error relative to its energy, in the mean over layers, which logits follow more closely; ``"both"``,
        the second with a quarter of the first.
    elements : int
        How much of a large tensor is encoded in each type to measure its error.
    sensitivities : mapping from name to Sensitivity, optional
        The KL of some tensors alone in a type: then the sum of KL is least, and ``objective`` does not count.
    progress : bool, optional
        True for a bar, False for none; else one on a terminal if it takes long.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "m.gguf")
    >>> rng = np.random.default_rng(0)
    >>> names = [f"blk.{i}.ffn_up.weight" for i in range(8)]
    >>> _ = gq.save(path, {name: rng.standard_normal((32, 64), np.float32) for name in names})
    >>> recipe = gq.convert.recipe(path, 5.0, types=["q4_0", "q5_0", "q8_0"])
    >>> recipe.bits_per_weight, sorted({fmt.name for fmt in recipe.types.values()})
    (5.0, ['q4_0', 'q5_0'])
    """
    request = _request(target, size)
    if objective not in OBJECTIVES:
        raise ConvertError(
            f"recipe(objective={short(objective)}): there is no such one; it is {' or '.join(OBJECTIVES)}"
        )
    model = opened(source)
    imatrix = read_imatrix(imatrix) if isinstance(imatrix, str | os.PathLike) else imatrix
    settings: dict[str, Any] = {"any_name": any_name, "allow_requantize": allow_requantize}
    settings |= {"imatrix": imatrix, "keep": keep}
    matrix = read(model, imatrix)
    formats = _formats(types)
    # A plan to f16 shows which tensors may change: those are the tensors to choose types for.
    first = plan_quantize(model, "f16", **settings)
    settings["objective"] = objective
    open_ = [step for step in first.steps if not (step.left or step.why)]
    rows = {step.name: tensor_weights(matrix, step.name, step.shape) if matrix else None for step in open_}
    trials = [
        TensorTrial(step.name, _fitting(step, formats, rows[step.name]), rows[step.name]) for step in open_
    ]
    budget = _Budget(first, trials, target, size)
    budget.check(request)
    measured = measure(model, trials, elements, progress)
    if sensitivities is not None:
        known = [(trial, sensitivities[trial.name]) for trial in trials if trial.name in sensitivities]
        measure(model, [trial._replace(formats=[one.format]) for trial, one in known], elements, progress)
        settings["prices"] = prices(trials, measured, sensitivities)
    return _recipe(model, settings, first, trials, measured, budget, request)


def _recipe(
    model: Model, settings: dict[str, Any], first: Plan, trials: Sequence[TensorTrial],
    measured: Mapping[str, Measured], budget: _Budget, request: str,
) -> Recipe:  # fmt: skip
    objective, counts = settings.pop("objective"), settings.pop("prices", None)
    by_kl = counts is not None
    counts = counts or factors(trials, measured, objective)
    errors = [
        np.array([measured[trial.name].errors[fmt].value for fmt in trial.formats]) * factor
        for trial, factor in zip(trials, counts, strict=True)
    ]
    able = [np.isfinite(error) for error in errors]
    solution = solve(
        [cost[ok] for cost, ok in zip(budget.costs, able, strict=True)],
        [error[ok] for error, ok in zip(errors, able, strict=True)],
        budget.most, budget.least,
    )  # fmt: skip
    if solution is None:
        budget.refuse(request)
    chosen = {
        trial.name: [fmt for fmt, ok in zip(trial.formats, oks, strict=True) if ok][i]
        for trial, oks, i in zip(trials, able, solution.choice, strict=True)
    }
    base = _base(first, chosen)
    plan = plan_quantize(model, base, types=chosen, **settings)
    recipe = _reported(plan, chosen, measured, dict(zip(chosen, counts, strict=True)), solution, budget)
    if by_kl:
        plan.notes.append(f"KL predicted by sensitivities: {solution.error:.5f}")
    return recipe


def _reported(
    plan: Plan, chosen: Mapping[str, Format], measured: Mapping[str, Measured],
    counts: Mapping[str, float], solution: Solution, budget: _Budget,
) -> Recipe:  # fmt: skip
    energy = sum(measured[name].energy * counts[name] for name in chosen)
    spread = sqrt(sum((measured[n].errors[fmt].deviation * counts[n]) ** 2 for n, fmt in chosen.items()))
    error = solution.error
    recipe = Recipe(
        plan, 8 * sum(step.bytes_after for step in plan.steps) / budget.elements, budget.target,
        budget.lowest, budget.highest, error, error / energy if energy else 0.0,
        spread / error if error else 0.0, 1 - solution.bound / error if error > 0 else 0.0, measured,
    )  # fmt: skip
    plan.notes.append(str(recipe))
    if solution.cost < budget.least:
        plan.notes.append(
            f"no choice of types has between {budget.target - SLACK:.3f} and {budget.target:.3f} bits a "
            "weight: the tensors are few, and this is the best below"
        )
    return recipe


def _request(target: float | None, size: int | None) -> str:
    if (target is None) == (size is None):
        raise ConvertError(
            f"recipe(target={target}, size={size}): give one of them, bits a weight or bytes of the file"
        )
    value = target if size is None else size
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
        what = (
            "a target in bits a weight, such as 4.5" if size is None else "a size in bytes, such as 5 * 2**30"
        )
        raise ConvertError(f"recipe: {short(value)} is not {what}; write a positive number")
    return f"target {target:g} bits a weight" if target is not None else f"size {sized(int(value))}"


def _formats(types: Sequence[str | int | Format]) -> list[Format]:
    formats = list(dict.fromkeys(FORMATS[kind] for kind in types))
    for fmt in formats:
        check_target(fmt)
    if not formats:
        raise ConvertError("recipe(types=[]): there is nothing to choose among; name some types")
    return formats


def _fitting(step: Step, formats: Sequence[Format], rows: object) -> list[Format]:
    """The types that a tensor may have: its own, and those that fit its rows and lack no importance."""
    return [
        step.before,
        *(
            fmt
            for fmt in formats
            if fmt is not step.before
            and step.shape[-1] % fmt.block_size == 0
            and not (rows is None and rules.wants_imatrix(step.name, fmt))
            and not (fmt.name in FLOATS and fmt.bits_per_weight >= step.before.bits_per_weight)
        ),
    ]


def _base(plan: Plan, chosen: Mapping[str, Format]) -> Format:
    """The type of the file: that of most bytes; a float type only if nothing is quantized."""
    sums: Counter[Format] = Counter()
    for step in plan.steps:
        fmt = chosen.get(step.name, step.after)
        if fmt.name in FILE_TYPES and rules.axes(step.shape) > 1:
            sums[fmt] += nbytes_in(fmt, step.shape)
    return max(sums, key=lambda fmt: (fmt.block_size > 1, sums[fmt]), default=FORMATS["f32"])


class _Budget:
    """The bytes that all tensors may take, and the bytes of each choice."""

    def __init__(
        self, plan: Plan, trials: Sequence[TensorTrial], target: float | None, size: int | None
    ) -> None:
        shapes = {step.name: step.shape for step in plan.steps}
        names = {trial.name for trial in trials}
        alignment = int(plan.file.metadata.get("general.alignment", DEFAULT_ALIGNMENT)) if size else 1
        fixed = sum(aligned(step.bytes_after, alignment) for step in plan.steps if step.name not in names)
        self.elements = sum(prod(shape) for shape in shapes.values())
        self.costs = [
            np.array([aligned(nbytes_in(f, shapes[w.name]), alignment) for f in w.formats]) for w in trials
        ]
        if size is not None:
            streamed = {step.name: Streamed(step.after, step.shape, tuple) for step in plan.steps}
            whole = file_bytes(streamed, plan.new_metadata, plan.file.byteorder)
            fixed += whole - sum(aligned(step.bytes_after, alignment) for step in plan.steps)
        per = 8 / max(1, self.elements)
        self.most = int(size if size is not None else np.floor((target or 0) / per + 1e-9)) - fixed
        self.target = (self.most + fixed) * per
        self.least = int(np.ceil((self.target - SLACK) / per)) - fixed
        low, high = (sum(int(pick(cost)) for cost in self.costs) + fixed for pick in (np.min, np.max))
        self.lowest, self.highest = low * per, high * per
        self.size = size
        self._range = (low, high)

    def check(self, request: str) -> None:
        """Refuse a size that no choice of types reaches."""
        if not self.elements or not self.costs:
            raise ConvertError(
                f"recipe, {request}: no tensor's type is free to choose; each is kept by a rule, yours or "
                "llama.cpp's (norms and the like); --any-name takes every tensor of two axes or more"
            )
        if not self.lowest <= self.target + 1e-9 or self.target - SLACK > self.highest:
            self.refuse(request)

    def refuse(self, request: str) -> NoReturn:
        """Raise the error that says which sizes can be reached."""
        low, high = self._range
        reach = f"{self.lowest:.3f} to {self.highest:.3f} bits a weight"
        if self.size is not None:
            reach = f"{sized(low)} to {sized(high)} ({low} to {high} bytes)"
        way = "allow smaller types (--types; some need an importance matrix)"
        if self.target > self.lowest:
            way = "leave it as it is, which is the most that it can have"
        raise ConvertError(
            f"recipe, {request}: this model can have {reach} with these types; choose one of those, or {way}"
        )
