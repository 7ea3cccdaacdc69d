"""``ggmlq quantize``: a model in a smaller type, with llama.cpp's bytes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from .. import gguf
from ..convert import Plan, Pruned, plan_quantize, read_tensor_types, recipe
from ..convert.keep import rules
from ..convert.rules import why_left
from ..convert.weights import only
from ..errors import ConvertError
from ..threads import set_num_threads
from . import _convert, _engines, _llama_quantize, _sizes

ABOUT = """\
Quantize the tensors of IN that llama.cpp would quantize: all to one type (--type), to the types of one of
its mixes (q4_K_M), or to those that lose least within a size (--target, --size). Prints sizes and NMSE of
each tensor, and bits a weight. OUT is there in full or not at all.
"""
EXAMPLES = """\
examples:
  ggmlq quantize model-f16.gguf model-q4_K.gguf --type q4_K
  ggmlq quantize model-f16.gguf model-q4_K_M.gguf --type q4_K_M --imatrix imatrix.gguf
  ggmlq quantize model-f16.gguf small.gguf --target 4.5bpw --imatrix imatrix.gguf
  ggmlq quantize model-f16.gguf small.gguf --size 5GiB --write-types recipe.txt
  ggmlq quantize in.gguf out.gguf --type q4_0 --keep '^output=q6_K' --keep 'ffn_down=q5_0'
  ggmlq quantize in.gguf out.gguf --type q8_0 --keep '^token_embd=same' --dry-run
  ggmlq quantize model-f16.gguf model-q4_K.gguf --type q4_K --workers 8
  ggmlq quantize --imatrix imatrix.dat model-f16.gguf model-Q4_K_M.gguf Q4_K_M 8

As in llama-quantize the positional TYPE means the mix of that name (--pure: the type); --type means the
type where there is one. A recipe is measured: the error of each tensor in each type, weighted by
importance. --write-types writes it as a file for --tensor-types, which is llama-quantize's
--tensor-type-file.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "quantize",
        help="write a GGUF model in another type or mix, with llama.cpp's bytes",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _convert.add_options(parser, "[OUT] [TYPE] [NTHREADS]")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--type", help="q4_K, q8_0, f16, … or a mix such as q4_K_M")
    which.add_argument(
        "--target", type=_sizes.bits, metavar="BITS",
        help="bits a weight at most, of all tensors: types are chosen that lose least",
    )  # fmt: skip
    which.add_argument(
        "--size", type=_sizes.size, metavar="SIZE", help="the same with the size of the file: 5GiB, 800M"
    )
    _recipe_options(parser)
    parser.add_argument(
        "--mixed", action="store_true", help="TYPE names llama.cpp's mix, also where a type has that name"
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix, .gguf or .dat")
    parser.add_argument(
        "--any-name", action="store_true",
        help="every tensor of two axes or more; else llama.cpp's rules by name hold",
    )  # fmt: skip
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="quantize tensors of blocks again; adds to their error",
    )
    parser.add_argument(
        "--no-fallback", action="store_true",
        help="an error, not another type, where rows are not whole blocks",
    )  # fmt: skip
    _llama_quantize.add_options(parser)
    parser.set_defaults(run=run)


def _recipe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--types", metavar="LIST", help="the types to choose among, with --target or --size: q4_K,q5_K,q6_K"
    )
    parser.add_argument(
        "--objective", choices=("both", "relative", "error"), default="both",
        help="what is least: the sum of errors (error); of errors relative to each tensor, in the mean over "
        "layers, which logits follow more closely (relative); this and a quarter of that (both, default)",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=_sizes.count, metavar="N",
        help="weights of a large tensor that are encoded in each type to measure its error (131072)",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-types", "--tensor-type-file", metavar="FILE",
        help="types by name: PATTERN=TYPE, one a line, as llama-quantize takes them; --keep goes before",
    )  # fmt: skip
    parser.add_argument("--write-types", metavar="FILE", help="write the types of this model as such a file")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    wanted = args.target is not None or args.size is not None
    said = _llama_quantize.positional(args.rest, wanted or args.type is not None)
    if said.type is not None:
        args.type, args.mixed = _llama_quantize.type_of(said.type, args.pure)
    if args.type is None and not wanted:
        raise ConvertError("no type is given; write --type q4_K_M, --target 4.5bpw or --size 5GiB")
    args.output = said.output or (_llama_quantize.name_beside(args.input, args.type) if said.type else None)
    args.threads = args.threads or said.threads
    if args.threads is not None:
        set_num_threads(args.threads)
    with gguf.open(args.input) as file:
        model = Pruned(file, args.prune_layers) if args.prune_layers else file
        plan = _planned(model, args, wanted)
        plan = replace(plan, metadata=plan.metadata | _llama_quantize.overrides(args.override_kv))
        return _convert.carry_out(
            plan, args, split=args.keep_split, write_types=args.write_types, executor=executor
        )


def _planned(model: gguf.GGUFFile | Pruned, args: argparse.Namespace, wanted: bool) -> Plan:
    keep = [*args.keep, *_llama_quantize.kept(args)]
    notes: list[str] = []
    if args.tensor_types is not None:
        found = read_tensor_types(args.tensor_types)
        keep += _used(found, model, args, notes)
    settings: dict[str, Any] = {"imatrix": _importance(args), "keep": keep, "any_name": args.any_name}
    settings["allow_requantize"] = args.allow_requantize
    if wanted:
        settings["objective"] = args.objective
        if args.types:
            settings["types"] = args.types.split(",")
        if args.sample:
            settings["elements"] = args.sample
        plan = recipe(model, args.target, size=args.size, **settings).plan
    else:
        plan = plan_quantize(
            model, args.type, mixed=args.mixed, allow_fallback=not args.no_fallback, **settings
        )
    return replace(plan, notes=plan.notes + notes)


def _importance(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """The importance matrix, of all tensors or of those that are meant."""
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
    infos = {name: model.info(name) for name in model}
    able = [n for n, info in infos.items() if why_left(n, info.format, info.shape, args.any_name) is None]
    found = [any(rule.pattern.search(name) for name in able) for rule in rules(pairs)]
    unused = [pattern for (pattern, _), fits in zip(pairs, found, strict=True) if not fits]
    if unused:
        notes.append(
            f"{args.tensor_types}: {len(unused)} entries fit no tensor that is quantized: {unused[0]} …"
        )
    return [pair for pair, fits in zip(pairs, found, strict=True) if fits]
