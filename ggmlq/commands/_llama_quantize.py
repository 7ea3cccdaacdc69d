"""Arguments as llama-quantize takes them: ``IN [OUT] TYPE [NTHREADS]`` and the options that it has."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any, NamedTuple

from ..base.filetype import FILE_TYPES
from ..base.mixes import ALIASES, BY_NAME, MIXES
from ..base.text import short
from ..errors import ConvertError

BARE = {name.lower(): number for name, number in FILE_TYPES.items()}  # types that a file may be of
KEEP = {
    "output_tensor_type": r"^output\.weight$",
    "token_embedding_type": r"^(per_layer_)?token_embd\.weight$",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of llama-quantize that ggmlq does not have under another name."""
    group = parser.add_argument_group("as in llama-quantize")
    group.add_argument("--pure", action="store_true", help="the positional TYPE means a type, not a mix")
    group.add_argument("--leave-output-tensor", action="store_true", help="do not change output.weight")
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
    group.add_argument("--keep-split", action="store_true", help="write the same parts as IN")


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
