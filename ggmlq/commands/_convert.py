"""What `quantize` and `dequantize` have in common: options, and how a result is told."""

from __future__ import annotations

import argparse
from typing import Any

from ..convert import Done, Plan, Report, run
from ..threads import set_num_threads
from . import _plain


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of both."""
    parser.add_argument("input", metavar="IN", help="a .gguf file, any part of a split model")
    parser.add_argument("output", metavar="OUT", help="the new file; not IN")
    parser.add_argument(
        "--keep", type=_kept, action="append", default=[], metavar="REGEX=TYPE",
        help="TYPE for tensors in whose name REGEX is found; `same` leaves them as they are; "
        "may be given again, the first that fits counts",
    )  # fmt: skip
    parser.add_argument("--threads", type=count, metavar="N", help="threads; all cores if not given")
    parser.add_argument("--dry-run", action="store_true", help="only tell what each tensor would become")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _kept(text: str) -> tuple[str, str]:
    pattern, equals, kind = text.rpartition("=")
    if not equals or not pattern or not kind:
        raise argparse.ArgumentTypeError(f"{text!r} is no REGEX=TYPE; write attn_v=q6_K or ^output=same")
    return pattern, kind


def count(text: str) -> int:
    """A number of threads."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of threads; write 1 or more")
    return int(text)


def carry_out(plan: Plan, args: argparse.Namespace) -> int:
    """Run the plan, or only tell it; print what came of it."""
    if args.threads is not None:
        set_num_threads(args.threads)
    if args.dry_run:
        report = Report([], [Done(step, None) for step in plan.steps], plan.notes)
    else:
        report = run(plan, args.output)
    if args.json:
        _plain.print_json(_facts(report))
        return 0
    print(report)
    print(
        "\n".join(f"wrote {_plain.name(path)}" for path in report.paths) or "nothing was written (--dry-run)"
    )
    return 0


def _facts(report: Report) -> dict[str, Any]:
    return {
        "files": report.paths,
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
        "notes": report.notes,
    }
