"""``ggmlq quantize``: a model in a smaller type, with llama.cpp's bytes."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.mixes import ALIASES, BY_NAME, FILE_TYPES, MIXES
from ..base.text import short
from ..errors import ConvertError
from . import _files, _plain
from ._options import Commands, add_workers, bits, count, declare, flag, shared, size, with_workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from .. import gguf
    from ..checkpoint.lora import Merged
    from ..convert import Plan, Pruned, Report
    from ..convert.step import MomentsByName

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
  ggmlq quantize model-f16.gguf small.gguf --target 4.5bpw --imatrix imatrix.gguf --measure text.txt
  ggmlq quantize model-f16.gguf small.gguf --type q4_K_M --imatrix imatrix.gguf --feedback text.txt
  ggmlq quantize model-q4_K_M.gguf merged.gguf --lora adapter/ --imatrix imatrix.gguf
  ggmlq quantize in.gguf out.gguf --type q4_0 --keep '^output=q6_K' --keep 'ffn_down=q5_0'
  ggmlq quantize in.gguf out.gguf --type q8_0 --keep '^token_embd=same' --dry-run
  ggmlq quantize model-f16.gguf model-q4_K.gguf --type q4_K --workers 8
  ggmlq quantize --imatrix imatrix.dat model-f16.gguf model-Q4_K_M.gguf Q4_K_M 8

As in llama-quantize, the positional TYPE means the mix of that name (--pure: the type). --type means the
type if there is one of that name. --target and --size measure the error of each tensor in each type, weighted
by importance. --kl runs the model (those of `ggmlq run`) with one recipe after the other on every other
stretch of the text, and judges its choice on the rest: X is a limit there, and the search comes
within some 15 % of it where recipes are that fine. --measure runs the model with one tensor quantized after
the other, and chooses the types of least KL within the size. --write-types writes the chosen types to a file
for --tensor-types, which is llama-quantize's --tensor-type-file.
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "quantize", "models", SUMMARY, ABOUT, EXAMPLES)
    add_options(parser, "[OUT] [TYPE] [NTHREADS]")
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
        "--lora", metavar="ADAPTER",
        help="add the matrices of an adapter first: a folder of PEFT, a GGUF file of llama.cpp; without TYPE "
        "tensors keep their types",
    )  # fmt: skip
    flag(parser, "--mixed", "TYPE means llama.cpp's mix, even if there is a type of that name")
    shared(parser, "--imatrix")
    flag(
        parser, "--any-name", "quantize every tensor of two axes or more (default: llama.cpp's rules by name)"
    )
    flag(parser, "--allow-requantize", "also quantize tensors of blocks again, which adds to their error")
    flag(
        parser, "--no-fallback", "if rows are not whole blocks, stop with an error; do not take another type"
    )
    _llama_options(parser)


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
        "--stretch", type=count, metavar="N", help="tokens of a text that are run together (512)"
    )
    parser.add_argument(
        "--measure", type=Path, metavar="FILE",
        help="with --target or --size: a text on which KL is measured that each tensor alone costs, for the "
        "least sum of it; or a .json that --write-measure wrote",
    )  # fmt: skip
    parser.add_argument(
        "--feedback", type=Path, metavar="FILE",
        help="a text by whose inputs later columns make good what a column loses by rounding; rows, and "
        "files, that are no nearer on stretches held back go without",
    )  # fmt: skip
    parser.add_argument("--write-measure", metavar="JSON", help="write what --measure measured on a text")
    parser.add_argument("--write-types", metavar="FILE", help="write the types of this model to such a file")


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e3:
        raise argparse.ArgumentTypeError(f"{text!r} is not a distance; write a number above 0, as 0.05")
    return value


@with_workers
def run(args: argparse.Namespace, executor: Executor | None) -> int:
    from .. import gguf
    from ..base.threads import set_num_threads
    from ..convert import Pruned
    from ..safetensors.file import ENDING

    has_target = args.target is not None or args.size is not None or args.kl is not None
    words = positional(args.rest, has_target or args.type is not None)
    if words.type is not None:
        args.type, args.mixed = type_of(words.type, args.pure)
    if (args.measure or args.write_measure) and args.target is None and args.size is None:
        raise ConvertError("--measure chooses types within a size; write --target 4.5bpw or --size 5GiB, too")
    if args.write_measure and (args.measure is None or args.measure.suffix == ".json"):
        raise ConvertError(f"--write-measure {args.write_measure}: nothing is measured; pass --measure TEXT")
    for option, alone, needs in (
        ("--text", args.text and args.kl is None, "--kl 0.05"),
        ("--types", args.types is not None and not has_target, "--target 4.5bpw or --size 5GiB"),
        ("--sample", args.sample and not has_target, "--target 4.5bpw or --size 5GiB"),
        (
            "--stretch",
            args.stretch and args.kl is None and not (args.measure or args.feedback),
            "a text to run: --measure, --feedback or --kl",
        ),
    ):
        if alone:
            raise ConvertError(f"{option} without {needs}: it changes nothing; add that, or leave it out")
    if args.type is None and not has_target and args.lora is None:
        raise ConvertError("no type is given; write --type q4_K_M, --target 4.5bpw, --size 5GiB or --kl 0.05")
    args.output = words.output or (name_beside(args.input, args.type) if words.type else None)
    args.threads = args.threads or words.threads
    if args.threads is not None:
        set_num_threads(args.threads)
    if os.path.isdir(args.input) or args.input.endswith(ENDING):
        raise ConvertError(
            f"{args.input}: a checkpoint in safetensors, and quantize reads GGUF; write `ggmlq convert "
            f"{args.input} OUT.gguf --type q4_K_M`, which does both"
        )
    with gguf.open(args.input) as file:
        if args.lora is not None:
            model: Any = _merged(file, args)
        else:
            model = Pruned(file, args.prune_layers) if args.prune_layers else file
        plan = _planned(model, args, has_target)
        plan = replace(plan, metadata=overridden(plan.metadata, args.override_kv))
        if args.feedback is not None:
            plan = replace(plan, moments=_moments(model, args))
        return carry_out(plan, args, split=args.keep_split, write_types=args.write_types, executor=executor)


def _merged(file: gguf.GGUFFile, args: argparse.Namespace) -> Merged:
    """The model with the adapter of ``args.lora``; other options that need the file itself are refused."""
    from ..checkpoint.lora import Merged

    alone = ("prune_layers", "kl", "measure", "feedback", "keep_split", "workers", "mpi", "dask")
    more = [f"--{name.replace('_', '-')}" for name in alone if getattr(args, name, None)]
    if more:
        raise ConvertError(
            f"--lora with {', '.join(more)}: the merged model is no file yet; write it with --lora alone, "
            "and quantize that file"
        )
    return Merged(file, args.lora)


def _planned(model: Any, args: argparse.Namespace, has_target: bool) -> Plan:
    from ..convert import plan_quantize, read_tensor_types, recipe
    from . import _quality

    keep = [*args.keep, *keep_rules(args)]
    notes: list[str] = []
    if args.tensor_types is not None:
        entries = read_tensor_types(args.tensor_types)
        keep += _used(entries, model, args, notes)
    settings: dict[str, Any] = {"imatrix": _importance(args), "keep": keep, "any_name": args.any_name}
    settings["allow_requantize"] = args.allow_requantize
    if has_target:
        settings["objective"] = args.objective
        if args.types is not None:
            settings["types"] = args.types.split(",")
        if args.sample:
            settings["elements"] = args.sample
        if args.kl is not None:
            plan = _quality.searched(model, args, settings)
        elif args.measure is not None:
            plan = _quality.priced(model, args, settings)
        else:
            plan = recipe(model, args.target, size=args.size, **settings).plan
    elif args.type is None:
        plan = model.plan(**settings)
    else:
        plan = plan_quantize(
            model, args.type, mixed=args.mixed, allow_fallback=not args.no_fallback, **settings
        )
    return replace(plan, notes=plan.notes + notes)


def _moments(model: gguf.GGUFFile | Pruned, args: argparse.Namespace) -> MomentsByName:
    """Second moments of what products read on ``args.feedback``."""
    from ..convert import Pruned
    from ..model import load
    from ..model.moments import Gathered
    from ..model.quality import stretches

    if isinstance(model, Pruned):
        raise ConvertError("--feedback with --prune-layers: the original has other layers; prune it first")
    original = load(model)
    pieces = stretches(original, _plain.text_of("--feedback", args.feedback), args.stretch)
    return Gathered(original, pieces, False if args.json else None)


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


# --- as llama-quantize takes them: IN [OUT] TYPE [NTHREADS], and its options --------------------

BARE = {name.lower(): number for name, number in FILE_TYPES.items()}  # types that a file may be of
KEEP = {
    "output_tensor_type": r"^output\.weight$",
    "token_embedding_type": r"^(per_layer_)?token_embd\.weight$",
}


def _llama_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of llama-quantize that ggmlq does not have under another name."""
    group = parser.add_argument_group("as in llama-quantize")
    flag(group, "--pure", "the positional TYPE means a type, not a mix")
    flag(group, "--leave-output-tensor", "do not change output.weight")
    group.add_argument("--output-tensor-type", metavar="TYPE", help="type of output.weight")
    group.add_argument("--token-embedding-type", metavar="TYPE", help="type of token_embd.weight")
    group.add_argument(
        "--override-kv", action="append", default=[], metavar="KEY=TYPE:VALUE",
        help="set metadata; TYPE is int, float, bool or str; may be repeated",
    )  # fmt: skip
    group.add_argument("--prune-layers", type=_layers, metavar="L0,L1,…", help="leave out these layers")
    group.add_argument(
        "--include-weights", action="append", default=[], metavar="TEXT",
        help="use the importance matrix only for tensors whose name contains TEXT; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--exclude-weights", action="append", default=[], metavar="TEXT",
        help="do not use it for tensors whose name contains TEXT; may be repeated",
    )  # fmt: skip
    flag(group, "--keep-split", "write the same parts as IN")


def _layers(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers; write 3,4,17")
    return sorted({int(number) for number in text.split(",")})


class Positional(NamedTuple):
    """The arguments after IN."""

    output: str | None
    type: str | None
    threads: int | None


def positional(rest: list[str], chosen: bool) -> Positional:
    """OUT, TYPE and NTHREADS; ``chosen``: an option names the type, so a single word is OUT."""
    threads = None
    if len(rest) > 1 and rest[-1].isdecimal() and (len(rest) > 2 or _is_type(rest[0])):
        threads = int(rest[-1])
        rest = rest[:-1]
        if not 1 <= threads <= 1 << 16:
            raise ConvertError(f"{threads} threads; write 1 or more, or nothing for all cores")
    if len(rest) > 2:
        raise ConvertError(
            f"{short(rest[2])} follows OUT and TYPE; llama-quantize's order is IN OUT TYPE "
            "NTHREADS, options go before"
        )
    if len(rest) == 2 and chosen:
        raise ConvertError(f"both {short(rest[1])} and an option say which type; drop one of them")
    if len(rest) == 1 and not chosen and _is_type(rest[0]):
        return Positional(None, rest[0], threads)
    return Positional(rest[0] if rest else None, rest[1] if len(rest) > 1 else None, threads)


def _is_type(word: str) -> bool:
    low = word.lower()
    return low == "copy" or low in BARE or ALIASES.get(low, low) in BY_NAME or word.isdecimal()


def type_of(word: str, pure: bool) -> tuple[str, bool]:
    """The type or mix that llama-quantize means by a name or a number, and whether it is a mix."""
    if word.lower() == "copy":
        raise ConvertError("COPY: nothing is quantized; `ggmlq copy IN OUT` copies, merges and splits")
    if word.isdecimal():
        named = {mix.number: mix.name for mix in MIXES} | {FILE_TYPES[n]: n for n in ("f32", "f16", "bf16")}
        if int(word[:9]) not in named:
            raise ConvertError(
                f"{short(word)} is no number of llama-quantize's types; `ggmlq formats` lists the mixes"
            )
        word = named[int(word)]
    low = word.lower()
    is_mix = ALIASES.get(low, low) in BY_NAME
    if is_mix and not pure:
        return BY_NAME[ALIASES.get(low, low)].name, True
    if is_mix and low not in BARE:
        return BY_NAME[ALIASES.get(low, low)].base, False
    return word, False


def name_beside(source: str, word: str) -> str:
    """The path to which llama-quantize writes without an argument."""
    return os.path.join(os.path.dirname(source), f"ggml-model-{word.upper()}.gguf")


def keep_rules(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The options about single tensors, as patterns and types."""
    from ..formats import FORMATS

    rules = [(pattern, kind) for key, pattern in KEEP.items() if (kind := getattr(args, key))]
    for _, kind in rules:
        FORMATS[kind]  # known, or the error that names what is near
    if args.leave_output_tensor:
        rules.insert(0, (KEEP["output_tensor_type"], "same"))
    return rules


def overridden(metadata: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """Metadata with keys from texts such as ``KEY=TYPE:VALUE``, which llama-quantize sets behind the type."""
    overrides = dict(_override(text) for text in texts)
    others = {key: value for key, value in metadata.items() if key not in overrides}
    first = {key: others.pop(key) for key in list(others) if key.startswith("general.")}
    return first | overrides | others


def _override(text: str) -> tuple[str, object]:
    from ..gguf import Typed

    key, _, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    try:
        if key and colon and kind == "int":
            number = int(value)
            return key, Typed(number, "uint32") if 0 <= number < 1 << 32 else number
        if key and colon and kind == "float":
            return key, Typed(float(value), "float32")
        if key and colon and kind == "bool" and value in ("true", "false"):
            return key, value == "true"
        if key and colon and kind == "str":
            return key, value
    except ValueError:  # no number
        pass
    raise ConvertError(
        f"--override-kv {short(text)}: it is KEY=TYPE:VALUE with TYPE int, float, bool (true, false) or str; "
        "write general.name=str:mine"
    )


# --- common to quantize and dequantize: options, and the text of a result -----------------------


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
    add_workers(parser)
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
        read = (args.input, args.imatrix, args.measure, args.feedback, args.text, args.tensor_types)
        _files.check_free([write_types], args.force, read=read)
        if os.path.abspath(write_types) in [os.path.abspath(path) for path, _ in files]:
            raise ConvertError(f"--write-types {write_types}: OUT has this name, too; name another file")
    if args.dry_run:
        report = Report([], [Done(step, None) for step in plan.steps], plan.notes)
    else:
        _files.check_free([path for path, _ in files], args.force)
        report = run(plan, args.output, keep_split=split, executor=executor)
        if plan.moments is not None:
            from . import _quality

            report = _quality.judged(plan, report, args)
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
