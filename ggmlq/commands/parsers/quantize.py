"""``ggmlq quantize``: a model in a smaller type, with llama.cpp's bytes."""

from __future__ import annotations

import argparse

from . import _convert, _llama_quantize
from ._options import Commands, bits, count, declare, size

SUMMARY = "write a GGUF model in another type or mix, with llama.cpp's bytes"
ABOUT = """\
Quantize the tensors of IN that llama.cpp would quantize: all to one type (--type), to the types of one of
its mixes (q4_K_M), or to those that lose least within a size (--target, --size). Prints sizes and NMSE of
each tensor, and bits a weight. OUT is there in full or not at all.
"""
EXAMPLES = """\
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


def add(commands: Commands) -> None:
    """Declare ``ggmlq quantize`` with its options and examples."""
    parser = declare(commands, "quantize", "models", SUMMARY, ABOUT, EXAMPLES)
    _convert.add_options(parser, "[OUT] [TYPE] [NTHREADS]")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--type", help="q4_K, q8_0, f16, … or a mix such as q4_K_M")
    which.add_argument(
        "--target", type=bits, metavar="BITS",
        help="bits a weight at most, of all tensors: types are chosen that lose least",
    )  # fmt: skip
    which.add_argument(
        "--size", type=size, metavar="SIZE", help="the same with the size of the file: 5GiB, 800M"
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
        "--sample", type=count, metavar="N",
        help="weights of a large tensor that are encoded in each type to measure its error (131072)",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-types", "--tensor-type-file", metavar="FILE",
        help="types by name: PATTERN=TYPE, one a line, as llama-quantize takes them; --keep goes before",
    )  # fmt: skip
    parser.add_argument("--write-types", metavar="FILE", help="write the types of this model as such a file")
