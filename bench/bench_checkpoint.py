"""Checkpoints to GGUF and back, beside ``cp`` and beside what NumPy needs for the same numbers.

    python bench/bench_checkpoint.py [--folder DIR] [--megabytes 1024] [--rounds 3] [--fp8]

A llama of random bfloat16 (``--fp8``: of 8-bit floats with a scale for every 128 x 128), read from the page
cache, written and synced. Each figure is the median over processes of their own, in turns; MB/s are of the
bytes read, without the time to import. NumPy's program makes float32 of bfloat16 a few MiB at a time and
writes them: the least that such a conversion does. Memory is the most that a process had of its own at a
time (RssAnon, looked at every 5 ms), beyond what it had when the work began.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

from bench.bench_gguf import fresh, memory, timed

HIDDEN, FEED, VOCABULARY, TILE = 2048, 5632, 32000, 128
PROJECTIONS = (
    ("self_attn.q_proj", HIDDEN, HIDDEN),
    ("self_attn.k_proj", HIDDEN // 4, HIDDEN),
    ("self_attn.v_proj", HIDDEN // 4, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("mlp.gate_proj", FEED, HIDDEN),
    ("mlp.up_proj", FEED, HIDDEN),
    ("mlp.down_proj", HIDDEN, FEED),
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FEED,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}  # fmt: skip
QUANTIZED = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [TILE, TILE]}}


def main() -> None:
    """Measure everything and print a table for bench/notes/files.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", help="where files are written; a temporary folder if not given")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; medians are shown")
    parser.add_argument("--fp8", action="store_true", help="a checkpoint of 8-bit floats")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(watched(*args.child)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows = measured(Path(folder), args)
    print("| what | MB/s | of cp and sync | memory of its own, MB |\n|---|---|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


def measured(folder: Path, args: argparse.Namespace) -> list[list[str]]:
    """The rows of the table, one for each way to convert."""
    model, back = folder / "model.safetensors", folder / "f16.gguf"
    make(model, args.megabytes, args.fp8)
    child("to f16", model, keep=back)
    names = [name for name in WAYS if not (args.fp8 and name == NUMPY)]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(args.rounds + 1):
        for name, figures in runs.items():
            run = child(name, back if name in BACK else model)
            if turn:  # before the first one, what is compiled was not in the cache
                figures.append(run)
    medians = {
        name: {key: statistics.median(figure[key] for figure in figures) for key in figures[0]}
        for name, figures in runs.items()
    }
    roof = medians["cp and sync"]["speed"]
    rows = [
        [name, f"{one['speed']:.0f}", f"{100 * one['speed'] / roof:.0f} %", f"{one['memory'] / 1e6:.0f}"]
        for name, one in medians.items()
    ]
    return [["the largest tensor, as float32", "", "", f"{4e-6 * VOCABULARY * HIDDEN:.0f}"], *rows]


def child(name: str, source: Path, keep: Path | None = None) -> dict[str, float]:
    """Run one way in a process of its own."""
    target = Path(fresh(str(source)))
    command = [sys.executable, __file__, "--child", name, str(source)]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if keep:
        target.rename(keep)
    else:
        target.unlink()
    return figures


def watched(name: str, source: str) -> dict[str, float]:
    """Speed of one way, and the most memory that it has at a time."""
    import ggmlq as gq

    gq.checkpoint, gq.safetensors  # noqa: B018  # imported before the clock runs
    before, most, done = memory(), 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, memory())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        seconds, _ = timed(lambda: WAYS[name](source, source + ".copy"))
    finally:
        done.set()
        watcher.join()
    return {"speed": os.path.getsize(source) / 1e6 / seconds, "memory": max(0, most - before)}


# --- ways ---------------------------------------------------------------------------------


def copied(source: str, target: str) -> None:
    """A copy by the system's cp, which may stay in memory."""
    subprocess.run(["cp", source, target], check=True)


def synced(source: str, target: str) -> None:
    """A copy by cp, synced to the disk."""
    copied(source, target)
    subprocess.run(["sync", target], check=True)


def with_numpy(source: str, target: str) -> None:
    """The values as float32, by NumPy and without a format around them."""
    import numpy as np

    bits = np.memmap(source, "<u2", "r", os.path.getsize(source) % 2)
    with open(target, "wb") as file:
        for start in range(0, len(bits), 1 << 21):
            wide = bits[start : start + (1 << 21)].astype(np.uint32)
            wide <<= 16
            file.write(wide.data)
        file.flush()
        os.fsync(file.fileno())


def converted(kind: str) -> Callable[[str, str], object]:
    """A function that converts a checkpoint to GGUF."""

    def run(source: str, target: str) -> object:
        import ggmlq as gq

        return gq.checkpoint.to_gguf(source, target, kind)

    return run


def returned(kind: str) -> Callable[[str, str], object]:
    """A function that converts GGUF back to safetensors."""

    def run(source: str, target: str) -> object:
        import ggmlq as gq

        result = gq.checkpoint.to_safetensors(source, target + ".safetensors", kind)
        os.replace(target + ".safetensors", target)
        return result

    return run


NUMPY = "NumPy, bf16 to f32, synced"
WAYS: dict[str, Callable[[str, str], object]] = {
    "cp": copied,
    "cp and sync": synced,
    NUMPY: with_numpy,
    **{f"to {kind}": converted(kind) for kind in ("bf16", "f16", "f32", "q8_0", "q4_K")},
    **{f"f16 GGUF back, {kind}": returned(kind) for kind in ("f16", "f32")},
}
BACK = tuple(name for name in WAYS if "back" in name)


# --- the checkpoint -----------------------------------------------------------------------


def make(path: Path, megabytes: int, fp8: bool) -> None:
    """Write a checkpoint with enough layers. All layers hold the same numbers: no time depends on them."""
    import numpy as np

    import ggmlq as gq

    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(VOCABULARY * HIDDEN, np.float32)

    def matrix(rows: int, columns: int) -> Any:
        return numbers[: rows * columns].reshape(rows, columns)

    def encoded(x: Any) -> Any:
        return gq.quantize_scaled(x, "e4m3", (TILE, TILE)) if fp8 else gq.quantize(x, "bf16")

    table = gq.quantize(matrix(VOCABULARY, HIDDEN), "bf16")
    tensors: dict[str, Any] = {"model.embed_tokens.weight": table, "lm_head.weight": table}
    norm = gq.quantize(np.ones(HIDDEN, np.float32), "bf16")
    tensors["model.norm.weight"] = norm
    matrices = {part: encoded(matrix(*shape)) for part, *shape in PROJECTIONS}
    layer = sum(x.nbytes for x in matrices.values())
    layers = max(1, round((megabytes * 1e6 - 2 * table.nbytes) / layer))
    for n in range(layers):
        tensors |= {f"model.layers.{n}.{part}.weight": x for part, x in matrices.items()}
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{n}.{part}.weight"] = norm
    gq.save(path, tensors, {"format": "pt"})
    vocabulary = {f"token{i}": i for i in range(VOCABULARY)}
    words = {"model": {"type": "BPE", "byte_fallback": True, "vocab": vocabulary, "merges": []}}
    config = CONFIG | {"num_hidden_layers": layers} | (QUANTIZED if fp8 else {})
    path.with_name("config.json").write_text(json.dumps(config))
    path.with_name("tokenizer.json").write_text(json.dumps(words))


if __name__ == "__main__":
    main()
