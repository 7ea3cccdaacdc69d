"""``ggmlq logits``: a run in llama.cpp beside another build's, or beside the model in float64."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.text import table
from ..errors import GGMLQError
from . import _plain
from ._options import FLASH, JSON_LINES, Commands, declare, flag, shared

if TYPE_CHECKING:
    from ..trace import Beside, ModelComparison
    from ..trace.logits import Comparison, Pair

SUMMARY = "find the first node at which a llama.cpp build differs from another, or from the model in float64"
ABOUT = """\
Run a model in two builds on the same tokens, and name the first node that differs by more than rounding
explains: every node of either build is judged on its own inputs, element by element; after an operation that
nobody judges inputs may be further apart than rounding. With --against-model the other run is this package's
own, in float64 and in llama.cpp's arithmetic: the two say how far roundings take each node of a whole run,
and the first node that is further off is named. Exit 0: no node differs by more than rounding explains, 1:
one does, 2: it could not run.
"""
EXAMPLES = """\
  ggmlq logits model.gguf --against ~/llama.cpp/build-new --prompt 'Once upon a time'
  ggmlq logits model.gguf --lib build-good --against build-bad --tokens 64
  ggmlq logits model.gguf --lib ~/llama.cpp/build --against-model --tokens 64 --generate 4
"""
HEADER = ("step", "node", "op", "weights", "type", "inputs apart", "outputs apart")
MODEL_HEADER = (
    "step", "node", "op", "shape", "from float64", "from ggml-cpu", "rounding", "of limit", "verdict",
)  # fmt: skip
SHOWN = 12  # nodes that parted, and names of nodes that one side has alone


def add(commands: Commands) -> None:
    parser = declare(commands, "logits", "kernels", SUMMARY, ABOUT, EXAMPLES)
    shared(parser, "model")
    parser.add_argument(
        "--lib",
        type=Path,
        metavar="A",
        help="libllama, libggml or a build folder (default: as doctor finds it)",
    )
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--against", type=Path, metavar="B", help="the other build")
    flag(other, "--against-model", "the model as this library computes it, in float64")
    what = parser.add_mutually_exclusive_group()
    shared(what, "--prompt", "--tokens")
    parser.add_argument(
        "--generate", type=int, default=0, metavar="N", help="tokens that A generates then (default: 0)"
    )
    shared(parser, "--seed", "--cache", "--flash", "--without")
    parser.add_argument("--threads", type=int, default=0, help="threads of each library")
    shared(parser, "--timeout")
    flag(parser, "-v", "--verbose", "print one line for each node")
    flag(parser, "--json", JSON_LINES)


def run(args: argparse.Namespace) -> int:
    from ..trace import compare_logits

    if args.against_model:
        return _run_beside(args)
    comparison = compare_logits(args.model, against=args.against, cache=args.cache, **_settings(args))
    pairs = []
    for pair in comparison:
        pairs.append(pair)
        if args.json:
            _plain.print_line(pair.facts())
    if not pairs:
        raise GGMLQError("not compared: the builds share no node of this model; are they of the same year?")
    if args.json:
        _plain.print_line(_end(comparison))
    else:
        _say(comparison, pairs, verbose=args.verbose)
    return 1 if comparison.first else 0


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run, whatever it is compared with."""
    names = ("lib", "prompt", "tokens", "generate", "without", "threads", "timeout", "seed")
    return {"flash": FLASH[args.flash], **{name: getattr(args, name) for name in names}}


def _end(comparison: Comparison) -> dict[str, Any]:
    """The last record: the logits, the first difference, and the nodes that nobody compared."""
    return {
        "logits": comparison.logits, "first": comparison.first and comparison.first.a.node,
        "unpaired": comparison.unpaired, "nodes": comparison.nodes, "not_judged": comparison.others,
        "loaded": [[str(path) for path in paths] for paths in comparison.loaded],
    }  # fmt: skip


def _say(comparison: Comparison, pairs: list[Pair], *, verbose: bool) -> None:
    from ..llama.library import listed
    from ..trace import report

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
        what = "an operation that nobody judges, or memory that changed,"
        return f"first: {what} {after}, before {place}: {apart}"
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


# --- --against-model: beside the model in float64, node by node ---------------------------------


def _run_beside(args: argparse.Namespace) -> int:
    """Run ``ggmlq logits --against-model``; the result is the exit status."""
    from .. import model as models
    from ..trace import compare_with_model

    model = models.load(args.model, cache=_types(args.cache))
    comparison = compare_with_model(model, bar=False if args.json else None, **_settings(args))
    nodes = []
    for node in comparison:
        nodes.append(node)
        if args.json:
            _plain.print_line(node.facts())
    if args.json:
        _plain.print_line(_model_end(comparison, len(nodes)))
    else:
        print(_model_text(comparison, nodes, verbose=args.verbose))
    return 0 if comparison.ok else 1


def _types(cache: str | None) -> tuple[str, str]:
    first, _, second = (cache or "f16").partition(",")
    return first.strip(), (second or first).strip()


def _model_end(comparison: ModelComparison, nodes: int) -> dict[str, Any]:
    """The last record: the logits without stops, and what was not compared."""
    return {
        "verdict": "end", "first": comparison.first and comparison.first.facts(),
        "left_ggml_cpu": comparison.left and comparison.left.node, "compared": nodes,
        "logits": comparison.logits, "unpaired": comparison.unpaired, "unnamed": dict(comparison.unnamed),
        "tokens": comparison.tokens, "generated": comparison.then, "version": comparison.version,
        "loaded": [str(path) for path in comparison.loaded],
    }  # fmt: skip


def _model_text(comparison: ModelComparison, nodes: list[Beside], *, verbose: bool) -> str:
    from ..llama.library import listed

    lines = [table(MODEL_HEADER, [_row(node) for node in _shown(nodes, verbose)]), ""]
    paths = f", {_plain.name(listed(comparison.loaded))}" if comparison.loaded else ""
    lines.append(f"ggml {comparison.version}{paths}")
    parted = sum(not node.ok for node in nodes)
    lines.append(f"{len(nodes)} nodes of {len(comparison.tokens)} tokens compared, {parted} of them parted")
    lines += _left_out(comparison)
    lines += [_left(comparison.left), _logits(comparison.logits), _model_first(comparison)]
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


def _model_first(comparison: ModelComparison) -> str:
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
