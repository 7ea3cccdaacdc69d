"""``ggmlq convert``: a checkpoint of Hugging Face into GGUF, or a GGUF file back to safetensors."""

from __future__ import annotations

import argparse
import os
from math import prod
from typing import TYPE_CHECKING, Any

from ..base.folding import folded
from ..base.text import count as counted
from ..base.text import size
from ..errors import ConvertError
from . import _files, _plain
from ._options import Commands, count, declare, shared

if TYPE_CHECKING:
    from ..gguf import GGUFFile

SUMMARY = "convert safetensors of Hugging Face to GGUF, or back"
ABOUT = """\
Convert between checkpoints of Hugging Face (safetensors, config.json, tokenizer) and GGUF. The GGUF file is
that of llama.cpp's convert_hf_to_gguf.py, for llama, mistral, mixtral, qwen2, qwen3, their MoE, and gemma 1
to 3. FP8 and int8 weights are decoded with their scales. Anything unknown is an error that names it. OUT is
written in full or not at all. A mix (--type q4_K_M) needs a temporary file beside OUT.
"""
EXAMPLES = """\
  ggmlq convert Qwen3-8B/ qwen3-8b.gguf
  ggmlq convert Qwen3-8B/ qwen3-8b-q4_K_M.gguf --type q4_K_M
  ggmlq convert Qwen3-8B-FP8/ qwen3-8b-q8_0.gguf --type q8_0
  ggmlq convert Llama-3.2-1B/ small.gguf --dry-run
  ggmlq convert model-q4_K.gguf folder/ --type bf16       (back to safetensors)
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "convert", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "input", metavar="IN", help="the folder of a checkpoint, a file of it, or a .gguf file"
    )
    parser.add_argument(
        "output",
        metavar="OUT",
        help="the new .gguf file; if IN is a .gguf file, a folder or a .safetensors file",
    )
    parser.add_argument(
        "--type", default=None, help="type of matrices: auto (default: bf16 or f16, like the checkpoint), "
        "f32, f16, bf16, q8_0, q4_K …, or a mix such as q4_K_M; from GGUF: f32 (default), f16 or bf16",
    )  # fmt: skip
    parser.add_argument(
        "--pre",
        metavar="NAME",
        help="name of the pre-tokenizer, if it is not recognised: llama-bpe, qwen2 …",
    )
    parser.add_argument("--threads", type=count, metavar="N", help="number of threads (default: all cores)")
    shared(parser, "--dry-run", "--force", "--all-tensors", "--json")


def run(args: argparse.Namespace) -> int:
    from ..base.threads import set_num_threads
    from ..gguf import GGUFFile
    from ..safetensors import either as files

    if args.threads is not None:
        set_num_threads(args.threads)
    with files.open(args.input) as file:
        _check_apart(file.paths, args.output)
        _check_kinds(file, args)
        if not args.dry_run:
            _files.check_free(_written(file, args.output), args.force)
        facts = _back(file, args) if isinstance(file, GGUFFile) else _forward(file, args)
    if args.json:
        _plain.print_json(facts)
        return 0
    tensors = facts["tensors"]
    shown = tensors if args.all_tensors else folded(tensors)
    print(_plain.tensor_table(shown, any(fact.get("tensors", 1) > 1 for fact in shown)))
    total = sum(t["bytes"] for t in tensors)
    print(
        f"{facts['architecture'] or 'unknown architecture'}: {counted(len(tensors), 'tensor')}, {size(total)}"
    )
    for note in facts["notes"]:
        print(f"note: {_plain.name(note)}")
    print("\n".join(f"wrote {_plain.name(p)}" for p in facts["files"]) or "nothing was written (--dry-run)")
    return 0


def _written(file: Any, output: str) -> list[str]:
    """The files that OUT stands for."""
    from ..checkpoint.backtokens import FILES
    from ..gguf import GGUFFile
    from ..safetensors.file import ENDING

    if not isinstance(file, GGUFFile) or output.endswith(ENDING):
        return [output]
    return [os.path.join(output, name) for name in ("model" + ENDING, "config.json", *FILES)]


def _check_apart(sources: tuple[str, ...], target: str) -> None:
    for path in sources:
        if os.path.exists(target) and os.path.samefile(path, target):
            raise ConvertError(f"convert {path!r} to {target!r}: they are one file; name another")


def _check_kinds(file: Any, args: argparse.Namespace) -> None:
    from ..gguf import GGUFFile
    from ..safetensors.file import ENDING

    request = f"convert {args.input!r} to {args.output!r}"
    if not isinstance(file, GGUFFile) and args.output.endswith(ENDING):
        raise ConvertError(f"{request}: both are safetensors; name a .gguf file")
    if isinstance(file, GGUFFile) and args.output.lower().endswith(".gguf"):
        raise ConvertError(
            f"{request}: both are GGUF; a folder or a .safetensors file is made of one; `ggmlq quantize` "
            "writes GGUF of other types, `ggmlq copy` of other parts, keys or byte order"
        )


def _forward(file: Any, args: argparse.Namespace) -> dict[str, Any]:
    from ..checkpoint import togguf

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
        "notes": list(plan.notes),
        "files": written,
    }


def _back(file: GGUFFile, args: argparse.Namespace) -> dict[str, Any]:
    from .. import checkpoint
    from ..checkpoint import back

    if args.pre:
        raise ConvertError(f"--pre {args.pre} with {args.input}: a GGUF file says it itself; leave it out")
    kind = args.type or "f32"
    result = back.plan(file, kind) if args.dry_run else checkpoint.to_safetensors(file, args.output, kind)
    tensors = [
        {
            "name": name,
            "type": x.format.name,
            "shape": list(x.shape),
            "bytes": prod(x.shape) * x.format.dtype.itemsize,
        }
        for name, x in result.tensors.items()
    ]
    return {
        "architecture": result.architecture,
        "tensors": tensors,
        "notes": result.notes,
        "files": result.files,
    }
