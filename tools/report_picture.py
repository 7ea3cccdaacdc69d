#!/usr/bin/env python3
"""The pictures of docs/report.md: a report on a small made-up model, and its chart of errors.

    python tools/report_picture.py [--check] [--page]

docs/report.svg is a chart as the page has it. --page also opens the page in Chromium and writes its upper
part as docs/report.png; --check only says whether the chart is what the code draws.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _page import settle

import ggmlq as gq
from ggmlq.pages import depth_lines, document
from ggmlq.report.figures import error_items

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, WIDE, LAYERS = 256, 512, 12
SHAPES = {
    "attn_q": (WIDTH, WIDTH), "attn_k": (64, WIDTH), "attn_v": (64, WIDTH), "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (WIDE, WIDTH), "ffn_up": (WIDE, WIDTH), "ffn_down": (WIDTH, WIDE),
}  # fmt: skip


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
    original, made = folder / "small-f16.gguf", folder / "small-q4_K_M.gguf"
    gq.save(original, stored, metadata)
    gq.convert.quantize(original, made, "q4_K_M")
    return original, made


def main() -> int:
    """Make the model, look at it, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether the chart is fresh")
    parser.add_argument("--page", action="store_true", help="also the page, as Chromium shows it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        original, made = models(Path(folder))
        found = gq.report.examine(made, original)
        lines = depth_lines(error_items(found.tensors), "Error against depth", "NMSE")
        assert lines is not None
        if args.page:
            found.write(Path(folder) / "report.html")
            photograph(Path(folder) / "report.html", DOCS / "report.png")
    return settle(DOCS / "report.svg", document([lines]), args.check)


def photograph(page: Path, picture: Path) -> None:
    """The upper part of a page, as a browser shows it."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("--page: there is no Chromium on the path; apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1500"]
    command = [program, *options, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    sys.exit(main())
