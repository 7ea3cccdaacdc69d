"""The cases that the options of `ggmlq check` name: files, lines of test-backend-ops, types and shapes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..arrays.dumps import Dump
from ..check import batches, cases
from ..check.cases import Case
from ..errors import DumpError, ShapeError
from ..formats import FORMATS, Format
from ..llama import Bridge
from ..llama.library import is_weight_type


def is_named(args: argparse.Namespace) -> bool:
    """True where cases were named one by one."""
    return bool(args.replay or args.case or args.shapes)


def chosen(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """The cases of files, of test-backend-ops, or of shapes."""
    named = [_saved(path) for path in args.replay]
    for text in args.case:
        parse = batches.parse_mixture if "MUL_MAT_ID" in text else batches.parse_product
        named.append(parse(text, args.seed))
    if named:
        if args.shapes or args.data or args.types != "all" or args.experts:
            raise ShapeError(
                "cases were given beside --types, --shapes, --experts or --data; a case says these itself; "
                "drop one"
            )
        return named
    return _mixtures(args, bridge) if args.experts else _plain_cases(args, bridge)


def _saved(path: Path) -> Case:
    """A saved case: with ids, in batches or plain; the error for any other file is that of plain cases."""
    try:
        saved = Dump(path)
        load: Callable[[Path], Case] = cases.load
        if "batches" in saved:
            load = batches.load_batch
        elif "ids" in saved:
            load = batches.load_mixture
    except DumpError:
        load = cases.load
    return load(path)


def _mixtures(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products with experts of each shape."""
    if args.experts == "edges":
        raise ShapeError(
            "--experts edges beside --shapes: shapes need a number of experts; write --experts 8/2"
        )
    experts, routing = batches.parse_experts(args.experts), batches.parse_routing(args.spread or "uniform")
    shaped = _plain_cases(args, bridge)
    if several := [case for case in shaped if isinstance(case, batches.Batch)]:
        raise ShapeError(
            f"--experts beside --shapes {several[0].shape}: products with experts have no batches; "
            "write M×N×K"
        )
    return [batches.with_experts(case, experts, routing, row_per_use=args.apart) for case in shaped]


def _plain_cases(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products of each shape with one matrix."""
    kinds = cases.parse_data(args.data) if args.data else ["normal"]
    shapes = cases.parse_shapes(args.shapes)
    fits: Callable[[Format, int], bool] = lambda fmt, k: args.types != "all" or k % fmt.block_size == 0
    return [
        batches.in_batches(Case(fmt, m, n, k, kind, args.seed), lead)
        for fmt in types(args, bridge)
        for lead, (m, n, k) in shapes
        if fits(fmt, k)
        for kind in kinds
    ]


def types(args: argparse.Namespace, bridge: Bridge) -> list[Format]:
    """The types of --types; all that are of weights and that the library has."""
    if args.types == "all":
        return [fmt for fmt in FORMATS.values() if is_weight_type(fmt) and fmt.name in bridge.types]
    return cases.parse_types(args.types)
