"""``ggmlq logits``: a run in llama.cpp beside another build's, or beside the model in float64."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..base.text import table
from ..errors import GGMLQError
from ..llama.loaded import listed
from ..trace import compare_logits, report
from ..trace.logits import Comparison, Pair
from . import _beside, _plain

HEADER = ("step", "node", "op", "weights", "type", "inputs apart", "outputs apart")
SHOWN = 12  # names of nodes that one build has alone


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq logits``; the result is the exit status."""
    if args.against_model:
        return _beside.run(args)
    comparison = compare_logits(
        args.model, lib=args.lib, against=args.against, prompt=args.prompt, tokens=args.tokens,
        generate=args.generate, threads=args.threads, timeout=args.timeout, cache=args.cache,
        flash={"on": True, "off": False, "auto": None}[args.flash], without=args.without, seed=args.seed,
    )  # fmt: skip
    pairs = []
    for pair in comparison:
        pairs.append(pair)
        if args.json:
            print(json.dumps(_plain.jsonable(pair.facts()), allow_nan=False), flush=True)
    if not pairs:
        raise GGMLQError("not compared: the builds share no node of this model; are they of the same year?")
    if args.json:
        print(json.dumps(_plain.jsonable(_end(comparison)), allow_nan=False))
    else:
        _say(comparison, pairs, verbose=args.verbose)
    return 1 if comparison.first else 0


def _end(comparison: Comparison) -> dict[str, Any]:
    """The last record: the logits, the first difference, and the nodes that nobody compared."""
    return {
        "logits": comparison.logits, "first": comparison.first and comparison.first.a.node,
        "unpaired": comparison.unpaired, "nodes": comparison.nodes, "not_judged": comparison.others,
        "loaded": [[str(path) for path in paths] for paths in comparison.loaded],
    }  # fmt: skip


def _say(comparison: Comparison, pairs: list[Pair], *, verbose: bool) -> None:
    shown = pairs if verbose else [pair for pair in pairs if not pair.ok]
    if shown:
        rows = [
            [
                p.a.step,
                p.a.node,
                p.a.op,
                p.a.weights,
                p.a.type,
                f"{p.inputs:.1e}",
                f"{p.outputs:.1e}",
                _verdict(p.a),
                _verdict(p.b),
            ]
            for p in shown
        ]
        print(table([*HEADER, "A", "B"], rows))
        print()
    for name, version, paths in zip("AB", comparison.versions, comparison.loaded, strict=True):
        print(f"{name}: ggml {version}" + (f", {_plain.name(listed(paths))}" if paths else ""))
    equal = [pair for pair in pairs if pair.equal]
    same = sum(not pair.elements for pair in equal)
    print(
        f"{len(pairs)} nodes in both; {len(equal)} of them read the same in both, and {same} of these give "
        "the same, to the bit"
    )
    if names := comparison.unpaired:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        print(_plain.name(f"in one build alone: {', '.join(names[:SHOWN])}{more}"))
    if others := report.unjudged(comparison.others, comparison.nodes):
        print(_plain.name(others))
    figures = comparison.logits
    token = "the same likeliest token" if figures["same_token"] else "another likeliest token"
    print(
        f"logits: {figures['largest']:.3g} apart at most, NMSE {figures['nmse']:.1e}, divergence "
        f"{figures['divergence']:.1e} nats, {token}"
    )
    print(_first(comparison, pairs))


def _verdict(p: object) -> str:
    verdict, fault = getattr(p, "verdict", ""), getattr(p, "fault", "")
    return f"{verdict}: {fault}" if fault else str(verdict)


def _first(comparison: Comparison, pairs: list[Pair]) -> str:
    first = comparison.first
    if first is None:
        return "no node differs by more than rounding explains, and none has inputs further apart"
    p = first.a
    place = f"{p.node} = {p.op} of {p.weights} {p.type} (step {p.step})"
    if first.jumped and first.a.ok and first.b.ok:
        at = pairs.index(first)
        after = f"after {pairs[at - 1].a.node}" if at else "before the first node"
        apart = f"its inputs are {first.inputs:.1e} apart"
        return f"first: an operation that nobody judges, {after}, before {place}: {apart}"
    if first.parted:
        return _plain.name(
            f"first: {place}: both read the same, and their results are {first.outputs:.1e} apart; nobody "
            f"judges which is right: {p.text or first.b.text}"
        )
    sentences = [
        f"{name} is wrong: {one.fault}. {one.text}"
        for name, one in (("A", first.a), ("B", first.b))
        if not one.ok
    ]
    return _plain.name(f"first: {place}: {'; '.join(sentences)}").replace("\\n", " ")
