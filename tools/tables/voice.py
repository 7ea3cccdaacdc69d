"""The table of a voice in bench/notes/gru.md: a GRU of 24 units that hears whether somebody speaks.

It listens in floats and in integers, on sounds that it never heard. Weights are docs/voice.npz, which
tools/voice_train.py made; sounds are made by tools/tables/_sounds.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from tqdm import tqdm

import ggmlq as gq
from ggmlq.gru import SaturationWarning

from . import ROOT, Options, Texts, table
from ._sounds import batch

WEIGHTS = ROOT / "docs" / "voice.npz"
CALIBRATION, TEST = 3, 4  # seeds of sounds
NUMBERS: dict[str, Any] = {
    "int8": "int8", "mixed": "mixed", "mixed, h of 12 bits": {"h": {"bits": 12}}, "int16": "int16",
}  # fmt: skip
OPTIONS = {
    "--sounds": {"type": int, "default": 40, "help": "how many to judge, 3 seconds long (default: 40)"}
}
HEADER = ("numbers", "frames right", "as in floats", "bytes of weights", "of tables")


def texts(options: Options) -> Texts:
    """A row for each kind of numbers."""
    yield "bench/notes/gru.md", table(HEADER, rows(options.sounds))


def network() -> tuple[gq.GRU, Any]:
    """The GRU, and a function of its states that is above 0 where somebody speaks."""
    with np.load(WEIGHTS) as w:
        parts = [w[name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]
        weight, bias = w["out_weight"][0], float(w["out_bias"][0])
    return gq.GRU(*parts, order="rzn"), lambda y: y @ weight + bias


def rows(sounds: int) -> list[tuple[str, ...]]:
    """For each kind of numbers the share of frames that are right, that agree with the floats, and bytes."""
    g, speaks = network()
    g.observe(batch(CALIBRATION, 16)[0])
    x, truth = batch(TEST, sounds)
    floats = speaks(g(x)[0]) > 0
    nbytes = sum(part.nbytes for part in (g.W, g.R, g.bx, g.br))
    lines = [("float32", f"{(floats == truth).mean():.1%}", "", str(nbytes), "")]
    for name, widths in tqdm(NUMBERS.items(), leave=False):
        f = g.fixed(widths)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SaturationWarning)
            answers = speaks(f(x)[0]) > 0
        tables = sum(f.codes[name].nbytes for name in f.codes if name.startswith("table"))
        right, agree = (f"{(answers == other).mean():.1%}" for other in (truth, floats))
        lines.append((name, right, agree, str(f.nbytes - tables), str(tables)))
    return lines
