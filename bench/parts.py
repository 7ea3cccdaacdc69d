"""A benchmark in parts, one for each card, and their figures as one file.

    python bench/linear_peers.py --seed 5 --part 1/4 --json 1.json     # one a card: CUDA_VISIBLE_DEVICES=0 …
    python bench/linear_peers.py --join 1.json 2.json 3.json 4.json --json linear_peers.json

Part 2 of 4 has the second case and each fourth one behind it. Parts joined give the file of one run; a part
that is missing is named, and one of another commit, other cards or another seed is refused.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

Case = TypeVar("Case")
CASE = ("case", "shape", "M", "N", "K")  # the names in a figure that say its case, as far as it has them


def part(text: str) -> tuple[int, int]:
    """The two numbers of a part such as 2/4."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part; 2/4 is the second of four")
    return int(number), int(count)


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--part`` and ``--join`` of a benchmark."""
    parser.add_argument("--part", type=part, default=(1, 1), help="as 2/4: the second of every four cases")
    parser.add_argument("--join", type=Path, nargs="+", help="measure nothing: files of parts become one")


def of_part(cases: Sequence[Case], chosen: tuple[int, int]) -> list[Case]:
    """The cases of one part."""
    return list(cases[chosen[0] - 1 :: chosen[1]])


def joined(paths: Sequence[Path]) -> dict[str, Any]:
    """The files of parts as that of one run, its figures in the order of one run where no case failed."""
    parts = [json.loads(path.read_text()) for path in paths]
    for path, facts in zip(paths, parts, strict=True):
        if "part" not in facts:
            raise SystemExit(f"{path} is no part: a benchmark writes one with --part 1/4 --json FILE")
    same = [(p.get("commit"), p.get("seed"), p["part"][1], cards(p), p.get("peers")) for p in parts]
    for path, other in zip(paths, same, strict=True):
        if other != same[0]:
            raise SystemExit(
                f"{path}: commit, seed, parts, cards, peers {other}; those of {paths[0]}: {same[0]}"
            )
    numbers, wanted = [p["part"][0] for p in parts], range(1, same[0][2] + 1)
    if twice := {n for n in numbers if numbers.count(n) > 1}:
        raise SystemExit(f"part {sorted(twice)} is given twice: {', '.join(map(str, paths))}")
    if lacking := sorted(set(wanted) - set(numbers)):
        print(f"without part {', '.join(map(str, lacking))} of {len(wanted)}", file=sys.stderr)
    placed = []
    for each in parts:
        cases = itertools.groupby(each["figures"], lambda figure: [figure.get(name) for name in CASE])
        placed += [((turn, each["part"][0]), list(figures)) for turn, (_, figures) in enumerate(cases)]
    placed.sort(key=lambda pair: pair[0])
    merged = [figure for _, figures in placed for figure in figures]
    failed = [case for each in parts for case in each.get("failed", [])]
    facts = {name: value for name, value in parts[0].items() if name != "part"}
    return facts | {"figures": merged, "failed": failed}


def status(facts: dict[str, Any]) -> int:
    """The exit status of a run: 1 where cases failed, which are named."""
    if facts["failed"]:
        print(f"without {', '.join(facts['failed'])}, which failed", file=sys.stderr)
    return int(bool(facts["failed"]))


def cards(facts: dict[str, Any]) -> list[str]:
    """The names of the cards that a run saw."""
    return [card["name"] for card in (facts.get("gpu") or {}).get("devices", [])]
