"""The scripts of docs/gallery run as they are, in an empty folder, and say what their pages promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq.base.missing import has

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "gallery"
SAID = {  # what each must find
    "look_into_a_model": ["<q4_K: id 12", "row 5 has 0.000", "row 77 has 3", "x @ q.T: ["],
    "is_my_kernel_right": ["fault: correct", "fault: nibble-order", "fault: offset-missing"],
    "quantize_to_a_size": ["recipe: 5.", "no choice of types has less", "q5_0 "],
    "fp8_product": ["group", "is the same: True", "e4m3      500  0x7e"],
    "feed_forward_sharded": ["rows 768 + 768", "the same on each", "the same product"],
    "fixed_point_gru": ["int16 ", "oracle in int64: True"],
    "words_to_phonemes": ["pass the path of checkpoint20.npz", "nothing was run"],
    "llama_in_torch": ["q4_K, 4.5 bits a weight", "KiB packed", "tokens/s"],
    "lora_on_four_bits": ["LoRA(", "step  60", "blocks as before: True"],
    "image_block_in_diffusers": ["replaced GGUFLinear.forward", "put back", "packed "],
    "from_three_loops_to_the_summit": [
        "98304 weights decoded",
        "the oracle's result: True",
        "decoded once: 12288 weights; the same result: True",
        "roofs: weights of q4_0",
        "cpu:panels",
        "clocks of a read: 8",
        "clocks of a read: 1",
        "a block for each tile: 224 steps; equal shares: 119 steps",
        "eight parts is the whole one: True",
    ],
    "cache_in_blocks": ["2048 positions, 32 heads", "q4_0 ", "A rotation takes back"],
    "positions_on_the_host": ["6 pieces of 700 positions", "one softmax"],
    "whole_model": ["small: qwen3, 2 layers", "generated: ["],
}
NEEDS = {"llama_in_torch": "torch", "lora_on_four_bits": "torch", "image_block_in_diffusers": "diffusers"}


def run(script, folder, *arguments):
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / f"{script}.py", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.drawn(3)
@pytest.mark.parametrize("script", SAID)
def test_it_runs_and_leaves_nothing(script, tmp_path):
    if script in NEEDS and not has(NEEDS[script]):
        pytest.skip(f"{NEEDS[script]} is not installed")
    said = run(script, tmp_path)
    for words in SAID[script]:
        assert words in said
    assert not list(tmp_path.iterdir())


def test_all_are_here_and_on_their_page():
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == SAID.keys()
    assert scripts == set(re.findall(r"\(gallery/(\w+)\.py\)", (ROOT / "docs" / "gallery.md").read_text()))


@pytest.mark.slow
def test_the_whole_model_is_that_of_the_library(tmp_path):
    """A page of NumPy and ``gq.model`` give the same greedy tokens while the best one has a margin."""
    model = family_model(tmp_path / "own.gguf", "llama3", seed=5)
    said = run("whole_model", tmp_path, model, "Hello", "--generate", "3")
    m = gq.model.load(model)
    tokens = m.tokenizer.encode("Hello")
    rows = [row.split() for row in said.splitlines()[1:6]]
    logits = m.logits(tokens)[-1]
    for value, token, *_ in rows:
        assert abs(float(value) - logits[int(token)]) < 0.1 * logits.std() + 0.1
    assert len(said.split("generated: [")[1].split("]")[0].split(",")) <= 3


@pytest.mark.slow
def test_a_model_of_ones_own(fresh, tmp_path):
    names = [f"blk.{i}.ffn_up.weight" for i in range(3)]
    tensors = {name: fresh.standard_normal((32 * (i + 1), 256), np.float32) for i, name in enumerate(names)}
    model = tmp_path / "own.gguf"
    gq.save(model, tensors, {"general.architecture": "llama", "llama.block_count": 3})
    assert names[2] in run("quantize_to_a_size", tmp_path, model)
    blocks = {name: gq.quantize(w, "q4_K") for name, w in tensors.items()}
    gq.save(model, blocks | {"norm": np.ones(4, np.float32)})
    assert f"{names[2]}: <q4_K" in run("look_into_a_model", tmp_path, model)
