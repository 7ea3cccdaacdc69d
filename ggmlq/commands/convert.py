"""``ggmlq convert``: a checkpoint of Hugging Face into GGUF, or a GGUF file back to safetensors."""

from __future__ import annotations

import argparse
import os
from math import prod
from typing import Any

from .. import checkpoint, files
from ..checkpoint import back, togguf
from ..errors import ConvertError
from ..gguf import GGUFFile
from ..safetensors.place import ENDING
from ..terminal import table
from ..text import size
from ..threads import set_num_threads
from . import _plain, _sizes

ABOUT = """\
Convert between checkpoints of Hugging Face (safetensors, config.json, tokenizer) and GGUF. To GGUF as
llama.cpp's convert_hf_to_gguf.py does, for llama, mistral, mixtral, qwen2, qwen3, their MoE, and gemma 1 to
3; FP8 and int8 weights go through their scales. What is not known is an error that names it. OUT is there in
full or not at all.
"""
EXAMPLES = """\
examples:
  ggmlq convert Qwen3-8B/ qwen3-8b.gguf
  ggmlq convert Qwen3-8B-FP8/ qwen3-8b-q8_0.gguf --type q8_0
  ggmlq convert Llama-3.2-1B/ small.gguf --dry-run
  ggmlq convert model-q4_K.gguf folder/ --type bf16       (back to safetensors)
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "convert",
        help="safetensors of Hugging Face to GGUF, or back",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "input", metavar="IN", help="the folder of a checkpoint, a file of it, or a .gguf file"
    )
    parser.add_argument(
        "output", metavar="OUT", help="the .gguf file; for a GGUF file a folder or a .safetensors file"
    )
    parser.add_argument(
        "--type", default=None, help="of matrices: auto (default: bf16 or f16, as the checkpoint), f32, f16, "
        "bf16, q8_0, q4_K …; from GGUF f32 (default), f16 or bf16",
    )  # fmt: skip
    parser.add_argument(
        "--pre",
        metavar="NAME",
        help="the name of the pre-tokenizer, where nothing recognises it: llama-bpe, qwen2 …",
    )
    parser.add_argument("--threads", type=_sizes.count, metavar="N", help="threads; all cores if not given")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be written")
    _sizes.add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.threads is not None:
        set_num_threads(args.threads)
    with files.open(args.input) as file:
        _check_apart(file.paths, args.output)
        _check_kinds(file, args)
        if not args.dry_run:
            _sizes.check_free(_written(file, args.output), args.force)
        facts = _back(file, args) if isinstance(file, GGUFFile) else _forward(file, args)
    if args.json:
        _plain.print_json(facts)
        return 0
    rows = [
        [_plain.name(t["name"]), t["type"], " x ".join(map(str, t["shape"])) or "scalar", size(t["bytes"])]
        for t in facts["tensors"]
    ]
    print(table(["tensor", "type", "shape", "size"], rows))
    total = sum(t["bytes"] for t in facts["tensors"])
    print(f"{facts['architecture'] or 'unknown architecture'}: {len(rows)} tensors, {size(total)}")
    for note in facts["notes"]:
        print(f"note: {_plain.name(note)}")
    print("\n".join(f"wrote {_plain.name(p)}" for p in facts["files"]) or "nothing was written (--dry-run)")
    return 0


def _written(file: Any, output: str) -> list[str]:
    """The files that OUT stands for."""
    if not isinstance(file, GGUFFile) or output.endswith(ENDING):
        return [output]
    return [os.path.join(output, name) for name in ("model" + ENDING, "config.json")]


def _check_apart(sources: tuple[str, ...], target: str) -> None:
    for path in sources:
        if os.path.exists(target) and os.path.samefile(path, target):
            raise ConvertError(f"convert {path!r} to {target!r}: they are one file; name another")


def _check_kinds(file: Any, args: argparse.Namespace) -> None:
    asked = f"convert {args.input!r} to {args.output!r}"
    if not isinstance(file, GGUFFile) and args.output.endswith(ENDING):
        raise ConvertError(f"{asked}: both are safetensors; name a .gguf file")
    if isinstance(file, GGUFFile) and args.output.lower().endswith(".gguf"):
        raise ConvertError(
            f"{asked}: both are GGUF; a folder or a .safetensors file is made of one; `ggmlq quantize` "
            "writes GGUF of other types, `ggmlq copy` of other parts, keys or byte order"
        )


def _forward(file: Any, args: argparse.Namespace) -> dict[str, Any]:
    plan = togguf.plan(file, args.type or "auto", args.pre)
    written = [] if args.dry_run else togguf.write(plan, args.output)
    tensors = [
        {"name": t.name, "type": t.format.name, "shape": list(t.values.shape), "bytes": t.nbytes}
        for t in plan.tensors
    ]
    keys = {key: getattr(value, "value", value) for key, value in plan.metadata.items()}
    return {
        "architecture": plan.architecture,
        "tensors": tensors,
        "metadata": keys,
        "notes": [],
        "files": written,
    }


def _back(file: GGUFFile, args: argparse.Namespace) -> dict[str, Any]:
    if args.pre:
        raise ConvertError(f"--pre {args.pre} with {args.input}: the way back has no tokenizer; leave it out")
    kind = args.type or "f32"
    made = back.plan(file, kind) if args.dry_run else checkpoint.to_safetensors(file, args.output, kind)
    tensors = [
        {
            "name": name,
            "type": x.format.name,
            "shape": list(x.shape),
            "bytes": prod(x.shape) * x.format.dtype.itemsize,
        }
        for name, x in made.tensors.items()
    ]
    return {"architecture": made.architecture, "tensors": tensors, "notes": made.notes, "files": made.files}
