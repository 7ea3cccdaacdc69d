"""``ggmlq diff``: the differences of two models."""

from __future__ import annotations

import argparse
import math
from collections.abc import Hashable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..base.folding import counted, groups, span
from ..base.terminal import table
from ..base.text import count
from . import _plain
from ._options import Commands, add_workers, declare, flag, shared, with_workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..diff import Difference, KeyDifference, TensorDifference, WorstBlock

SUMMARY = "compare two GGUF models, tensor by tensor and key by key"
ABOUT = """\
Compare B with A: missing tensors, tensors of another shape or type, NMSE, the largest error and the worst
block, and metadata. Exit 0: equal, 1: different, 2: could not compare.
"""
EXAMPLES = """\
  ggmlq diff a.gguf b.gguf
  ggmlq diff model-f16.gguf model-q8_0.gguf --tolerance 1e-4 --tensors --workers 8
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "diff", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("a", metavar="A", help="a .gguf file, any part of a split model")
    parser.add_argument("b", metavar="B", help="another model; its errors are relative to the values of A")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, metavar="NMSE",
        help="tensors of any types with at most this NMSE are equal (default: only equal bytes are equal)",
    )  # fmt: skip
    flag(parser, "--tensors", "compare only tensors; metadata may differ")
    add_workers(parser)
    shared(parser, "--all-tensors", "--json")


@with_workers
def run(args: argparse.Namespace, executor: Executor | None) -> int:
    from ..diff import compare

    difference = compare(
        args.a, args.b, tolerance=args.tolerance, ignore_metadata=args.tensors, executor=executor
    )
    if args.json:
        _plain.print_json(_facts(args, difference))
    else:
        print("\n\n".join(filter(None, _described(difference, args.all_tensors))))
    return 0 if difference.equal else 1


def _described(difference: Difference, all_tensors: bool) -> list[str]:
    differing = sorted(difference.differing, key=_goodness)
    worst = next((tensor for tensor in differing if tensor.worst), None)
    return [
        _tensors(differing, all_tensors),
        _worst(worst.name, worst.worst) if worst and worst.worst else "",
        "\n".join(map(_key, difference.metadata)),
        _summary(difference),
    ]


def _goodness(tensor: TensorDifference) -> tuple[bool, bool, float]:
    """A key that sorts tensors that cannot be compared first, then NaN, then large errors."""
    nmse = tensor.nmse
    return nmse is not None, nmse is not None and not math.isnan(nmse), -(nmse or 0.0)


def _tensors(differing: list[TensorDifference], all_tensors: bool) -> str:
    if not differing:
        return ""
    shown = groups(differing, lambda tensor: tensor.name, _kind, not all_tensors)
    many = counted(shown)
    header = ["tensor", "status", "type", "shape", *many("tensors"), "NMSE", "largest error"]
    return table(header, [_row(*line, many(len(line[1]))) for line in shown])


def _kind(tensor: TensorDifference) -> Hashable:
    damaged = tensor.nmse is not None and math.isnan(tensor.nmse)  # it has a line of its own
    return tensor.status, tensor.types, tensor.shapes, tensor.name if damaged else ""


def _row(name: str, members: list[TensorDifference], many: list[str]) -> list[str]:
    """A row for tensors of one kind: their least and largest NMSE, and the largest error of all."""
    tensor = max(members, key=lambda one: one.largest.error if one.largest else -1.0)
    place = tensor.largest
    shapes = [None if shape is None else " x ".join(map(str, shape)) or "scalar" for shape in tensor.shapes]
    of = f" in {_plain.name(tensor.name)}" if len(members) > 1 else ""
    where = f"{of} at {list(place.index)}: {place.a:.6g} -> {place.b:.6g}" if place else ""
    return [
        _plain.name(name),
        tensor.status,
        _pair(*tensor.types),
        _pair(*shapes),
        *many,
        span((one.nmse for one in members), ".3e"),
        f"{place.error:.3e}{where}" if place else "",
    ]


def _pair(a: str | None, b: str | None) -> str:
    return f"{a or '-'} -> {b or '-'}" if a != b else str(a)


def _worst(name: str, block: WorstBlock) -> str:
    where = f"row {list(block.row)}, " if block.row else ""
    first, end = block.columns
    lines = [
        f"worst block of {_plain.name(name)}: {where}columns {first} to {end - 1}, NMSE {block.nmse:.3e}"
    ]
    for side, fields in (("A", block.a), ("B", block.b)):
        for field, value in (fields or {}).items():
            lines.append(f"  {side}.{field:8} {value}")
    return "\n".join(lines)


def _key(change: KeyDifference) -> str:
    from ..diff.compare import CHANGED

    sides = [
        None if kind is None else _plain.value(value)
        for kind, value in zip(change.types, change.values, strict=True)
    ]
    if change.status != CHANGED:
        return f"{_plain.name(change.key)}: {change.status}: {sides[0] or sides[1]}"
    many = ""
    if change.elements is not None:
        many = f" ({change.elements} elements differ, the first is {change.first})"
    elif change.first is not None:
        many = f" (from byte {change.first} on)"
    kinds = f", {_pair(*change.types)}" if change.types[0] != change.types[1] else ""
    return f"{_plain.name(change.key)}: changed{kinds}: {sides[0]} -> {sides[1]}{many}"


def _summary(difference: Difference) -> str:
    from ..diff.tensors import SAME_BLOCKS

    near = len(difference.tensors) - difference.identical - len(difference.differing)
    within = f", {near} within the tolerance {difference.tolerance:g}" if difference.tolerance else ""
    swapped = sum(tensor.status == SAME_BLOCKS for tensor in difference.tensors)
    orders = f", {swapped} with the same values in the other byte order" if swapped else ""
    return (
        f"{count(len(difference.tensors), 'tensor')}: {difference.identical - swapped} with the same bytes"
        f"{orders}{within}, {len(difference.differing)} different; "
        f"{count(len(difference.metadata), 'key differs', 'keys differ')}"
    )


def _facts(args: argparse.Namespace, difference: Difference) -> dict[str, Any]:
    return {
        "a": args.a,
        "b": args.b,
        "equal": difference.equal,
        "tolerance": difference.tolerance,
        "tensors": [
            asdict(tensor) | {"equal": tensor.within(difference.tolerance)} for tensor in difference.tensors
        ],
        "metadata": [
            {key: getattr(change, key) for key in change.__dataclass_fields__}
            for change in difference.metadata
        ],
    }
