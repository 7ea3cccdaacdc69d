"""What is wrong with a result of a library, said of its case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..llama import Measurement
from ..llama.guards import UNWRITTEN
from .outcome import Outcome
from .running import Product

NEAR = 1e-2  # from an arithmetic: further than any other arithmetic is


def diagnosed(outcome: Outcome, product: Product, result: Measurement) -> Outcome:
    """The same outcome with what is wrong, and with all arrays for whoever wants to look.

    Without a claim the diagnosis may know an arithmetic that :func:`judge` did not try: then a
    kernel that is near is right. What it never wrote is diagnosed as zero, which is how such memory looks.
    """
    import ggmlq

    how = product.how
    y, *repeats = (_zero_where_unwritten(one) for one in (result.y, *result.repeats))
    with np.errstate(all="ignore"):  # wrong results overflow at will
        found = ggmlq.diagnose(
            y, product.x, product.q, arithmetic=how.arithmetic, repeats=repeats, ids=product.ids
        )
    inside = not (outcome.unwritten or outcome.leaked or outcome.strays)
    another = found.ok and how.arithmetic is None and outcome.distance < NEAR and inside
    if outcome.verdict == "wrong" and another:
        return replace(outcome, verdict="ok", text=found.text)
    arrays = {**product.arrays, "y": y, "repeats": np.array(repeats), "unwritten": result.unwritten}
    if found.ok and outcome.verdict == "differs":
        text = f"{_observed(outcome, result)} Each run alone is right."
        return replace(outcome, text=text, arrays=arrays)
    told = "" if found.ok else found.text
    text = "\n".join(filter(None, [_observed(outcome, result), told]))
    return replace(outcome, fault="unknown" if found.ok else found.fault, text=text, arrays=arrays)


def _zero_where_unwritten(y: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(y.view(np.uint32) == UNWRITTEN, np.float32(0), y)


def _observed(outcome: Outcome, result: Measurement) -> str:
    """What only whoever ran the kernel can know."""
    said = []
    if result.unwritten.any():
        rows, columns = np.nonzero(result.unwritten.reshape(-1, result.y.shape[-1]))
        said.append(
            f"{len(rows)} elements were never written: rows {rows.min()} to {rows.max()}, "
            f"columns {columns.min()} to {columns.max()}."
        )
    if outcome.leaked:
        said.append(f"{outcome.leaked} elements are made of memory outside the operands.")
    said += [f"{stray}." for stray in outcome.strays]
    if outcome.forced:
        said.append(
            "The device's supports_op refuses such activations; llama.cpp multiplies so all the same."
        )
    if outcome.out and np.isfinite(outcome.distance):
        said.append(f"{outcome.out} of {result.y.size} elements are out of bound of {outcome.arithmetic}.")
    if outcome.unequal:
        said.append(
            f"{outcome.unequal} elements change from run to run: a race, or sums in an order that "
            "varies (atomic additions)."
        )
    return " ".join(said)
