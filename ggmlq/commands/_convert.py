"""The common part of `quantize` and `dequantize`: options, and the text of a result."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConvertError
from . import _engines, _files, _plain
from ._options import count, shared

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..convert import Plan, Report


def add_options(parser: argparse.ArgumentParser, rest: str | None = None) -> None:
    """Declare the options of both commands. ``rest``: the words after IN, if they are more than OUT."""
    shared(parser, "input")
    if rest is None:
        parser.add_argument("output", metavar="OUT", help="the new file; not IN")
    else:
        parser.add_argument("rest", nargs="*", metavar=rest, help="OUT: the new file, not IN")
    parser.add_argument(
        "--keep", "--tensor-type", type=_keep_rule, action="append", default=[], metavar="REGEX=TYPE",
        help="TYPE for tensors whose name contains REGEX; `same` does not change them; "
        "may be repeated, the first that fits counts",
    )  # fmt: skip
    parser.add_argument(
        "--threads",
        type=count,
        metavar="N",
        help="number of threads, of each worker if there are workers (default: all cores)",
    )
    shared(parser, "--dry-run")
    _engines.add_options(parser)
    shared(parser, "--force", "--all-tensors", "--json")


def _keep_rule(text: str) -> tuple[str, str]:
    pattern, equals, kind = text.rpartition("=")
    if not equals or not pattern or not kind:
        raise argparse.ArgumentTypeError(f"{text!r} is not REGEX=TYPE; write attn_v=q6_K or ^output=same")
    return pattern, kind


def carry_out(
    plan: Plan, args: argparse.Namespace, split: bool = False, write_types: str | None = None,
    executor: Executor | None = None,
) -> int:  # fmt: skip
    """Run the plan, or with --dry-run only print it; print the result."""
    from ..base.threads import set_num_threads
    from ..convert import Done, Report, layout, run, write_tensor_types

    if args.threads is not None:
        set_num_threads(args.threads)
    files = [] if args.output is None else layout(plan, args.output, keep_split=split)
    if args.output is None and not args.dry_run:
        raise ConvertError("OUT is missing; name the new file, or only look with --dry-run")
    if write_types is not None:
        _files.check_free([write_types], args.force)
    if args.dry_run:
        report = Report([], [Done(step, None) for step in plan.steps], plan.notes)
    else:
        _files.check_free([path for path, _ in files], args.force)
        report = run(plan, args.output, keep_split=split, executor=executor)
    if write_types is not None:
        write_tensor_types(write_types, plan.types)
    if args.json:
        _plain.print_json(_facts(report, files, write_types))
        return 0
    print(report.text(args.all_tensors))
    if write_types is not None:
        print(f"wrote {_plain.name(write_types)}")
    _files.tell(files, args.dry_run)
    return 0


def _facts(report: Report, files: Sequence[tuple[str, int]], types: str | None) -> dict[str, Any]:
    elements = max(1, report.elements)
    return {
        "files": report.paths,
        "file_bytes": [nbytes for _, nbytes in files],
        "types_file": types,
        "tensors": [
            {
                "name": done.step.name,
                "shape": list(done.step.shape),
                "from": done.step.before.name,
                "to": done.step.after.name,
                "bytes_before": done.step.bytes_before,
                "bytes_after": done.step.bytes_after,
                "nmse": done.nmse,
                "imatrix": done.step.weights is not None,
                "why": done.step.why,
            }
            for done in report.tensors
        ],
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "bits_per_weight_before": 8 * report.bytes_before / elements,
        "bits_per_weight_after": 8 * report.bytes_after / elements,
        "notes": report.notes,
    }
