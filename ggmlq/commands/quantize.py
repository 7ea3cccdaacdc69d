"""``ggmlq quantize``: a model in a smaller type, with llama.cpp's bytes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConvertError
from . import _convert, _engines, _llama_quantize
from ._options import Commands, bits, count, declare, size

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from .. import gguf
    from ..convert import Plan, Pruned

SUMMARY = "quantize a model to a type or mix, with llama.cpp's bytes"
ABOUT = """\
Quantize the tensors of IN that llama.cpp would quantize: to one type (--type), to the types of one of its
mixes (q4_K_M), or to the types that lose least within a size (--target, --size). Print sizes and NMSE of each
tensor, and bits per weight. OUT is written in full or not at all.
"""
EXAMPLES = """\
  ggmlq quantize model-f16.gguf model-q4_K.gguf --type q4_K
  ggmlq quantize model-f16.gguf model-q4_K_M.gguf --type q4_K_M --imatrix imatrix.gguf
  ggmlq quantize model-f16.gguf small.gguf --target 4.5bpw --imatrix imatrix.gguf
  ggmlq quantize model-f16.gguf small.gguf --size 5GiB --write-types recipe.txt
  ggmlq quantize model-f16.gguf small.gguf --kl 0.05 --text text.txt
  ggmlq quantize in.gguf out.gguf --type q4_0 --keep '^output=q6_K' --keep 'ffn_down=q5_0'
  ggmlq quantize in.gguf out.gguf --type q8_0 --keep '^token_embd=same' --dry-run
  ggmlq quantize model-f16.gguf model-q4_K.gguf --type q4_K --workers 8
  ggmlq quantize --imatrix imatrix.dat model-f16.gguf model-Q4_K_M.gguf Q4_K_M 8

As in llama-quantize, the positional TYPE means the mix of that name (--pure: the type). --type means the
type if there is one of that name. --target and --size measure the error of each tensor in each type, weighted
by importance. --kl runs the model (those of `ggmlq run`) with one recipe after the other on every other
stretch of the text, and judges its choice on the rest: X is a limit there, and the search comes
within some 15 % of it where recipes are that fine. --write-types writes the chosen types to a file for
--tensor-types, which is llama-quantize's --tensor-type-file.
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq quantize`` with its options and examples."""
    parser = declare(commands, "quantize", "models", SUMMARY, ABOUT, EXAMPLES)
    _convert.add_options(parser, "[OUT] [TYPE] [NTHREADS]")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--type", help="q4_K, q8_0, f16, … or a mix such as q4_K_M")
    which.add_argument(
        "--target", type=bits, metavar="BITS",
        help="at most BITS per weight over all tensors: choose the types that lose least",
    )  # fmt: skip
    which.add_argument(
        "--size", type=size, metavar="SIZE", help="the same for the size of the file: 5GiB, 800M"
    )
    which.add_argument(
        "--kl", type=_limit, metavar="X",
        help="a small file whose shares of tokens are at most that far from IN's, in the mean, on --text",
    )  # fmt: skip
    _recipe_options(parser)
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="TYPE means llama.cpp's mix, even if there is a type of that name",
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix, .gguf or .dat")
    parser.add_argument(
        "--any-name", action="store_true",
        help="quantize every tensor of two axes or more (default: llama.cpp's rules by name)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="also quantize tensors of blocks again, which adds to their error",
    )
    parser.add_argument(
        "--no-fallback", action="store_true",
        help="if rows are not whole blocks, stop with an error; do not take another type",
    )  # fmt: skip
    _llama_quantize.add_options(parser)


def _recipe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--types", metavar="LIST", help="types to choose from, with --target or --size: q4_K,q5_K,q6_K"
    )
    parser.add_argument(
        "--objective", choices=("both", "relative", "error"), default="both",
        help="the error to minimise: the sum of errors (error); the errors relative to each tensor, in the "
        "mean over layers, which logits follow more closely (relative); relative and a quarter of error "
        "(both, default)",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=count, metavar="N",
        help="weights of a large tensor that are encoded in each type to measure its error (131072)",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-types", "--tensor-type-file", metavar="FILE",
        help="types by name: PATTERN=TYPE, one per line, as for llama-quantize; --keep has priority",
    )  # fmt: skip
    parser.add_argument("--text", type=Path, metavar="FILE", help="the text that --kl is measured on")
    parser.add_argument(
        "--stretch", type=count, metavar="N", help="tokens of it that are run together, with --kl (512)"
    )
    parser.add_argument("--write-types", metavar="FILE", help="write the types of this model to such a file")


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e3:
        raise argparse.ArgumentTypeError(f"{text!r} is not a distance; write a number above 0, as 0.05")
    return value


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq quantize``; the result is the exit status."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    from .. import gguf
    from ..base.threads import set_num_threads
    from ..convert import Pruned
    from ..safetensors.file import ENDING

    has_target = args.target is not None or args.size is not None or args.kl is not None
    positional = _llama_quantize.positional(args.rest, has_target or args.type is not None)
    if positional.type is not None:
        args.type, args.mixed = _llama_quantize.type_of(positional.type, args.pure)
    if args.type is None and not has_target:
        raise ConvertError("no type is given; write --type q4_K_M, --target 4.5bpw, --size 5GiB or --kl 0.05")
    args.output = positional.output or (
        _llama_quantize.name_beside(args.input, args.type) if positional.type else None
    )
    args.threads = args.threads or positional.threads
    if args.threads is not None:
        set_num_threads(args.threads)
    if os.path.isdir(args.input) or args.input.endswith(ENDING):
        raise ConvertError(
            f"{args.input}: a checkpoint in safetensors, and quantize reads GGUF; write `ggmlq convert "
            f"{args.input} OUT.gguf --type q4_K_M`, which does both"
        )
    with gguf.open(args.input) as file:
        model = Pruned(file, args.prune_layers) if args.prune_layers else file
        plan = _planned(model, args, has_target)
        plan = replace(plan, metadata=_llama_quantize.overridden(plan.metadata, args.override_kv))
        return _convert.carry_out(
            plan, args, split=args.keep_split, write_types=args.write_types, executor=executor
        )


def _planned(model: gguf.GGUFFile | Pruned, args: argparse.Namespace, has_target: bool) -> Plan:
    from ..convert import plan_quantize, read_tensor_types, recipe
    from . import _kl

    keep = [*args.keep, *_llama_quantize.keep_rules(args)]
    notes: list[str] = []
    if args.tensor_types is not None:
        entries = read_tensor_types(args.tensor_types)
        keep += _used(entries, model, args, notes)
    settings: dict[str, Any] = {"imatrix": _importance(args), "keep": keep, "any_name": args.any_name}
    settings["allow_requantize"] = args.allow_requantize
    if has_target:
        settings["objective"] = args.objective
        if args.types:
            settings["types"] = args.types.split(",")
        if args.sample:
            settings["elements"] = args.sample
        if args.kl is not None:
            plan = _kl.searched(model, args, settings)
        else:
            plan = recipe(model, args.target, size=args.size, **settings).plan
    else:
        plan = plan_quantize(
            model, args.type, mixed=args.mixed, allow_fallback=not args.no_fallback, **settings
        )
    return replace(plan, notes=plan.notes + notes)


def _importance(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """The importance matrix, of all tensors or of those that are meant."""
    from .. import gguf
    from ..convert.plan import only

    if args.include_weights and args.exclude_weights:
        raise ConvertError(
            "--include-weights and --exclude-weights exclude each other, as in llama-quantize; give one"
        )
    if args.imatrix is None:
        return None
    return only(gguf.read_imatrix(args.imatrix), args.include_weights, args.exclude_weights)


def _used(
    pairs: list[tuple[str, str]], model: gguf.GGUFFile | Pruned, args: argparse.Namespace, notes: list[str]
) -> list[tuple[str, str]]:
    """Entries of a file that fit a tensor; the others are named, for a file may be of a larger model."""
    from ..convert.rules import why_left
    from ..convert.typefile import rules

    infos = {name: model.info(name) for name in model}
    able = [n for n, info in infos.items() if why_left(n, info.format, info.shape, args.any_name) is None]
    fitting = [any(rule.pattern.search(name) for name in able) for rule in rules(pairs)]
    unused = [pattern for (pattern, _), fits in zip(pairs, fitting, strict=True) if not fits]
    if unused:
        notes.append(
            f"{args.tensor_types}: {len(unused)} entries fit no tensor that is quantized: {unused[0]} …"
        )
    return [pair for pair, fits in zip(pairs, fitting, strict=True) if fits]
