"""The order in which ``auto`` tries rungs, for a problem on a card.

On Hopper the order is that of estimates from the shape and the card: cost/packed.py for blocks,
cost/codes8.py for codes with scales. Any number of rows and columns has one.

Elsewhere the order was measured and lies in choice.json. ``tools/table.py cuda_choice`` writes it from the
results of ``bench/bench_engine.py``; :mod:`ggmlq.dispatch.measured` says how it is read. A card that was not
measured takes the entry of the nearest capability, then of the same name, then of the nearest number of
multiprocessors.

For products with experts the order follows from the number of uses, by fixed limits. Codes with scales have
an order on Hopper alone.

GPUs before 8.0 refuse all rungs of the table. Among the other rungs dp4a is ahead up to 64 rows, in
bench/results/ladder_h200.json, and registers above that.

The result is only an order, which :mod:`ggmlq.dispatch.ladder` goes through: an entry can be slow, never
wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from ...dispatch import measured
from ...dispatch.card import Card
from ...dispatch.ladder import Problem
from ...dispatch.measured import NOTHING, Entry, Preference
from ...dispatch.problems import ExpertLinear, Linear, Operand, ScaledLinear
from ...formats import BlockFormat
from ..machine import device

SPARE = ((64, "cuda:dp4a"), (None, "cuda:registers"))  # (rows up to which a rung is taken, the rung)
HOPPER, FEWEST = (9, 0), 64  # rows of x, up to which weights are the first operand
FEW_USES, LONG_ROWS = 64, 1024  # uses of experts; columns from which one launch is best for more uses, too
# For codes with scales: uses of an expert on average; uses in all; columns from which these do not count.
FEW_CODES, FEW_IDS, LONG_CODES = 4, 256, 4096
# Operations on bfloat16 a clock and multiprocessor, by the datasheets; those of other GPUs.
OPERATIONS, ELSEWHERE = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192}, 1024
ESTIMATED = "estimated from its shape"
TABLE = Path(__file__).parents[1] / "choice.json"


def card() -> Card | None:
    """The card of CuPy's current device; None where there is no GPU."""
    return device.card()


@cache
def table() -> list[Entry]:
    """The entries of the cards that were measured."""
    return measured.entries(TABLE, "cards")


def preference(problem: Problem) -> Preference:
    """The order of rungs for a problem on its card; without a card, on the first one of the table."""
    card, nearest = problem.card, _nearest(problem.card)
    if isinstance(problem, ScaledLinear):
        return _codes_order(problem)
    if isinstance(problem, ExpertLinear):
        return _expert_order(problem)
    if isinstance(problem, Linear) and isinstance(problem.format, BlockFormat) and _on_hopper(problem):
        return _packed_order(problem, problem.format)
    choice = measured.preference(_as_there(problem, nearest), nearest, nearest.get("card", ""))
    if choice is NOTHING or card is None:
        return choice
    kernels, why = choice
    if nearest["card"] not in card.name:
        why += ", the nearest card"
    if card.capability < (8, 0) and isinstance(problem, Linear):
        kernels = (*kernels, next(name for most, name in SPARE if most is None or problem.m <= most))
    return Preference(kernels, why)


def _codes_order(problem: ScaledLinear) -> Preference:
    """The order for a product of codes with scales: that of cost/codes8.py's estimates on Hopper."""
    if not _on_hopper(problem):
        return NOTHING
    assert problem.card is not None
    from . import codes8  # its kernels want numba-cuda, which a list of choices does not

    shape = codes8.CodesShape.on(problem.card, problem.m, problem.n, problem.k)
    few = problem.m <= FEWEST
    narrow = ("cuda:small_m", codes8.small_m(shape).us) if few else ("cuda:split_k", codes8.split_k(shape).us)
    us = dict([narrow, ("cuda:persistent", codes8.persistent(shape).us)])
    return Preference(tuple(sorted(us, key=us.__getitem__)), ESTIMATED)


def _expert_order(problem: ExpertLinear) -> Preference:
    """The order for a product with experts.

    One launch is best for a few tokens, where an expert has few of them; more are sorted first.
    """
    uses = problem.t * problem.u
    if isinstance(problem.weights, Operand):
        kernels = ("cuda:small_m_codes", "cuda:grouped_codes", "cuda:codes")
        few = uses <= FEW_CODES * problem.e and (uses <= FEW_IDS or problem.k >= LONG_CODES)
        return Preference(kernels[not few :], "by its uses")
    fmt = problem.weights
    if not isinstance(fmt, BlockFormat) or (problem.card and problem.card.capability != HOPPER):
        return Preference(("cuda:each_bf16",), "the others take blocks, and were not tried on such a card")
    from ..packed.layout import layout_of

    few = uses <= min(FEW_USES, 2 * problem.e)
    few |= uses <= problem.e and problem.k >= LONG_ROWS and not layout_of(fmt).has_offset
    return Preference(("cuda:gemv", "cuda:grouped") if few else ("cuda:grouped", "cuda:gemv"), "by its uses")


def _as_there(problem: Problem, entry: Entry) -> Problem:
    """A problem on another card as a problem on the card of an entry."""
    card = problem.card
    if card is None or not isinstance(problem, Linear) or not entry or entry["card"] in card.name:
        return problem
    there = Card(
        entry["card"], tuple(entry["capability"]), entry["multiprocessors"], 0,
        entry.get("bandwidth", 0.0), entry.get("clock", 0.0),
    )  # fmt: skip
    m, n = problem.m, round(problem.n * there.multiprocessors / card.multiprocessors)
    if m and balance(card) and balance(there):
        m = max(1, round(m * balance(there) / balance(card)))
    return replace(problem, m=m, n=n)


def balance(card: Card) -> float:
    """Operations that a card does while a byte comes from its memory; 0 where that is not known."""
    a_clock = card.multiprocessors * OPERATIONS.get(card.capability, ELSEWHERE)
    return a_clock * card.clock / card.bandwidth if card.bandwidth else 0.0


def _packed_order(problem: Linear, fmt: BlockFormat) -> Preference:
    """The order for a product of blocks: that of cost/packed.py's estimates."""
    from ..packed.layout import layout_of
    from . import packed  # its kernels want numba-cuda, too

    assert problem.card is not None
    sizes = problem.m, problem.n, problem.k
    us = packed.estimates(packed.PackedShape(*sizes, layout_of(fmt), problem.card))
    return Preference(tuple(sorted(us, key=us.__getitem__)), ESTIMATED)


def _on_hopper(problem: Linear | ScaledLinear) -> bool:
    """True where there is an estimate: on Hopper, for a product that is not empty."""
    card = problem.card
    return card is not None and card.capability == HOPPER and min(problem.m, problem.n, problem.k) > 0


def formats(card: Card | None) -> list[str]:
    """The formats that were measured on the card whose entry this card takes."""
    return list(dict.fromkeys(row["format"] for row in _nearest(card).get("linear", [])))


def _nearest(card: Card | None) -> Entry:
    entries = table()
    if card is None or not entries:
        return entries[0] if entries else {}
    return min(entries, key=lambda entry: _distance(card, entry))


def _distance(card: Card, entry: Entry) -> tuple[int, bool, int]:
    (major, minor), (here, below) = entry["capability"], card.capability
    return (
        abs(10 * (major - here) + minor - below),
        entry["card"] not in card.name,
        abs(entry["multiprocessors"] - card.multiprocessors),
    )
