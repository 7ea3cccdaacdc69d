#!/usr/bin/env python3
"""Fits the constants of Hopper's estimates to measured ways, and says how far off the best the choice is.

    python bench/bench_ways.py --json bench/results/ways_h200.json    # on a card
    python tools/fit.py                 # judges the constants of ggmlq/cuda/costs.json
    python tools/fit.py --write         # fits all constants, and writes that file
    python tools/fit.py --kernels gemv --held-out

The *regret* of a choice is the time of the way that an estimate takes, beside that of the fastest measured
way. ``--held-out`` fits each half of the shapes, and judges it on the other half.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from ggmlq.cuda.codes8.small_m import TILES
from ggmlq.cuda.cost import codes8, gemv, split, stage, warp_specialized
from ggmlq.cuda.cost.constants import KINDS, PLACE, constants
from ggmlq.cuda.gemv.clusters import SplitBlocks
from ggmlq.cuda.linear._gemv import rows_for
from ggmlq.cuda.packed.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, layout_of
from ggmlq.cuda.rings.boxed import BoxTile
from ggmlq.cuda.warp_specialized.tile import UNIT_FRAGMENTS, WarpSpecializedTile
from ggmlq.dispatch.cards import card_named

MEASURED = Path(__file__).parents[1] / "bench/results/ways_h200.json"
WHAT = "Constants of estimates, by tools/fit.py; ggmlq/cuda/cost/constants.py says what they are"
OF_KERNELS = {"gemv": "gemv", "warp_specialized": "tiles", "codes8": "codes"}
STEPS, SHIFT, LEAST_GAIN = 20, 1e-3, 1e-3  # of a fit; of a derivative; share, below which a fit ends
PULL, COMMON, USUAL = (
    0.02,
    0.8,
    0.05,
)  # towards constants before; of figures' means; of an error in logarithms
SURE, ABSOLUTE = 40, 3  # power of a way's time with which its chance falls; weight of errors of the least
LENGTHS = 0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.02  # of moves of a logarithm
CARD = card_named("fit", "NVIDIA H200")
Figure = dict[str, Any]


def gemv_estimates(figure: Figure) -> Iterator[float]:
    height, layout = FRAGMENT_ROWS * -(-figure["N"] // TILE_ROWS), layout_of(gq.formats[figure["format"]])
    rows = rows_for(figure["M"], "float16")
    shape = gemv.GemvShape(layout, height, figure["K"], rows, CARD.multiprocessors, CARD.memory)
    for fragment_rows, splits, most, _ in figure["ways"]:
        yield gemv.microseconds(shape, gemv.GemvSplit(fragment_rows, SplitBlocks(splits, most)))


def tile_estimates(figure: Figure) -> Iterator[float]:
    layout, stages = layout_of(gq.formats[figure["format"]]), -(-figure["K"] // (UNIT_FRAGMENTS * STEP))
    sizes = figure["M"], figure["N"], stages
    shape = warp_specialized.WarpSpecializedShape.on(CARD, *sizes, layout, figure["plain"])
    for (columns, blocks), ways in groupby(figure["ways"], key=lambda way: tuple(way[:2])):
        tile = WarpSpecializedTile(columns, blocks)
        wave = shape.wave(tile, blocks)
        for way in ways:
            yield warp_specialized.tile_us(shape, tile, split.Split(*way[2:-1]), wave)


def code_estimates(figure: Figure) -> Iterator[float]:
    shape = codes8.CodesShape.on(CARD, figure["M"], figure["N"], figure["K"])
    for rows, columns, stages, blocks, splits, _ in figure["ways"]:
        if blocks:
            facts = rows, columns, stages, blocks
            few = next(t for t in TILES if (t.rows, t.columns, t.stages, t.blocks) == facts)
            yield shape.time(few, -(-shape.n // rows), splits, blocks)
        else:
            box = BoxTile(rows, columns, stages)
            yield shape.time(box, box.tiles(shape.m, shape.n), splits, late=splits == 1)


ESTIMATES: dict[str, Callable[[Figure], Iterator[float]]] = {
    "gemv": gemv_estimates,
    "warp_specialized": tile_estimates,
    "codes8": code_estimates,
}


@contextmanager
def trial(kind: str, values: Any) -> Iterator[None]:
    """Estimates with other constants of a kind."""
    other = constants()._replace(**{kind: values})
    with ExitStack() as stack:
        for module in (codes8, gemv, split, stage, warp_specialized):
            stack.enter_context(mock.patch.object(module, "constants", return_value=other))
        yield


def estimated(figures: Sequence[Figure], kind: str, values: Any) -> list[Any]:
    """Estimated microseconds of all ways, an array for each figure."""
    with trial(kind, values):
        return [np.array(list(ESTIMATES[each["kernel"]](each))) for each in figures]


def measured(figure: Figure) -> Any:
    """Measured microseconds of a figure's ways."""
    return np.array([way[-1] for way in figure["ways"]])


def fitted(figures: Sequence[Figure], kind: str, values: Any) -> Any:
    """The constants whose estimates are nearest to what was measured, and then choose best.

    The first fit is that of Levenberg and Marquardt, on logarithms: each step solves the linear problem. The
    fastest ways count most, and what all ways of a figure have in common counts little. Then each constant is
    moved while the choice gains by it, where the chance of a way falls with its estimate.
    """
    us = [measured(figure) for figure in figures]
    weights, begun = [(t.min() / t) ** 2 for t in us], np.log(np.array(values))

    def constants_at(at: Any) -> Any:
        return type(values)(*np.exp(at))

    def rest(at: Any) -> Any:
        off = [np.log(e / t) for e, t in zip(estimated(figures, kind, constants_at(at)), us, strict=True)]
        apart = [w * (o - COMMON * np.average(o, weights=w)) for o, w in zip(off, weights, strict=True)]
        off_all = np.concatenate(apart)
        robust = off_all / np.sqrt(1 + np.abs(off_all) / USUAL)
        return np.concatenate([robust, PULL * np.sqrt(len(robust) / len(at)) * (at - begun)])

    def loss(at: Any) -> float:
        lost = 0.0
        for e, t in zip(estimated(figures, kind, constants_at(at)), us, strict=True):
            chance = (e.min() / e) ** SURE
            lost += (chance * t).sum() / chance.sum() / t.min() - 1
            lost += ABSOLUTE * np.log(e.min() / t.min()) ** 2  # another kernel's estimate stands beside it
        return lost / len(us) + PULL**2 * float(((at - begun) ** 2).mean())

    return type(values)(*(float(f"{v:.4g}") for v in np.exp(moved(loss, least_squares(rest, begun)))))


def least_squares(rest: Callable[[Any], Any], at: Any) -> Any:
    """The point where a vector is shortest, from another point on."""
    here, damping = rest(at), 1e-2
    for _ in range(STEPS):
        slopes = np.stack([(rest(at + SHIFT * unit) - here) / SHIFT for unit in np.eye(len(at))], axis=1)
        normal = slopes.T @ slopes
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slopes.T @ here)
        there = rest(at - step)
        if there @ there >= here @ here:
            damping *= 8
            continue
        gained = 1 - (there @ there) / (here @ here)
        at, here, damping = at - step, there, damping / 4
        if gained < LEAST_GAIN:
            break
    return at


def moved(loss: Callable[[Any], float], at: Any) -> Any:
    """A point with a smaller loss: each number in turn goes up or down by shorter and shorter steps."""
    here = loss(at)
    for length in LENGTHS:
        for unit in np.eye(len(at)):
            for way in (1, -1):
                there = at + way * length * unit
                if (lost := loss(there)) < here:
                    at, here = there, lost
                    break
    return at


def regrets(figures: Sequence[Figure], kind: str, values: Any, first: int = 1) -> Any:
    """The time of the best of ``first`` ways by estimate beside that of the fastest, for each figure."""
    both = zip(figures, estimated(figures, kind, values), strict=True)
    return np.array([measured(f)[np.argsort(us)[:first]].min() / measured(f).min() for f, us in both])


def halves(figures: Sequence[Figure]) -> tuple[list[Figure], list[Figure]]:
    """The figures of every second shape, and those of the others."""
    shapes = list(dict.fromkeys((figure["N"], figure["K"]) for figure in figures))
    first = set(shapes[::2])
    split_figures: tuple[list[Figure], list[Figure]] = [], []
    for figure in figures:
        split_figures[(figure["N"], figure["K"]) not in first].append(figure)
    return split_figures


def judgement(figures: Sequence[Figure], kind: str, values: Any, word: str) -> Iterator[str]:
    """Lines of text: the regret of a choice, and where it is largest."""
    one, three = regrets(figures, kind, values), regrets(figures, kind, values, 3)
    worst = figures[int(one.argmax())]
    where = f"{worst['format']} {worst['N']}x{worst['K']} M={worst['M']}"
    yield (
        f"{figures[0]['kernel']:17} {word:9} {len(figures):4} figures: off the best "
        f"{100 * one.mean() - 100:.2f} % in the mean, {100 * one.max() - 100:.0f} % at worst ({where}); "
        f"the best of three {100 * three.mean() - 100:.2f} %"
    )


def between(figures: Sequence[Figure], values: Any) -> str:
    """The regret of the choice between cuda:gemv and cuda:warp_specialized, where both were measured."""
    both: dict[Any, list[Any]] = {}
    for kernel in ("gemv", "warp_specialized"):
        kind, some = OF_KERNELS[kernel], [figure for figure in figures if figure["kernel"] == kernel]
        for figure, us in zip(some, estimated(some, kind, getattr(values, kind)), strict=True):
            key = tuple(figure[name] for name in ("format", "N", "K", "M"))
            both.setdefault(key, []).append((us.min(), measured(figure)[us.argmin()]))
    pairs = [each for each in both.values() if len(each) == 2]
    off = [min(each)[1] / min(us for _, us in each) for each in pairs]
    return (
        f"between the two   {len(off):4} figures: off the better {100 * np.mean(off) - 100:.2f} %"
        if off
        else ""
    )


def rows_text(figures: Sequence[Figure], kind: str, values: Any) -> str:
    """The mean regret by rows."""
    off = regrets(figures, kind, values)
    by_rows = {m: [o for f, o in zip(figures, off, strict=True) if f["M"] == m] for m in rows_of(figures)}
    return "  by rows: " + "  ".join(f"{m}: {100 * np.mean(o) - 100:.1f}" for m, o in by_rows.items())


def rows_of(figures: Sequence[Figure]) -> list[int]:
    """The numbers of rows, ascending."""
    return sorted({figure["M"] for figure in figures})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measured", type=Path, default=MEASURED, help="(%(default)s)")
    parser.add_argument("--kernels", default=",".join(OF_KERNELS))
    parser.add_argument("--held-out", action="store_true", help="fit halves of the shapes, too")
    parser.add_argument("--write", action="store_true", help="fit, and write the constants")
    options = parser.parse_args()
    figures, fresh = json.loads(options.measured.read_text())["figures"], constants()
    print(f"{sum(map(len, fresh))} constants")
    for kernel in options.kernels.split(","):
        kind, chosen = OF_KERNELS[kernel], [figure for figure in figures if figure["kernel"] == kernel]
        values = getattr(fresh, kind)
        if not chosen:
            print(f"{kernel:17} has no figures in {options.measured.name}")
            continue
        if options.held_out:
            both = halves(chosen)
            off = [regrets(both[1 - i], kind, fitted(both[i], kind, values)) for i in (0, 1)]
            mean = 100 * np.concatenate(off).mean() - 100
            print(f"{kernel:17} held out: off the best {mean:.2f} %", flush=True)
        if options.write:
            values = fitted(chosen, kind, values)
            fresh = fresh._replace(**{kind: values})
        print(
            *judgement(chosen, kind, values, "fitted"), rows_text(chosen, kind, values), sep="\n", flush=True
        )
    print(between(figures, fresh))
    if options.write:
        parts = {name: getattr(fresh, name)._asdict() for name in KINDS}
        PLACE.write_text(json.dumps({"what": WHAT, **parts}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
