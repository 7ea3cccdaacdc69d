"""``ggmlq compare``: a GGUF file beside a module of torch, and the mistake of the port by name."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.missing import has, install
from ..base.text import printable, short
from ..errors import GGMLQError, MissingDependencyError, UnsupportedError
from . import _plain
from ._options import Commands, count, declare, shared

if TYPE_CHECKING:
    from ..port import Comparison

SUMMARY = "find where a torch module and a GGUF file of the same model part, and why"
ABOUT = """\
Call a module of torch once and judge each of its parts in float64, on the module's own input: by the tensor
of the file, and for RoPE, attention, activations and sums by the layers of the file's architecture. The first
place where they part is named, and the mistake of conversion that explains it. Exit 0: they are the same
model, 1: a mistake, 2: could not compare.
"""
EXAMPLES = """\
  ggmlq compare model.gguf --torch transformers:FOLDER         a checkpoint, and a file made of it
  ggmlq compare model.gguf --torch transformers:model.gguf     the reader of transformers
  ggmlq compare model.gguf --torch my_port:load                what load() of my_port gives
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "compare", "files", SUMMARY, ABOUT, EXAMPLES)
    shared(parser, "model")
    parser.add_argument(
        "--torch", required=True, metavar="MODULE",
        help="transformers:ID, :FOLDER or :FILE.gguf; or PYTHON_MODULE:FUNCTION, which returns a module",
    )  # fmt: skip
    parser.add_argument(
        "--tokens",
        type=count,
        metavar="N",
        help="random tokens (default: 32, or enough to pass a short window)",
    )
    shared(parser, "--seed", "--json")


def run(args: argparse.Namespace) -> int:
    from ..gguf import open
    from ..port import compare

    file = open(args.model)
    comparison = compare(_module(args.torch), file, args.tokens, seed=args.seed)
    if args.json:
        _plain.print_json(_facts(args, comparison))
    else:
        print(printable(str(comparison)))
    return 0 if comparison.ok else 1


def _module(where: str) -> Any:
    """A module by its place: a checkpoint of transformers, or a function's."""
    kind, _, place = where.partition(":")
    if not kind or not place:
        raise UnsupportedError(
            f"--torch {short(where)}; it is transformers:ID_OR_FOLDER or PYTHON_MODULE:FUNCTION"
        )
    needs = [name for name in ("torch", "transformers") if kind == "transformers" and not has(name)]
    if needs:
        raise MissingDependencyError(
            f"--torch {short(where)}: {' and '.join(needs)} not installed; {install('torch')} transformers"
        )
    try:
        if kind != "transformers":
            module: Any = getattr(import_module(kind), place)()
            return module
        path, torch = Path(place), import_module("torch")
        more = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
        load = import_module("transformers").AutoModelForCausalLM.from_pretrained
        return load(str(path.parent) if more else place, dtype=torch.float32, **more)
    except GGMLQError:
        raise
    except Exception as error:  # whatever a module of somebody's raises while it is made
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UnsupportedError(
            f"--torch {where} could not be loaded: {reason}; make it in Python and pass it to "
            "ggmlq.torch.compare(module, file)"
        ) from error


def _facts(args: argparse.Namespace, comparison: Comparison) -> dict[str, Any]:
    first = comparison.first
    return {
        "model": args.model,
        "torch": args.torch,
        "ok": comparison.ok,
        "first": None if first is None else first.node,
        "mistakes": sorted({place.mistake for place in comparison.mistakes}),
        "places": [asdict(place) for place in comparison.places],
        "notes": comparison.notes,
    }
