"""The order in which ``auto`` tries rungs, for a problem on a card.

For products of blocks a table decides where one has the card (:mod:`ggmlq.dispatch.tuned`). The shipped one
has CPUs alone: ``ggmlq tune --device cuda --out ggmlq/dispatch/measured.json`` adds a card. What no table has
is ordered

    on Hopper   by estimates from the shape and the card, which were fitted to what ways took on an H200:
                cost/gemv.py and cost/warp_specialized.py for blocks, cost/codes8.py for codes with scales
    from 8.0    cuda:gemv for the rows that it takes, then cuda:mma_bf16. Cards whose tensor cores sum floats
                at half their speed take cuda:mma_f16 for many rows of types that gain by it. The kernel that
                calls cuBLAS waits until ``MIN_LIBRARY_ROWS``: it cannot be recorded in a CUDA graph, and
                decoding for it takes longest where memory is slow
    before 8.0  cuda:dp4a up to 64 rows, then cuda:registers (bench/results/ladder_h200.json): such cards
                refuse all others that are fast

For products with experts the order follows from the number of uses, by fixed limits. Codes with scales have
an order on Hopper alone.

The result is only an order, which :mod:`ggmlq.dispatch.ladder` goes through: an entry can be slow, never
wrong.
"""

from __future__ import annotations

from importlib import import_module

from ....dispatch import tuned
from ....dispatch.card import Card, target
from ....dispatch.ladder import Problem, rungs
from ....dispatch.problems import ExpertLinear, Linear, Operand, ScaledLinear
from ....dispatch.tuned import NOTHING, Preference
from ....formats import BlockFormat
from ...driver import device
from . import roof

MAX_DP4A_ROWS = 64  # rows of x, up to which cuda:dp4a is taken before 8.0
HOPPER = 9, 0
MAX_SMALL_M_ROWS = 64  # rows of x, up to which codes of weights are the first operand
MAX_GEMV_USES, MIN_LONG_COLUMNS = 64, 1024  # uses of experts; columns from which more are best in one launch
# For codes with scales: uses of an expert on average; uses in all; columns from which these do not count.
MAX_USES_OF_EXPERT, MAX_CODES_USES, MIN_CODES_COLUMNS = 4, 256, 4096
TIMED = "cuda:gemv", "cuda:mma_bf16", "cuda:warp_specialized"  # rungs that are timed, from 8.0 on
TIMED_ON_HOPPER = "cuda:gemv_int16", *TIMED
HALVES = "cuda:mma_f16"  # where tensor cores sum floats at half their speed
MAX_ROWS_WITHOUT_HALVES = 128  # rows of x, up to which what the kernel before takes counts beside it
HALF_TYPES = "q4_0", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_nl", "mxfp4"  # whose kernels come with the package
MANY_ROWS_KERNEL = "cuda:mma_bf16"  # for many rows
LIBRARY, MIN_LIBRARY_ROWS = "cuda:dequant_bf16", 4097  # the kernel that calls cuBLAS; rows from which it may
INT16_SHARE = 0.92  # the time of cuda:gemv_int16 beside cuda:gemv: 0.86 to 0.97 (bench/notes/gemv.md)
ESTIMATED, USUAL = "estimated from its shape", "usual on a card that was not measured"


def card() -> Card | None:
    """The card of CuPy's current device; None where there is no GPU."""
    return device.card()


def preference(problem: Problem, timed: bool = True) -> Preference:
    """The order of rungs for a problem on its card.

    ``timed``: times that were measured on this machine come first.
    """
    if isinstance(problem, ScaledLinear):
        return _codes_order(problem)
    if isinstance(problem, ExpertLinear):
        return _expert_order(problem)
    if not isinstance(problem, Linear) or not isinstance(problem.format, BlockFormat):
        return NOTHING
    usually = _untimed(problem)
    if problem.card is None or not problem.card.here or not timed:
        return usually
    return tuned.preference(problem, processor(problem), shortlist, usually)


def processor(problem: Linear) -> tuned.Processor:
    """The card of a problem, as measured times belong to it."""
    assert problem.card is not None
    return tuned.Processor("cuda", problem.card.name, target(problem.card))


def is_measured(problem: Linear) -> bool:
    """True if there is an estimate that was fitted, or an entry of the shipped table, for this card."""
    if problem.card is None or _on_hopper(problem):
        return True
    return tuned.entry_of(tuned.table(), processor(problem)) is not None


def shortlist(problem: Linear) -> tuple[str, ...]:
    """The rungs that could be fastest for a product of blocks, in the order in which they come untimed."""
    able = {r.name for r in rungs(problem.op, problem.device) if r.refuses(problem) is None}
    more = (HALVES,) if _gains_by_halves(problem) else ()
    short = (*(TIMED_ON_HOPPER if _on_hopper(problem) else TIMED), *more)
    order = dict.fromkeys((*_untimed(problem).kernels, *short))
    return tuple(name for name in order if name in able and name in short)


candidates = shortlist  # all rungs that ``ggmlq tune`` times


def _untimed(problem: Linear) -> Preference:
    """The order for products of blocks where nothing was timed on this machine."""
    order = NOTHING if problem.card is None else tuned.shipped(problem, processor(problem))
    if order is not NOTHING:
        return order
    if _on_hopper(problem):
        return _packed_order(problem)
    if problem.card is not None and problem.card.capability < (8, 0):
        return Preference(("cuda:dp4a" if problem.m <= MAX_DP4A_ROWS else "cuda:registers",), USUAL)
    halves = (HALVES,) if _is_faster_by_halves(problem) else ()
    first = "cuda:gemv" if problem.m < MIN_LIBRARY_ROWS else LIBRARY
    return Preference((first, *halves, MANY_ROWS_KERNEL), USUAL)


def _gains_by_halves(problem: Linear) -> bool:
    """True on cards whose tensor cores sum floats at half their speed, for the most frequent types."""
    card = problem.card
    return card is not None and roof.halved(card, "bfloat16") and problem.format.name in HALF_TYPES


def _is_faster_by_halves(problem: Linear) -> bool:
    """True for many rows, where a step with sums of halves takes clearly less time by the count of clocks."""
    if not _gains_by_halves(problem) or problem.m <= MAX_ROWS_WITHOUT_HALVES:
        return False
    from ...layouts.layout import layout_of
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
    few = problem.m <= MAX_SMALL_M_ROWS
    narrow = ("cuda:small_m", codes8.small_m(shape).us) if few else ("cuda:split_k", codes8.split_k(shape).us)
    return dict([narrow, ("cuda:persistent", codes8.persistent(shape).us)])


def _expert_order(problem: ExpertLinear) -> Preference:
    """The order for a product with experts.

    One launch is best for a few tokens, where an expert has few of them; more are sorted first.
    """
    uses = problem.t * problem.u
    if isinstance(problem.weights, Operand):
        kernels = ("cuda:small_m_codes", "cuda:grouped_codes", "cuda:codes")
        few = uses <= MAX_USES_OF_EXPERT * problem.e
        few &= uses <= MAX_CODES_USES or problem.k >= MIN_CODES_COLUMNS
        return Preference(kernels[not few :], "by its uses")
    fmt = problem.weights
    if not isinstance(fmt, BlockFormat):
        return Preference(("cuda:each_bf16",), "the others take blocks")
    if problem.card and problem.card.capability != HOPPER:
        first = ("cuda:gemv",) if problem.t == 1 else ()
        return Preference((*first, "cuda:grouped_mma", "cuda:each_bf16"), "without the host")
    from ...layouts.layout import layout_of

    few = uses <= min(MAX_GEMV_USES, 2 * problem.e)
    few |= uses <= problem.e and problem.k >= MIN_LONG_COLUMNS and not layout_of(fmt).has_offset
    if not few:
        return Preference(("cuda:grouped", "cuda:gemv"), "by its uses")
    first = ("cuda:gemv_int16",) if problem.t == 1 else ()
    return Preference((*first, "cuda:gemv", "cuda:grouped"), "by its uses")


def estimate(problem: Problem, kernel: str) -> float | None:
    """Estimated microseconds of a kernel for a problem on its card; None where there is no estimate."""
    us: dict[str, float] = {}
    if isinstance(problem, ScaledLinear) and _on_hopper(problem):
        us = _codes_us(problem)
    elif isinstance(problem, Linear) and isinstance(problem.format, BlockFormat) and _on_hopper(problem):
        us = _blocks_us(problem, every=True)
    return us[kernel] if kernel in us else _mma_us(problem, kernel) or roof.estimate(problem, kernel)


def _mma_us(problem: Problem, kernel: str) -> float | None:
    """Estimated microseconds of a kernel of ``mma`` on packed weights; None for others, and without facts."""
    card = problem.card
    if card is None or not card.clock or not isinstance(problem, Linear):
        return None
    if not isinstance(problem.format, BlockFormat) or not min(problem.m, problem.n, problem.k):
        return None
    from ...layouts.layout import layout_of
    from . import mma  # its tiles want numba-cuda, too

    if kernel not in mma.KINDS:
        return None
    sizes = problem.m, problem.n, problem.k
    return mma.estimate(card, layout_of(problem.format), kernel, *sizes)


floor = roof.floor  # microseconds that no kernel like one can go below


def packed(cases: dict[str, list[Problem]]) -> dict[str, bool | None]:
    """By kernel, whether all code that it launches for some problems comes with the package."""
    packaged: dict[str, bool | None] = import_module("ggmlq.cuda.driver.coverage").packed(cases)
    return packaged


def _blocks_us(problem: Linear, every: bool = False) -> dict[str, float]:
    """Estimated microseconds on Hopper of rungs that may be best for blocks, or of all, by name."""
    # These want numba-cuda, too.
    from ...layouts.codes import serves_bytes
    from ...layouts.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, layout_of
    from ..gemv.stages import COLUMNS
    from ..hopper.tiles import UNIT_FRAGMENTS
    from . import gemv, warp_specialized

    m, n, k, card = problem.m, problem.n, problem.k, problem.card
    assert card is not None
    assert isinstance(problem.format, BlockFormat)
    layout, us_of, one_row = layout_of(problem.format), dict[str, float](), 1.0
    if m <= COLUMNS[-1]:
        height = FRAGMENT_ROWS * -(-n // TILE_ROWS)
        us, _ = gemv.best_split(gemv.GemvShape(layout, height, k, m, card.multiprocessors, card.memory))
        if m == 1:  # the estimate is that of cuda:gemv_int16
            one_row = INT16_SHARE
            if serves_bytes(layout):
                us_of["cuda:gemv_int16"] = us
        us_of["cuda:gemv"] = us / one_row
    if every or "cuda:gemv_int16" not in us_of:
        stages = -(-k // (UNIT_FRAGMENTS * STEP))
        shape = warp_specialized.WarpSpecializedShape.on(card, m, n, stages, layout, problem.narrow)
        us_of["cuda:warp_specialized"] = warp_specialized.best_tile(shape).us
    return us_of


def _packed_order(problem: Linear) -> Preference:
    """The order for blocks: that of their estimates, then kernels that need no maps."""
    us = _blocks_us(problem)
    return Preference((*sorted(us, key=us.__getitem__), MANY_ROWS_KERNEL), ESTIMATED)


def _on_hopper(problem: Linear | ScaledLinear) -> bool:
    """True where there is an estimate: on Hopper, for a product that is not empty."""
    card = problem.card
    return card is not None and card.capability == HOPPER and min(problem.m, problem.n, problem.k) > 0
