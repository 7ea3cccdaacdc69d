"""``ggmlq imatrix``: importance matrices made, merged, converted, and what is in them."""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np

from ..base.terminal import table
from ..errors import GGMLQError
from ..gguf import Collector, collected
from ..gguf.collector import TOKENS
from ..trace import imatrix
from . import _plain, _sizes

HEADER = ["tensor", "sum", "min", "max", "mean", "sigma", "active", "N", "entropy", "ZD", "cos", "counts"]
SILENT = 1e-5  # a mean square of no more than that is an inactive column


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq imatrix``; the result is the exit status."""
    if args.output is not None:
        _sizes.check_free([args.output], args.force)
    collector = _collector(args)
    if args.output is not None:
        legacy = None if args.output_format is None else args.output_format == "dat"
        collector.save(args.output, legacy)
    rows = statistics(collector)
    if args.json:
        facts = {"files": args.files, "datasets": collector.datasets, "chunks": collector.chunks}
        facts |= {"chunk_size": collector.chunk_size, "written": args.output, "tensors": rows}
        _plain.print_json(facts)
        return 0
    if args.show_statistics or args.output is None:
        print(table(HEADER, map(_row, rows)), end="\n\n")
    print(f"{len(rows)} tensors, {collector.chunks} chunks of {collector.chunk_size} tokens")
    for name in collector.datasets:
        print(f"computed on {_plain.name(name)}")
    if args.output is not None:
        print(f"wrote {_plain.name(args.output)}")
    return 0


def _collector(args: argparse.Namespace) -> Collector:
    """The matrix of the model, where there is one, merged with all files."""
    if (args.model is None) != (args.text is None) or not (args.model or args.files):
        raise GGMLQError(
            "ggmlq imatrix: one is made of --model and --text together, others are read; name both, or a file"
        )
    paths = list(args.files)
    if args.model is None:
        collector = collected(paths.pop(0), args.chunk_size)
    else:
        text = _plain.text_of("--text", args.text)
        collector = imatrix(
            args.model, text, lib=args.lib, chunk_size=args.chunk_size or TOKENS, chunks=args.chunks,
            output=args.process_output, dataset=str(args.text), threads=args.threads,
            bar=False if args.json else None,
        )  # fmt: skip
    for path in paths:
        collector.merge(collected(path, collector.chunk_size))
    return collector


def statistics(collector: Collector) -> list[dict[str, Any]]:
    """Statistics of mean squares, per expert that saw tokens; ``cosine`` compares with the layer before."""
    return [_statistics(collector, name) for name in sorted(collector.entries, key=_place)]


def _statistics(collector: Collector, name: str) -> dict[str, Any]:
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
