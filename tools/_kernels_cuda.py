"""The GPU's kernels that come with the package: those that products take by themselves, on cards of all
kinds.

The chooser is asked: products of many shapes run without a GPU, on cards of a table, and their launches are
noted (ggmlq/ops/dry_run.py). Machine code is for Hopper, PTX for all other cards. Of a family with few
cases all come, if one does. GRUs and rungs that are there to be read are compiled when they are needed, and
products of codes with scales on cards before 8.0, and of e5m2 on Hopper. Attention is asked likewise, by
caches of the usual types that take rows of each kind of floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import _dry_runs
import numpy as np
from _packs import Wanted

from ggmlq.cuda.driver.coverage import families
from ggmlq.cuda.driver.served import PTX, machine_of
from ggmlq.cuda.kernels.attention.plan import MLA_WIDTH, USUAL_TYPES, WIDTHS
from ggmlq.cuda.kernels.cost.choice import HALF_TYPES
from ggmlq.formats import BLOCK_FORMATS, Format
from ggmlq.ops import dry_run
from ggmlq.store.origin import Origin

HOPPER = (9, 0)
FEW = 8  # cases of a family that come together
# Families for activations that do not lie as kernels read them, for repeated products with a bias, for
# torch's own products, and for the small parts of a layer.
BESIDE = (
    "ggmlq.cuda.layouts.floats.kernel", "ggmlq.cuda.kernels.epilogue.results.bias_adder",
    "ggmlq.cuda.kernels.layers.normer", "ggmlq.cuda.kernels.layers.rope_kernel",
    "ggmlq.cuda.kernels.epilogue.gates.gater",
    "ggmlq.cuda.kernels.layers.hadamard_kernel",
    "ggmlq.cuda.kernels.layers.pair_gater", "ggmlq.cuda.kernels.layers.picker",
    "ggmlq.cuda.kernels.layers.part_finder", "ggmlq.cuda.kernels.layers.best_finder",
    "ggmlq.cuda.kernels.router.scorer", "ggmlq.cuda.kernels.router.router",
    "ggmlq.cuda.kernels.router.mixer", "ggmlq.cuda.kernels.quantize.rope_append.append_kernel",
    "ggmlq.cuda.kernels.quantize.rope_append.spread_kernel",
    "ggmlq.cuda.layouts.to_bf16.decoder",
)  # fmt: skip
# Families of which products of some shape take any case, on Hopper.
WHOLE = (
    "ggmlq.cuda.ladder.linear.r16_warp_specialized.kernel", "ggmlq.cuda.ladder.expert_linear.r4_gemv.kernel",
    "ggmlq.cuda.ladder.expert_linear.r8_gemv_int16.kernel",
    "ggmlq.cuda.kernels.gated.expert_gate_kernel", "ggmlq.cuda.kernels.gated.kernel",
    "ggmlq.cuda.kernels.mma.transposed.kernel", "ggmlq.cuda.kernels.mma.transposed.tile_kernel",
    "ggmlq.cuda.layouts.to_bf16.half_decoder",
)  # fmt: skip
ACTIVATIONS = ("q8_1", "q8_K")  # types that no model stores weights in
OTHERS = dry_run.SHAPES[2:8:2]  # shapes for cards whose tiles do not depend on shapes
LEAST_CODED = (8, 0)
EIGHT_ROWS = range(5, 9)  # rows of the kernels of cuda:gemv that take 16 bits alone
TIMED = (1, 8, 16, 32)  # rows at which cuda:mma_bf16 is timed beside cuda:gemv, on cards of no table
FEW_ROWS = (1, 8, 16, 33, 64, 100, 200, 512, 1024, 4096)  # for tiles that do not depend on shapes
SCALED = (  # codes with the tiles of x and of w
    ("e4m3", ((1, 128), (128, 128))), ("e4m3", ((1, 128), (1, 128))), ("e4m3", ((1, None), (1, None))),
    ("int8", ((1, None), (1, None))), ("int8", ((1, 128), (1, 128))),
)  # fmt: skip
CACHES: tuple[dict[str, Any], ...] = (  # of the usual types and widths, and of MLA
    *({"heads": 2, "width": w, "k": k, "v": v} for (k, v), w in product(USUAL_TYPES, WIDTHS)),
    *({"heads": 1, "width": MLA_WIDTH, "width_v": 512, "k": k, "shared": True} for k in ("f16", "q8_0")),
)  # fmt: skip
GRADIENTS = tuple(tiles for code, tiles in SCALED if code == "e4m3")  # the same of e5m2


@cache
def wanted() -> tuple[Wanted, ...]:
    """All kernels that belong in the packs."""
    kernels = dict.fromkeys(_launched())
    for name, machine in product(BESIDE, (machine_of(HOPPER), PTX)):
        kernels |= dict.fromkeys(Wanted(Origin(name, case), machine) for case in families()[name].cases)
    for name in WHOLE:
        machine = machine_of(HOPPER)
        kernels |= dict.fromkeys(Wanted(Origin(name, case), machine) for case in families()[name].cases)
    for origin, machine in list(kernels):
        cases = families()[origin.family].cases
        if len(cases) <= FEW and not origin.formats:
            kernels |= dict.fromkeys(Wanted(origin._replace(case=case), machine) for case in cases)
    return tuple(kernels)


def _launched() -> Iterator[Wanted]:
    for card in _dry_runs.CARDS:
        machine = machine_of(card.capability) if card.capability == HOPPER else PTX
        yield from (
            Wanted(kernel.origin, machine)
            for kernel in _kernels_of(card)
            if machine != PTX or not kernel.exact
        )


def _kernels_of(card: dry_run.Card) -> Iterator[Any]:
    """The kernels that products take on a card."""
    hopper = card.capability == HOPPER
    for fmt in BLOCK_FORMATS:
        yield from dry_run.block_kernels(fmt, card)
    for fmt in stored():
        yield from dry_run.product_kernels(fmt, card, dry_run.SHAPES if hopper else OTHERS)
        if hopper:  # which alone has kernels of so few rows in 16 bits for each way to split them
            yield from dry_run.product_kernels(fmt, card, dry_run.SHAPES, EIGHT_ROWS, (np.float16,))
        if not hopper and card.capability >= LEAST_CODED:
            yield from dry_run.product_kernels(fmt, card, OTHERS, FEW_ROWS, (np.float16,))
            yield from dry_run.product_kernels(fmt, card, OTHERS, TIMED, _dry_runs.INPUTS, "cuda:mma_bf16")
            if fmt.name in HALF_TYPES:  # some GeForce card takes each tile
                yield from dry_run.product_kernels(fmt, card, OTHERS, FEW_ROWS, (np.float16,), "cuda:mma_f16")
        yield from _dry_runs.expert_kernels(fmt, card) if card.capability >= LEAST_CODED else ()
    if card.capability >= LEAST_CODED:
        yield from _dry_runs.cache_kernels(card, CACHES)
        for code, tiles in SCALED:
            shapes, rows = (dry_run.SHAPES, dry_run.ROWS) if hopper else (OTHERS, FEW_ROWS)
            yield from _dry_runs.scaled_kernels(code, tiles, card, shapes, rows)
        yield from _dry_runs.code_kernels(card)
        yield from () if hopper else gradient_kernels(card)


def gradient_kernels(card: dry_run.Card) -> Iterator[Any]:
    """The kernels of products of e5m2 on a card without ``wgmma``, of codes and of floats; Hopper has 81."""
    for tiles in GRADIENTS:
        yield from _dry_runs.scaled_kernels("e5m2", tiles, card, OTHERS, FEW_ROWS)
        yield from _dry_runs.float_kernels("e5m2", tiles[1], card, OTHERS, FEW_ROWS)


def stored() -> list[Format]:
    """Types of blocks that models store weights in."""
    return [fmt for fmt in BLOCK_FORMATS if fmt.name not in ACTIVATIONS]


def all_families() -> Iterator[tuple[str, tuple[str, ...]]]:
    """All families of the GPU's kernels, with the formats of their cases."""
    for name, family in families().items():
        yield from ((name, tuple(v.name for v in case if isinstance(v, Format))) for case in family.cases)
