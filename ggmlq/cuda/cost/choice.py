"""The order in which ``auto`` tries rungs, for a problem on a card.

On Hopper the order is that of estimates from the shape and the card: cost/packed.py for blocks,
cost/codes8.py for codes with scales. Any number of rows and columns has one.

Elsewhere the order was measured and lies in choice.json. ``tools/table.py cuda_choice`` writes it from the
results of ``bench/bench_engine.py``; :mod:`ggmlq.dispatch.tuned` says how it is read. A card that was not
measured takes the entry of the nearest capability, then of the same name, then of the nearest number of
multiprocessors; but up to ``MOST_ROWS`` rows no kernel that calls cuBLAS. That one was ahead on a Hopper,
whose tensor cores only the library used; it cannot be recorded in a CUDA graph, and decoding for it takes
longest where memory is slow.

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
from importlib import import_module
from pathlib import Path

from ...dispatch import tuned
from ...dispatch.card import Card, target
from ...dispatch.ladder import Problem, rungs
from ...dispatch.problems import ExpertLinear, Linear, Operand, ScaledLinear
from ...dispatch.tuned import NOTHING, Entry, Preference
from ...formats import BlockFormat
from ..machine import device
from . import roof

SPARE = ((64, "cuda:dp4a"), (None, "cuda:registers"))  # (rows up to which a rung is taken, the rung)
HOPPER, FEWEST = (9, 0), 64  # rows of x, up to which weights are the first operand
FEW_USES, LONG_ROWS = 64, 1024  # uses of experts; columns from which one launch is best for more uses, too
# For codes with scales: uses of an expert on average; uses in all; columns from which these do not count.
FEW_CODES, FEW_IDS, LONG_CODES = 4, 256, 4096
SHORT = "cuda:gemv", "cuda:mma_bf16", "cuda:warp_specialized"  # rungs that are timed, from 8.0 on
SHORT_ON_HOPPER = "cuda:gemv_int16", *SHORT
HALVES = "cuda:mma_f16"  # where tensor cores sum floats at half their speed
FEWEST_HALVES = 128  # rows of x, up to which what the kernel before takes counts beside it
HALF_TYPES = "q4_0", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_nl", "mxfp4"  # whose kernels come with the package
MANY = "cuda:mma_bf16"  # for many rows, where no kernel of an entry is left
LIBRARY, MOST_ROWS = ("cuda:dequant", "cuda:dequant_cublas", "cuda:dequant_bf16"), 4096
ESTIMATED = "estimated from its shape"
TABLE = Path(__file__).parents[1] / "choice.json"


def card() -> Card | None:
    """The card of CuPy's current device; None where there is no GPU."""
    return device.card()


@cache
def table() -> list[Entry]:
    """The entries of the cards that were measured."""
    return tuned.entries(TABLE, "cards")


def preference(problem: Problem, timed: bool = True) -> Preference:
    """The order of rungs for a problem on its card; without a card, on the first one of the table.

    ``timed``: times that were measured on this machine come first.
    """
    card = problem.card
    if isinstance(problem, ScaledLinear):
        return _codes_order(problem)
    if isinstance(problem, ExpertLinear):
        return _expert_order(problem)
    usually = _linear_order(problem)
    if card is None or not card.here or not isinstance(problem, Linear) or not timed:
        return usually
    order = tuned.preference(problem, processor(problem), shortlist(problem))
    if order is NOTHING:
        return usually
    return Preference(tuple(dict.fromkeys((*order.kernels, *usually.kernels))), order.why)


def processor(problem: Linear) -> tuned.Processor:
    """The card of a problem, as measured times belong to it."""
    assert problem.card is not None
    return tuned.Processor("cuda", problem.card.name, target(problem.card))


def is_measured(problem: Linear) -> bool:
    """True if there is an estimate or an entry for this card."""
    card = problem.card
    return card is None or _on_hopper(problem) or any(entry["card"] in card.name for entry in table())


def shortlist(problem: Linear) -> tuple[str, ...]:
    """The rungs that could be fastest for a product of blocks, in the order in which they come untimed."""
    able = {r.name for r in rungs(problem.op, problem.device) if r.refuses(problem) is None}
    more = (HALVES,) if _gains_by_halves(problem) else ()
    short = (*(SHORT_ON_HOPPER if _on_hopper(problem) else SHORT), *more)
    order = dict.fromkeys((*_linear_order(problem).kernels, *short))
    return tuple(name for name in order if name in able and name in short)


def candidates(problem: Linear) -> tuple[str, ...]:
    """All rungs that ``ggmlq tune`` times for a product of blocks."""
    return shortlist(problem)


def _linear_order(problem: Problem) -> Preference:
    """The order for products of blocks and floats where nothing was timed on this machine."""
    card, nearest = problem.card, _nearest(problem.card)
    if isinstance(problem, Linear) and isinstance(problem.format, BlockFormat) and _on_hopper(problem):
        return _packed_order(problem, problem.format)
    choice = tuned.table_preference(_as_there(problem, nearest), nearest, nearest.get("card", ""))
    if choice is NOTHING or card is None:
        return choice
    kernels, why = choice
    if nearest["card"] not in card.name:
        why += ", the nearest card"
        if isinstance(problem, Linear):
            kernels = (*(name for name in kernels if problem.m > MOST_ROWS or name not in LIBRARY), MANY)
            if _is_faster_by_halves(problem):
                at = kernels.index(MANY)
                kernels = (*kernels[:at], HALVES, *kernels[at:])
    if card.capability < (8, 0) and isinstance(problem, Linear):
        kernels = (*kernels, next(name for most, name in SPARE if most is None or problem.m <= most))
    return Preference(kernels, why)


def _gains_by_halves(problem: Linear) -> bool:
    """True on cards whose tensor cores sum floats at half their speed, for the most frequent types."""
    card = problem.card
    return card is not None and roof.halved(card, "bfloat16") and problem.format.name in HALF_TYPES


def _is_faster_by_halves(problem: Linear) -> bool:
    """True for many rows, where a step with sums of halves takes clearly less time by the count of clocks."""
    if not _gains_by_halves(problem) or problem.m <= FEWEST_HALVES:
        return False
    from ..packed.layout import layout_of
    from . import mma

    assert problem.card is not None
    assert isinstance(problem.format, BlockFormat)
    return mma.gains_by_halves(problem.card, layout_of(problem.format))


def _codes_order(problem: ScaledLinear) -> Preference:
    """The order for a product of codes with scales: that of cost/codes8.py's estimates on Hopper."""
    if not _on_hopper(problem):
        return NOTHING
    us = _codes_us(problem)
    return Preference(tuple(sorted(us, key=us.__getitem__)), ESTIMATED)


def _codes_us(problem: ScaledLinear) -> dict[str, float]:
    """Estimated microseconds of kernels for codes with scales on Hopper, by name."""
    assert problem.card is not None
    from . import codes8  # its kernels want numba-cuda, which a list of choices does not

    shape = codes8.CodesShape.on(problem.card, problem.m, problem.n, problem.k)
    few = problem.m <= FEWEST
    narrow = ("cuda:small_m", codes8.small_m(shape).us) if few else ("cuda:split_k", codes8.split_k(shape).us)
    return dict([narrow, ("cuda:persistent", codes8.persistent(shape).us)])


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
    if not isinstance(fmt, BlockFormat):
        return Preference(("cuda:each_bf16",), "the others take blocks")
    if problem.card and problem.card.capability != HOPPER:
        first = ("cuda:gemv",) if problem.t == 1 else ()
        return Preference((*first, "cuda:grouped_mma", "cuda:each_bf16"), "without the host")
    from ..packed.layout import layout_of

    few = uses <= min(FEW_USES, 2 * problem.e)
    few |= uses <= problem.e and problem.k >= LONG_ROWS and not layout_of(fmt).has_offset
    if not few:
        return Preference(("cuda:grouped", "cuda:gemv"), "by its uses")
    first = ("cuda:gemv_int16",) if problem.t == 1 else ()
    return Preference((*first, "cuda:gemv", "cuda:grouped"), "by its uses")


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
    return roof.peak(card, "bfloat16") / card.bandwidth if card.bandwidth else 0.0


def estimate(problem: Problem, kernel: str) -> float | None:
    """Estimated microseconds of a kernel for a problem on its card; None where there is no estimate."""
    us: dict[str, float] = {}
    if isinstance(problem, ScaledLinear) and _on_hopper(problem):
        us = _codes_us(problem)
    elif isinstance(problem, Linear) and isinstance(problem.format, BlockFormat) and _on_hopper(problem):
        us = _packed_us(problem, problem.format, every=True)
    return us[kernel] if kernel in us else _mma_us(problem, kernel) or roof.estimate(problem, kernel)


def _mma_us(problem: Problem, kernel: str) -> float | None:
    """Estimated microseconds of a kernel of ``mma`` on packed weights; None for others, and without facts."""
    card = problem.card
    if card is None or not card.clock or not isinstance(problem, Linear):
        return None
    if not isinstance(problem.format, BlockFormat) or not min(problem.m, problem.n, problem.k):
        return None
    from ..packed.layout import layout_of
    from . import mma  # its tiles want numba-cuda, too

    if kernel not in mma.KINDS:
        return None
    sizes = problem.m, problem.n, problem.k
    return mma.estimate(card, layout_of(problem.format), kernel, *sizes)


def floor(problem: Problem, kernel: str) -> float | None:
    """Microseconds that no kernel like this can go below, by the card's data sheet; None if it is unknown."""
    return roof.floor(problem, kernel)


def packed(cases: dict[str, list[Problem]]) -> dict[str, bool | None]:
    """By kernel, whether all code that it launches for some problems comes with the package."""
    packaged: dict[str, bool | None] = import_module("ggmlq.cuda.machine.coverage").packed(cases)
    return packaged


def _packed_order(problem: Linear, fmt: BlockFormat) -> Preference:
    """The order for blocks: that of cost/packed.py's estimates, then kernels that need no maps."""
    us = _packed_us(problem, fmt)
    return Preference((*sorted(us, key=us.__getitem__), "cuda:wgmma", MANY), ESTIMATED)


def _packed_us(problem: Linear, fmt: BlockFormat, every: bool = False) -> dict[str, float]:
    """Estimated microseconds of kernels for blocks on Hopper, by name."""
    from ..packed.layout import layout_of
    from . import packed  # its kernels want numba-cuda, too

    assert problem.card is not None
    sizes = problem.m, problem.n, problem.k
    shape = packed.PackedShape(*sizes, layout_of(fmt), problem.card, problem.narrow)
    return packed.estimates(shape, every)


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
