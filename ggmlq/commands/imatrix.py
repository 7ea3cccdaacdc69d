"""``ggmlq imatrix``: importance matrices made, merged, converted, and what is in them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.terminal import table
from ..errors import GGMLQError
from . import _files, _plain
from ._options import Commands, count, declare, flag, shared

if TYPE_CHECKING:
    from ..gguf import Collector

SUMMARY = "make, merge, convert and show importance matrices"
ABOUT = """\
Show the statistics of an importance matrix, or of the sum of several; --output writes the sum, as .gguf or as
the older .dat, and shows statistics with --show-statistics only. --model and --text make a matrix: the text
runs through the model here, or in your libllama with --lib. Ctrl-C keeps what whole chunks gave (exit 130).
Experts that no token reached get the mean of their tensor's tokens, as that of one token. Files that are
named in addition are added to it. The statistics are those of llama-imatrix: of the mean squares of a
tensor's columns.
"""
EXAMPLES = """\
  ggmlq imatrix --model model-f16.gguf --text calibration.txt --output imatrix.gguf
  ggmlq imatrix imatrix.gguf
  ggmlq imatrix a.gguf b.gguf old.dat --output all.gguf
  ggmlq imatrix imatrix.gguf --output imatrix.dat
"""
HEADER = ["tensor", "sum", "min", "max", "mean", "sigma", "active", "N", "entropy", "ZD", "cos", "counts"]
SHOWN = 8  # experts that a line names
SILENT = 1e-5  # a mean square of no more than that is an inactive column


def add(commands: Commands) -> None:
    parser = declare(commands, "imatrix", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("files", nargs="*", metavar="FILE", help="importance matrices, .gguf or .dat")
    group = parser.add_argument_group("making a matrix")
    group.add_argument("--model", metavar="GGUF", help="the model that runs on the text")
    group.add_argument("--text", type=Path, metavar="FILE", help="the text, in UTF-8")
    group.add_argument("--lib", type=Path, help="run it in this libllama, or that of a build folder")
    shared(group, "--device")
    group.add_argument("--chunks", type=count, metavar="N", help="at most N chunks of the text")
    flag(group, "--process-output", "also collect for the output matrix")
    group.add_argument("--threads", type=count, metavar="N", help="threads (default: as doctor says)")
    parser.add_argument("--output", "-o", metavar="OUT", help="write the sum of all matrices")
    parser.add_argument(
        "--output-format", choices=("gguf", "dat"), help="kind of OUT, if its name does not show it"
    )
    parser.add_argument(
        "--chunk-size", type=count, metavar="N", help="tokens per chunk (512, or that of the first file)"
    )
    flag(parser, "--show-statistics", "show statistics of each tensor, with --output, too")
    shared(parser, "--force", "--json")


def run(args: argparse.Namespace) -> int:
    if args.output is not None:
        _files.check_free([args.output], args.force, read=[args.model, args.text])
    collector = _collector(args)
    rows = statistics(collector)
    unseen = collector.unseen if args.model is not None else {}
    if unseen:
        collector.mend()
    if args.output is not None:
        legacy = None if args.output_format is None else args.output_format == "dat"
        collector.save(args.output, legacy)
    status = 130 if collector.interrupted else 0  # as a shell counts it
    if args.json:
        facts = {"files": args.files, "datasets": collector.datasets, "chunks": collector.chunks}
        facts |= {"chunk_size": collector.chunk_size, "written": args.output, "tensors": rows}
        facts |= {"mended": unseen, "interrupted": collector.interrupted}
        _plain.print_json(facts)
        return status
    if args.show_statistics or args.output is None:
        print(table(HEADER, map(_row, rows)), end="\n\n")
    print(f"{len(rows)} tensors, {collector.chunks} chunks of {collector.chunk_size} tokens")
    if collector.interrupted:
        print("interrupted: chunks that were not run are not in it")
    for name in collector.datasets:
        print(f"computed on {_plain.name(name)}")
    if unseen:
        print(_mended(collector, unseen))
    if args.output is not None:
        print(f"wrote {_plain.name(args.output)}")
    return status


def _mended(collector: Collector, unseen: Mapping[str, tuple[int, ...]]) -> str:
    count, (first, experts) = sum(map(len, unseen.values())), next(iter(unseen.items()))
    every = sum(len(collector.counts[name]) for name in unseen)
    return (
        f"no token reached {count} of {every} experts in {len(unseen)} tensors, as {_plain.name(first)} "
        f"{', '.join(map(str, experts[:SHOWN]))}{', …' if len(experts) > SHOWN else ''}: they have the mean "
        "of their tensor's tokens, as that of one token; a longer text reaches more"
    )


def _collector(args: argparse.Namespace) -> Collector:
    """The matrix of the model, where there is one, merged with all files."""
    from ..gguf import collected

    if (args.model is None) != (args.text is None) or not (args.model or args.files):
        raise GGMLQError(
            "an importance matrix is made of --model and --text together, or read; name both, or a file"
        )
    paths = list(args.files)
    if args.model is None:
        collector = collected(paths.pop(0), args.chunk_size)
    else:
        collector = _made(args, _plain.text_of("--text", args.text))
    for path in paths:
        collector.merge(collected(path, collector.chunk_size))
    return collector


def _made(args: argparse.Namespace, text: str) -> Collector:
    """The matrix of the model, by a libllama or here."""
    from ..gguf.imatrix import TOKENS

    settings: dict[str, Any] = {
        "chunk_size": args.chunk_size or TOKENS, "chunks": args.chunks, "output": args.process_output,
        "bar": False if args.json else None,
    }  # fmt: skip
    if args.lib is not None:
        from ..trace import imatrix

        if args.device != "cpu":
            raise GGMLQError(
                f"--device {args.device} with --lib: a libllama runs on its own devices; "
                "leave one of them out"
            )
        settings |= {"lib": args.lib, "threads": args.threads or 0}
        return imatrix(args.model, text, dataset=str(args.text), **settings)
    from ..base.threads import set_num_threads
    from ..model import load

    if args.threads:
        set_num_threads(args.threads)
    collector = load(args.model, args.device).importance(text, **settings)
    collector.datasets = [str(args.text)]
    return collector


def statistics(collector: Collector) -> list[dict[str, Any]]:
    """Statistics of mean squares, per expert that saw tokens; ``cosine`` compares with the layer before."""
    return [_statistics(collector, name) for name in sorted(collector.entries, key=_place)]


def _statistics(collector: Collector, name: str) -> dict[str, Any]:
    import numpy as np

    entry = collector.entries[name]
    reached = entry.counts > 0
    means = (entry.sums[reached] / entry.counts[reached, None]).reshape(-1)
    total, deviation = float(means.sum()), float(means.std()) if means.size else 0.0
    shares = means[means > 0] / total if total > 0 else means[:0]
    entropy = float(-(shares * np.log2(shares)).sum())
    return {
        "name": name, "experts": len(entry.counts), "unseen_experts": int((~reached).sum()),
        "counts": [int(entry.counts.min()), int(entry.counts.max())],
        "columns": int(means.size), "sum": total, "min": float(means.min()) if means.size else 0.0,
        "max": float(means.max(initial=0)), "mean": total / max(1, means.size), "sigma": deviation,
        "active": float((means > SILENT).mean()) if means.size else 0.0, "entropy": entropy,
        "entropy_normalized": entropy / np.log2(means.size) if means.size > 1 else 0.0,
        "zd": float((means > means.mean() + deviation).mean()) if deviation else 0.0,
        "cosine": _cosine(collector, name),
    }  # fmt: skip


def _cosine(collector: Collector, name: str) -> float | None:
    import numpy as np

    layer = re.search(r"blk\.(\d+)\.", name)
    if layer is None:
        return None
    before = collector.entries.get(f"{name[: layer.start(1)]}{int(layer[1]) - 1}{name[layer.end(1) :]}")
    if before is None or before.sums.size != collector.entries[name].sums.size:
        return None
    a, b = (entry.sums.reshape(-1) for entry in (before, collector.entries[name]))
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.einsum("i,i->", a, b)) / norms if norms else None


def _place(name: str) -> tuple[int, str]:
    layer = re.search(r"blk\.(\d+)\.", name)
    return (int(layer[1]) if layer else -1, name)


def _row(fact: dict[str, Any]) -> list[str]:
    low, high = fact["counts"]
    return [
        _plain.name(fact["name"]),
        *(f"{fact[key]:.4g}" for key in ("sum", "min", "max", "mean", "sigma")),
        f"{fact['active']:.1%}",
        str(fact["columns"]),
        f"{fact['entropy']:.3f} ({fact['entropy_normalized']:.1%})",
        f"{fact['zd']:.1%}",
        "" if fact["cosine"] is None else f"{fact['cosine']:.4f}",
        str(high) if low == high else f"{low} to {high}",
    ]
