"""The solver of recipes: one type for each tensor, so that the errors' sum is least within a number of bytes.

This is the multiple-choice knapsack problem: a class for each tensor, one choice of each class. Where choices
may be mixed in fractions, sorting solves it: take steps up in the order of error saved a byte. That optimum
is a lower bound, for all classes and for those that are still open, and prunes the exact search. The search
goes from class to class and holds states (bytes, error): those that no cheaper state beats and that could
still lead below the best known answer. Where more states are left than fit, the least promising are dropped,
and the reported bound allows for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STATES = 20_000  # after each class
TOLERANCE = 1e-7  # of the error: states that promise less than this are not followed
HALVINGS = 24  # of the price that a byte must be paid for to reach a least size


class Solution(NamedTuple):
    """One choice of each class. ``bound``: no solution has a smaller error."""

    choice: list[int]
    cost: int
    error: float
    bound: float


class _Class(NamedTuple):
    """The choices of a class that no other beats, by cost; ``at``: their numbers among all choices."""

    cost: Ints
    error: Floats
    at: Ints


class _Steps(NamedTuple):
    """All steps up the convex hulls, the best first."""

    of: Ints  # class
    to: Ints  # choice
    cost: Ints
    gain: Floats


def solve(costs: Sequence[Ints], errors: Sequence[Floats], most: int, least: int = 0) -> Solution | None:
    """The choices of least error that cost at most ``most``; None where even the cheapest cost more.

    They cost at least ``least`` where such choices exist; the bound holds for choices of any cost.
    """
    solution = _solve(costs, errors, most)
    if solution is None or solution.cost >= least:
        return solution
    reached = _solve(costs, [-cost.astype(float) for cost in costs], most)
    if reached is None or reached.cost < least:
        return solution
    return _paid(costs, errors, most, least, reached)._replace(bound=solution.bound)


def _paid(
    costs: Sequence[Ints], errors: Sequence[Floats], most: int, least: int, reached: Solution
) -> Solution:
    """The solution of at least ``least`` bytes, by the lowest price of unused bytes that makes it so big."""

    def true(choice: list[int]) -> float:
        return float(sum(error[i] for error, i in zip(errors, choice, strict=True)))

    best = reached._replace(error=true(reached.choice))
    high = max(float(np.ptp(error)) for error in errors) or 1.0
    low = 0.0
    for _ in range(HALVINGS):
        price = (low + high) / 2
        priced = [error - price * cost for error, cost in zip(errors, costs, strict=True)]
        solution = _solve(costs, priced, most)
        if solution is None or solution.cost < least:
            low = price
            continue
        high = price
        error = true(solution.choice)
        if error <= best.error:
            best = solution._replace(error=error)
    return best


def _solve(costs: Sequence[Ints], errors: Sequence[Floats], most: int) -> Solution | None:
    classes = [_undominated(cost, error) for cost, error in zip(costs, errors, strict=True)]
    if sum(int(c.cost[0]) for c in classes) > most:
        return None
    order = sorted(range(len(classes)), key=lambda i: -int(np.ptp(classes[i].cost)))
    search = _Search([classes[i] for i in order], most)
    chosen, bound = search.run()
    choice = [0] * len(classes)
    for i, at in zip(order, chosen, strict=True):
        choice[i] = int(classes[i].at[at])
    cost = sum(int(costs[i][at]) for i, at in enumerate(choice))
    error = float(sum(errors[i][at] for i, at in enumerate(choice)))
    return Solution(choice, cost, error, min(bound, error))


def _undominated(cost: Ints, error: Floats) -> _Class:
    order = np.lexsort((error, cost))
    sorted_errors = error[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(sorted_errors)[:-1]])
    frontier = order[sorted_errors < before]
    return _Class(cost[frontier].astype(np.int64), error[frontier].astype(np.float64), frontier)


def _hull(c: _Class) -> list[int]:
    """The choices on the lower convex hull: each step saves less error a byte than the one before."""
    frontier: list[int] = []
    for i in range(len(c.cost)):
        while len(frontier) > 1:
            a, b = frontier[-2], frontier[-1]
            first = (c.error[a] - c.error[b]) * (c.cost[i] - c.cost[b])
            if first > (c.error[b] - c.error[i]) * (c.cost[b] - c.cost[a]):
                break
            frontier.pop()
        frontier.append(i)
    return frontier


class _Search:
    """The search through the classes, in their order."""

    def __init__(self, classes: list[_Class], most: int) -> None:
        self._classes, self._most = classes, most
        self._steps = _steps(classes)
        self._rest_cost = np.cumsum([0, *(int(c.cost[0]) for c in classes[::-1])])[::-1]
        self._rest_error = np.cumsum([0.0, *(float(c.error[0]) for c in classes[::-1])])[::-1]
        self._dropped = np.inf  # the least that a state left aside promised
        self._best, self._value = self._filled([], 0, 0.0)

    def run(self) -> tuple[list[int], float]:
        """The choices, and a lower bound of the error."""
        cost, error = np.zeros(1, np.int64), np.zeros(1)
        origins: list[tuple[Ints, Ints]] = []  # parent and choice of each state, by class
        for level, c in enumerate(self._classes):
            parent = np.repeat(np.arange(len(cost)), len(c.cost))
            choice = np.tile(np.arange(len(c.cost)), len(cost))
            cost, error = cost[parent] + c.cost[choice], error[parent] + c.error[choice]
            promise = error + self._bound(level + 1, cost)
            frontier = self._frontier(cost, error, promise)
            if not len(frontier):
                break  # nothing is better than the best that is known
            cost, error = cost[frontier], error[frontier]
            origins.append((parent[frontier], choice[frontier]))
            first = int(promise[frontier].argmin())
            self._offer(_path(origins, first), int(cost[first]), float(error[first]))
        tolerated = self._value - TOLERANCE * abs(self._value)
        return self._best, min(tolerated, self._dropped)

    def _bound(self, level: int, cost: Ints) -> Floats:
        """The least error of the classes from ``level`` on, if choices need not be whole."""
        steps = self._steps
        open_ = steps.of >= level
        room = (self._most - self._rest_cost[level] - cost).astype(np.float64)
        at = np.concatenate([[0.0], np.cumsum(steps.cost[open_])])
        gained = np.concatenate([[0.0], np.cumsum(steps.gain[open_])])
        promise: Floats = self._rest_error[level] - np.interp(room, at, gained)
        promise[room < 0] = np.inf
        return promise

    def _frontier(self, cost: Ints, error: Floats, promise: Floats) -> Ints:
        """States that could lead below the best, and that no cheaper one beats."""
        able: Ints = np.flatnonzero(promise < self._value - TOLERANCE * abs(self._value))
        able = able[np.lexsort((error[able], cost[able]))]
        before = np.minimum.accumulate(error[able])
        able = able[np.concatenate([[True], error[able][1:] < before[:-1]])[: len(able)]]
        if len(able) > STATES:
            order = np.argsort(promise[able], kind="stable")
            self._dropped = min(self._dropped, float(promise[able[order[STATES]]]))
            able = able[order[:STATES]]
        return able

    def _offer(self, path: list[int], cost: int, error: float) -> None:
        choice, value = self._filled(path, cost, error)
        if value < self._value:
            self._best, self._value = choice, value

    def _filled(self, path: list[int], cost: int, error: float) -> tuple[list[int], float]:
        """Choices completed: the cheapest of the open classes, then every step up that still fits."""
        level = len(path)
        choice = path + [0] * (len(self._classes) - level)
        room = self._most - cost - int(self._rest_cost[level])
        value = error + float(self._rest_error[level])
        for of, to, _, _ in zip(*(part.tolist() for part in self._steps), strict=True):
            if of < level or to < choice[of]:
                continue
            c = self._classes[of]
            more = int(c.cost[to] - c.cost[choice[of]])
            if more <= room:
                value -= float(c.error[choice[of]] - c.error[to])
                room -= more
                choice[of] = to
        return choice, value


def _steps(classes: Sequence[_Class]) -> _Steps:
    rows: list[tuple[int, int, int, float]] = []
    for of, c in enumerate(classes):
        hull = _hull(c)
        for a, b in pairwise(hull):
            rows.append((of, b, int(c.cost[b] - c.cost[a]), float(c.error[a] - c.error[b])))
    rows.sort(key=lambda row: -row[3] / row[2])
    whole = np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)
    gain = np.array([row[3] for row in rows], np.float64)
    return _Steps(whole[:, 0], whole[:, 1], whole[:, 2], gain)


def _path(origins: Sequence[tuple[Ints, Ints]], at: int) -> list[int]:
    """The choices that led to a state."""
    choices = []
    for parent, choice in reversed(origins):
        choices.append(int(choice[at]))
        at = int(parent[at])
    return choices[::-1]
