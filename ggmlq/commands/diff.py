"""``ggmlq diff``: what two models differ in."""

from __future__ import annotations

import argparse
import math
from collections.abc import Hashable
from concurrent.futures import Executor
from dataclasses import asdict
from typing import Any

from ..base.folding import counted, groups, span
from ..base.terminal import table
from ..base.text import count
from ..diff import Difference, KeyDifference, TensorDifference, WorstBlock, compare
from ..diff.metadata import CHANGED
from ..diff.page import page
from ..diff.tensors import SAME_BLOCKS
from ..pages import check_target, write
from . import _engines, _plain


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq diff``; the result is the exit status."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    if args.html:
        check_target(args.html, "--html")
    found = compare(args.a, args.b, tolerance=args.tolerance, ignore_metadata=args.tensors, executor=executor)
    if args.html:
        write(page(found, args.a, args.b), args.html)
    if args.json:
        _plain.print_json(_facts(args, found))
    else:
        print("\n\n".join(filter(None, _described(found, args.all_tensors))))
    return 0 if found.equal else 1


def _described(found: Difference, all_tensors: bool) -> list[str]:
    differing = sorted(found.differing, key=_goodness)
    worst = next((tensor for tensor in differing if tensor.worst), None)
    return [
        _tensors(differing, all_tensors),
        _worst(worst.name, worst.worst) if worst and worst.worst else "",
        "\n".join(map(_key, found.metadata)),
        _summary(found),
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
    """Some tensors of one kind: the least NMSE and the largest, the largest error of all."""
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


def _key(found: KeyDifference) -> str:
    said = [
        None if kind is None else _plain.value(value)
        for kind, value in zip(found.types, found.values, strict=True)
    ]
    if found.status != CHANGED:
        return f"{_plain.name(found.key)}: {found.status}: {said[0] or said[1]}"
    many = ""
    if found.elements is not None:
        many = f" ({found.elements} elements differ, the first is {found.first})"
    elif found.first is not None:
        many = f" (from byte {found.first} on)"
    kinds = f", {_pair(*found.types)}" if found.types[0] != found.types[1] else ""
    return f"{_plain.name(found.key)}: changed{kinds}: {said[0]} -> {said[1]}{many}"


def _summary(found: Difference) -> str:
    near = len(found.tensors) - found.identical - len(found.differing)
    within = f", {near} within the tolerance {found.tolerance:g}" if found.tolerance else ""
    swapped = sum(tensor.status == SAME_BLOCKS for tensor in found.tensors)
    orders = f", {swapped} with the same values in the other byte order" if swapped else ""
    return (
        f"{count(len(found.tensors), 'tensor')}: {found.identical - swapped} with the same bytes"
        f"{orders}{within}, {len(found.differing)} different; "
        f"{count(len(found.metadata), 'key differs', 'keys differ')}"
    )


def _facts(args: argparse.Namespace, found: Difference) -> dict[str, Any]:
    return {
        "a": args.a,
        "b": args.b,
        "equal": found.equal,
        "tolerance": found.tolerance,
        "tensors": [asdict(tensor) | {"equal": tensor.within(found.tolerance)} for tensor in found.tensors],
        "metadata": [
            {key: getattr(difference, key) for key in difference.__dataclass_fields__}
            for difference in found.metadata
        ],
    }
