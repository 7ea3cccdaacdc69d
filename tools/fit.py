#!/usr/bin/env python3
"""Fits the constants of Hopper's estimates to measured ways, and says how far off the best the choice is.

    python bench/bench_ways.py --json bench/results/ways_h200.json    # on a card
    python tools/fit.py                 # judges the constants of ggmlq/cuda/kernels/cost/costs.json
    python tools/fit.py --write         # fits all constants, and writes those that choose better
    python tools/fit.py --kernels gemv --held-out

The *regret* of a choice is the time of the way that an estimate takes, beside that of the fastest measured
way. A kernel's constants are written where they make its mean regret smaller, else they stay as they are.
``--held-out`` fits each half of the shapes, and judges it on the other half.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from ggmlq.base.progress import Progress
from ggmlq.base.text import meant
from ggmlq.base.writing import write_whole
from ggmlq.cuda.kernels.codes8.small_m import TILES
from ggmlq.cuda.kernels.codes8.tiles import BoxTile
from ggmlq.cuda.kernels.cost import codes8, gemv, stage, warp_specialized
from ggmlq.cuda.kernels.cost.stage import KINDS, PLACE, constants
from ggmlq.cuda.kernels.gemv.stages import SplitBlocks
from ggmlq.cuda.kernels.hopper.tiles import UNIT_FRAGMENTS, WarpSpecializedTile
from ggmlq.cuda.layouts.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, layout_of
from ggmlq.dispatch.card import card_named

MEASURED = Path(__file__).parents[1] / "bench/results/ways_h200.json"
WHAT = "Constants of estimates, by tools/fit.py; ggmlq/cuda/kernels/cost/stage.py says what they are"
PULL = 0.02  # weight of the distance from the constants before
# The power of a way's time with which its chance falls, and the weight of errors of the least time.
SURE, ABSOLUTE = 40, 3
LENGTHS = 0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.02  # of moves of a logarithm
CARD = card_named("fit", "NVIDIA H200")
Figure = dict[str, Any]


def gemv_estimates(figure: Figure) -> Iterator[float]:
    height, layout = FRAGMENT_ROWS * -(-figure["N"] // TILE_ROWS), layout_of(gq.formats[figure["format"]])
    shape = gemv.GemvShape(layout, height, figure["K"], figure["M"], CARD.multiprocessors, CARD.memory)
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
            yield warp_specialized.tile_us(shape, tile, warp_specialized.Split(*way[2:-1]), wave)


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
def trial(kernel: str, values: Any) -> Iterator[None]:
    """Estimates with other constants of a kernel."""
    other = constants()._replace(**{kernel: values})
    with ExitStack() as stack:
        for module in (codes8, gemv, stage, warp_specialized):
            stack.enter_context(mock.patch.object(module, "constants", return_value=other))
        yield


def estimated(figures: Sequence[Figure], values: Any) -> list[Any]:
    """Estimated microseconds of all ways, an array for each figure; all are of one kernel."""
    kernel = figures[0]["kernel"]
    with trial(kernel, values):
        return [np.array(list(ESTIMATES[kernel](each))) for each in figures]


def measured(figure: Figure) -> Any:
    """Measured microseconds of a figure's ways."""
    return np.array([way[-1] for way in figure["ways"]])


def fitted(figures: Sequence[Figure], values: Any) -> Any:
    """The constants that choose best, near those before.

    Each constant in turn goes up or down by shorter and shorter steps while the choice gains by it, where the
    chance of a way falls with its estimate. The choice is smoother so than that of the lowest estimate alone.
    """
    us, begun = [measured(figure) for figure in figures], np.log(np.array(values))

    def loss(at: Any) -> float:
        lost = 0.0
        for e, t in zip(estimated(figures, type(values)(*np.exp(at))), us, strict=True):
            chance = (e.min() / e) ** SURE
            lost += (chance * t).sum() / chance.sum() / t.min() - 1
            lost += ABSOLUTE * np.log(e.min() / t.min()) ** 2  # another kernel's estimate stands beside it
        return lost / len(us) + PULL**2 * float(((at - begun) ** 2).mean())

    at, least = begun, loss(begun)
    with closing(Progress(len(LENGTHS), f"fitting {figures[0]['kernel']}", "round")) as bar:
        for length in LENGTHS:
            for unit in np.eye(len(at)):
                for way in (1, -1):
                    if (lost := loss(at + way * length * unit)) < least:
                        at, least = at + way * length * unit, lost
                        break
            bar.advance(1)
    return type(values)(*(float(f"{v:.4g}") for v in np.exp(at)))


def regrets(figures: Sequence[Figure], values: Any, first: int = 1) -> Any:
    """The time of the best of ``first`` ways by estimate beside that of the fastest, for each figure."""
    both = zip(figures, estimated(figures, values), strict=True)
    return np.array([measured(f)[np.argsort(us)[:first]].min() / measured(f).min() for f, us in both])


def halves(figures: Sequence[Figure]) -> tuple[list[Figure], list[Figure]]:
    """The figures of every second shape, and those of the others."""
    shapes = list(dict.fromkeys((figure["N"], figure["K"]) for figure in figures))
    first = set(shapes[::2])
    split_figures: tuple[list[Figure], list[Figure]] = [], []
    for figure in figures:
        split_figures[(figure["N"], figure["K"]) not in first].append(figure)
    return split_figures


def judgement(figures: Sequence[Figure], values: Any, word: str) -> Iterator[str]:
    """Lines of text: the regret of a choice, where it is largest, and its mean by rows."""
    one, three = regrets(figures, values), regrets(figures, values, 3)
    worst = figures[int(one.argmax())]
    where = f"{worst['format']} {worst['N']}x{worst['K']} M={worst['M']}"
    yield (
        f"{figures[0]['kernel']:17} {word:11} {len(figures):4} figures: off the best "
        f"{100 * one.mean() - 100:.2f} % in the mean, {100 * one.max() - 100:.0f} % at worst ({where}); "
        f"the best of three {100 * three.mean() - 100:.2f} %"
    )
    rows = sorted({figure["M"] for figure in figures})
    means = {m: np.mean([o for f, o in zip(figures, one, strict=True) if f["M"] == m]) for m in rows}
    yield "  by rows: " + "  ".join(f"{m}: {100 * mean - 100:.1f}" for m, mean in means.items())


def between(figures: Sequence[Figure], values: Any) -> Any:
    """Regrets of the choice between cuda:gemv and cuda:warp_specialized, where both were measured."""
    both: dict[Any, list[Any]] = {}
    for kernel in ("gemv", "warp_specialized"):
        some = [figure for figure in figures if figure["kernel"] == kernel]
        us_of_figures = estimated(some, getattr(values, kernel)) if some else []
        for figure, us in zip(some, us_of_figures, strict=True):
            key = tuple(figure[name] for name in ("format", "N", "K", "M"))
            both.setdefault(key, []).append((us.min(), measured(figure)[us.argmin()]))
    pairs = [each for each in both.values() if len(each) == 2]
    return np.array([min(each)[1] / min(us for _, us in each) for each in pairs])


def better(figures: Sequence[Figure], values: Any) -> Any:
    """Fitted constants, or those before where these choose no worse; prints both regrets."""
    kernel, fresh = figures[0]["kernel"], fitted(figures, values)
    print(*judgement(figures, fresh, "fitted"), sep="\n")
    before, after = (regrets(figures, each).mean() for each in (values, fresh))
    verdict = "new constants" if after < before else "no gain, constants left as they are"
    print(f"{kernel:17} off the best {percent(before)} → {percent(after)} %: {verdict}", flush=True)
    return fresh if after < before else values


def percent(mean: float) -> str:
    """A mean regret in percent."""
    return f"{100 * mean - 100:.2f}"


def figures_of(path: Path) -> list[Figure]:
    """The figures of a file; ends with an error where it has none."""
    command = "python bench/bench_ways.py --json FILE makes such a file, on a Hopper card"
    try:
        figures: list[Figure] = json.loads(path.read_text())["figures"]
    except OSError as error:
        sys.exit(f"fit: --measured {path}: {error.strerror or error}; {command}")
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        sys.exit(f"fit: --measured {path}: holds no figures of ways ({reason}); {command}")
    for figure in figures:
        check_speed(path, figure)
    return figures


def check_speed(path: Path, figure: Figure) -> None:
    """End where weights were read faster than a card's memory can: then the benchmark is wrong."""
    fmt, (n, k, us) = figure["format"], (figure["N"], figure["K"], measured(figure).min())
    weight = 1.0 if fmt in gq.codes else gq.formats[fmt].dtype.itemsize / gq.formats[fmt].block_size
    if (speed := n * k * weight / 1e6 / us) > CARD.memory:
        sys.exit(
            f"fit: --measured {path}: {fmt} {n}x{k} M={figure['M']}: {us} us is {speed:.2f} MB a us; "
            f"an {CARD.name} reads {CARD.memory:.2f}; measure it again, with weights that no cache holds"
        )


def check_shapes(kernel: str, figures: Sequence[Figure]) -> None:
    """End where figures of a kernel have one shape, which makes no two halves."""
    shapes = {(figure["N"], figure["K"]) for figure in figures}
    if len(shapes) == 1:
        ((n, k),) = shapes
        sys.exit(
            f"fit: --held-out: {kernel} was measured with weights of {n}x{k} alone, and each half needs a "
            f"shape; measure more (python bench/bench_ways.py --shapes 2 --json FILE), or leave it out"
        )


def write(values: Any) -> None:
    """Write constants: all or nothing."""
    parts = {name: getattr(values, name)._asdict() for name in KINDS}
    write_whole(PLACE, json.dumps({"what": WHAT, **parts}, indent=1) + "\n")


def kernels_of(words: str) -> list[str]:
    """The kernels of a list with commas."""
    names = words.split(",")
    for name in names:
        if name not in KINDS:
            way = meant(name, KINDS, "name some of these, with commas between")
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(KINDS)}; {way}")
    return names


def main(arguments: list[str] | None = None) -> int:
    """Judge constants, and fit them where that was asked for; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measured", type=Path, default=MEASURED, help="(%(default)s)")
    parser.add_argument("--kernels", type=kernels_of, default=",".join(KINDS), help="(%(default)s)")
    parser.add_argument("--held-out", action="store_true", help="fit halves of the shapes, too")
    parser.add_argument("--write", action="store_true", help="fit, and write what chooses better")
    options = parser.parse_args(arguments)
    figures, before = figures_of(options.measured), constants()
    chosen = {kernel: [each for each in figures if each["kernel"] == kernel] for kernel in options.kernels}
    for kernel, some in chosen.items() if options.held_out else ():
        check_shapes(kernel, some)
    print(f"{sum(map(len, before))} constants")
    fresh = before
    for kernel, some in chosen.items():
        values = getattr(before, kernel)
        if not some:
            print(f"{kernel:17} has no figures in {options.measured.name}")
            continue
        print(*judgement(some, values, "as they are"), sep="\n", flush=True)
        if options.held_out:
            both = halves(some)
            off = [regrets(both[1 - i], fitted(both[i], values)) for i in (0, 1)]
            print(f"{kernel:17} held out: off the best {percent(np.concatenate(off).mean())} %", flush=True)
        if options.write:
            fresh = fresh._replace(**{kernel: better(some, values)})
    off = [between(figures, each) for each in (before, fresh)[: 1 + (fresh != before)]]
    if len(off[0]):
        means = " → ".join(percent(each.mean()) for each in off)
        print(f"between the two   {'':11} {len(off[0]):4} figures: off the better {means} %")
    if options.write and fresh != before:
        write(fresh)
    if options.write:
        changed = ", ".join(name for name in KINDS if getattr(fresh, name) != getattr(before, name))
        print(f"{PLACE.name}: " + (f"new constants of {changed}" if changed else "left as it is"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
