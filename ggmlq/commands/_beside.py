"""``ggmlq logits --against-model``: a run in llama.cpp beside the model in float64, node by node."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import model as models
from ..base.text import table
from ..llama.library import listed
from ..trace import Beside, ModelComparison, compare_with_model
from . import _plain

HEADER = (
    "step", "node", "op", "shape", "from float64", "from ggml-cpu", "rounding", "of limit", "verdict",
)  # fmt: skip
SHOWN = 12  # nodes that parted, and names of nodes without a counterpart


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq logits --against-model``; the result is the exit status."""
    model = models.load(args.model, cache=_types(args.cache))
    comparison = compare_with_model(
        model, lib=args.lib, bar=False if args.json else None, prompt=args.prompt, tokens=args.tokens,
        generate=args.generate, flash={"on": True, "off": False, "auto": None}[args.flash],
        without=args.without, threads=args.threads, timeout=args.timeout, seed=args.seed,
    )  # fmt: skip
    nodes = []
    for node in comparison:
        nodes.append(node)
        if args.json:
            print(json.dumps(_plain.jsonable(node.facts()), allow_nan=False), flush=True)
    if args.json:
        print(json.dumps(_plain.jsonable(_end(comparison, len(nodes))), allow_nan=False))
    else:
        print(_text(comparison, nodes, verbose=args.verbose))
    return 0 if comparison.ok else 1


def _types(cache: str | None) -> tuple[str, str]:
    first, _, second = (cache or "f16").partition(",")
    return first.strip(), (second or first).strip()


def _end(comparison: ModelComparison, nodes: int) -> dict[str, Any]:
    """The last record: the logits without stops, and what was not compared."""
    return {
        "verdict": "end", "first": comparison.first and comparison.first.facts(),
        "left_ggml_cpu": comparison.left and comparison.left.node, "compared": nodes,
        "logits": comparison.logits, "unpaired": comparison.unpaired, "unnamed": dict(comparison.unnamed),
        "tokens": comparison.tokens, "generated": comparison.then, "version": comparison.version,
        "loaded": [str(path) for path in comparison.loaded],
    }  # fmt: skip


def _text(comparison: ModelComparison, nodes: list[Beside], *, verbose: bool) -> str:
    lines = [table(HEADER, [_row(node) for node in _shown(nodes, verbose)]), ""]
    paths = f", {_plain.name(listed(comparison.loaded))}" if comparison.loaded else ""
    lines.append(f"ggml {comparison.version}{paths}")
    parted = sum(not node.ok for node in nodes)
    lines.append(f"{len(nodes)} nodes of {len(comparison.tokens)} tokens compared, {parted} of them parted")
    lines += _left_out(comparison)
    lines += [_left(comparison.left), _logits(comparison.logits), _first(comparison)]
    return "\n".join(lines)


def _shown(nodes: list[Beside], verbose: bool) -> list[Beside]:
    """All nodes; or those that parted, the first of them; or the ends of layers."""
    if verbose:
        return nodes
    parted = [node for node in nodes if not node.ok]
    ends = [node for node in nodes if node.step == 0 and node.node.startswith(("l_out", "result_output"))]
    return parted[:SHOWN] or ends


def _row(p: Beside) -> list[Any]:
    figures = ["-" if p.is_choice else f"{value:.1e}" for value in (p.exact, p.rounded, p.rounding)]
    verdict = "ok" if p.ok else "PARTED"
    return [
        p.step, p.node, p.op, "×".join(map(str, p.shape)), *figures, f"{p.finding.share:.1e}", verdict
    ]  # fmt: skip


def _left_out(comparison: ModelComparison) -> list[str]:
    lines = []
    if names := comparison.unpaired:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(_plain.name(f"not in the model: {', '.join(names[:SHOWN])}{more}"))
    if unnamed := comparison.unnamed:
        kinds = ", ".join(f"{op} {count}" for op, count in sorted(unnamed.items()))
        lines.append(_plain.name(f"not compared, since they have no name: {kinds}"))
    return lines


def _left(left: Beside | None) -> str:
    if left is None:
        return "the run is the model's in llama.cpp's own arithmetic, but for sums of float32"
    return _plain.name(
        f"before {_place(left)} the run is the model's in llama.cpp's own arithmetic, but for sums of "
        "float32; there a code is rounded otherwise, the library has another arithmetic, or it is wrong"
    )


def _logits(facts: dict[str, Any]) -> str:
    token = "the same likeliest token" if facts["same_token"] else "another likeliest token"
    share = "more than any" if facts["share"] is None else f"{facts['share']:.1e}"
    return (
        f"logits without stops: NMSE {_figure(facts['nmse'])}, {share} of the limit, divergence "
        f"{_figure(facts['divergence'])} nats, {token}"
    )


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.1e}"


def _place(p: Beside) -> str:
    which = f" number {p.occurrence + 1}" if p.occurrence else ""
    return f"{p.node}{which} = {p.op} (step {p.step})"


def _first(comparison: ModelComparison) -> str:
    """The last line: where the runs part, or that they do not."""
    first = comparison.first
    if first is None and comparison.ok:
        return "the runs do not part: roundings explain all nodes"
    if first is None:
        return (
            "first: none where the run stops at every node, and the logits without stops are further off "
            "than roundings explain: kernels that fuse differ; ggmlq trace --fused --bisect names them"
        )
    f = first.finding
    if first.is_choice:
        text = (
            f"token {f.where[0]} has other experts, {f.distance:.2g} apart in float64; within {f.limit:.2g}"
        )
        return _plain.name(f"first: {_place(first)}: {text} a rounding may choose")
    where = ", ".join(map(str, f.where))
    return _plain.name(
        f"first: {_place(first)}: {f.share:.2g} times what roundings explain; element ({where}) is "
        f"{f.value:.6g}, in float64 {f.exact:.6g}; ggmlq trace judges the node alone"
    )
