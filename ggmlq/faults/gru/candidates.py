"""The doctor's list of mistakes to try on a GRU; if several explain its codes, the first is named."""

from __future__ import annotations

from collections.abc import Iterator

from .flow import compensations, inputs, products, states
from .machine import Candidate, Run
from .parts import orders, resets, tables, terms
from .shifts import exponents, roundings, saturations, zero_points
from .update import complements, fused, unrounded


def candidates(run: Run) -> Iterator[Candidate]:
    """Every mistake of the catalogue that a step can have."""
    yield from compensations()
    yield from complements(run)
    yield from resets()
    yield from terms()
    yield from orders()
    yield from tables(run)
    yield from roundings()
    yield from states(run)
    yield from inputs(run)
    yield from saturations()
    yield from zero_points(run)
    yield from exponents()
    yield from products(run)
    yield from fused()
    yield from unrounded(run)
