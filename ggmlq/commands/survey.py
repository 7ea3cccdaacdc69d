"""``ggmlq survey``: statistics of values and errors of types, for models of any size."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor
from fnmatch import fnmatchcase

from ..base.threads import set_num_threads
from ..convert.sample import ELEMENTS
from ..report.survey import survey
from . import _engines, _plain
from ._files import expanded

SORTS = {
    "error": lambda one: -max(one.shown_errors.values(), default=-1.0),
    "peak": lambda one: -((one.values.peak if one.values else None) or -1.0),
    "name": lambda one: one.name,
    "size": lambda one: -one.nbytes,
}


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq survey``; the result is the exit status."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    if args.threads is not None:
        set_num_threads(args.threads)
    types = [] if args.no_types else args.types.split(",") if args.types else None
    report = survey(
        expanded(args.file), types=types, imatrix=args.imatrix, elements=args.sample or ELEMENTS,
        executor=executor,
        filter=lambda name: any(fnmatchcase(name, glob) for glob in args.filter) or not args.filter,
    )  # fmt: skip
    if args.sort:
        report.tensors.sort(key=SORTS[args.sort])
    if args.json:
        _plain.print_json(report.facts())
    else:
        print(report.text(args.all_tensors))
    return 0 if report.ok else 1
