"""The pictures of docs/report.md: a report on a small made-up model, and its chart of errors.

docs/report.svg is a chart as the page has it, docs/report.png the page's upper part as Chromium shows it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import ggmlq as gq
from ggmlq.pages import depth_lines, document
from ggmlq.report.page import error_items

from . import Options, Texts

OPTIONS = {"--page": {"action": "store_true", "help": "also the page, as Chromium shows it"}}
WIDTH, WIDE, LAYERS = 256, 512, 12
SHAPES = {
    "attn_q": (WIDTH, WIDTH), "attn_k": (64, WIDTH), "attn_v": (64, WIDTH), "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (WIDE, WIDTH), "ffn_up": (WIDE, WIDTH), "ffn_down": (WIDTH, WIDE),
}  # fmt: skip


def texts(options: Options) -> Texts:
    """The chart, and with --page the page."""
    with tempfile.TemporaryDirectory() as folder:
        original, quantized = models(Path(folder))
        report = gq.report.examine(quantized, original)
        lines = depth_lines(error_items(report.tensors), "Error against depth", "NMSE")
        assert lines is not None
        yield "docs/report.svg", document([lines])
        if options.page:
            report.write(Path(folder) / "report.html")
            yield "docs/report.png", photograph(Path(folder) / "report.html")


def models(folder: Path) -> tuple[Path, Path]:
    """An original with the habits of real ones, heavy tails and one loud column, and its q4_K_M."""
    rng = np.random.default_rng(22)
    tensors = {"token_embd.weight": rng.standard_normal((512, WIDTH)) / 50}
    tensors["token_embd.weight"][400:416] = 0
    for layer in range(LAYERS):
        for role, (n, k) in SHAPES.items():
            x = rng.standard_t(3 + layer % 4, (n, k)) * (1 + layer / 6) / 50
            if role == "ffn_down" and layer > 8:
                x[:, 17] *= 30
            tensors[f"blk.{layer}.{role}.weight"] = x
        tensors[f"blk.{layer}.attn_norm.weight"] = 1 + rng.standard_normal(WIDTH) / 10
    stored = {n: x.astype(np.float16 if x.ndim > 1 else np.float32) for n, x in tensors.items()}
    metadata = {"general.architecture": "llama", "general.name": "A small model", "llama.block_count": LAYERS,
                "llama.context_length": 2048, "llama.embedding_length": WIDTH,
                "llama.feed_forward_length": WIDE}  # fmt: skip
    original, quantized = folder / "small-f16.gguf", folder / "small-q4_K_M.gguf"
    gq.save(original, stored, metadata)
    gq.convert.quantize(original, quantized, "q4_K_M")
    return original, quantized


def photograph(page: Path) -> bytes:
    """The upper part of a page, as a browser shows it."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("a picture of a page: there is no Chromium on the path; apt-get install chromium")
    picture = page.with_suffix(".png")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1500"]
    command = [program, *options, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return picture.read_bytes()
