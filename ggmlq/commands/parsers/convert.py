"""``ggmlq convert``: a checkpoint of Hugging Face into GGUF, or a GGUF file back to safetensors."""

from __future__ import annotations

from ._options import Commands, add_all_tensors, add_force, add_json, count, declare

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
    """Declare ``ggmlq convert`` with its options and examples."""
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
    parser.add_argument(
        "--dry-run", action="store_true", help="write nothing, only show the new types and sizes"
    )
    add_force(parser)
    add_all_tensors(parser)
    add_json(parser)
