#!/usr/bin/env python3
"""Is somebody speaking? A GRU of 24 units in floats and in integers, on sounds that it never heard.

    python tools/voice.py [--sounds 40]

Weights are docs/voice.npz, which tools/voice_train.py made; sounds are made by tools/_voice.py.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from _page import table
from _voice import batch
from tqdm import tqdm

import ggmlq as gq
from ggmlq.gru import SaturationWarning

WEIGHTS = Path(__file__).parents[1] / "docs" / "voice.npz"
HEARD, NEW = 3, 4  # seeds: what calibration hears, and what is judged
WAYS: dict[str, Any] = {
    "int8": "int8", "mixed": "mixed", "mixed, h of 12 bits": {"h": {"bits": 12}}, "int16": "int16",
}  # fmt: skip


def network() -> tuple[gq.GRU, Any]:
    """The GRU, and what turns its states into one number that is above 0 where somebody speaks."""
    with np.load(WEIGHTS) as w:
        parts = [w[name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]
        weight, bias = w["out_weight"][0], float(w["out_bias"][0])
    return gq.GRU(*parts, order="rzn"), lambda y: y @ weight + bias


def rows(sounds: int = 40) -> list[tuple[str, ...]]:
    """Of each way: share of frames that are right, share that agree with the floats, bytes."""
    g, heard = network()
    g.observe(batch(HEARD, 16)[0])
    x, want = batch(NEW, sounds)
    plain = heard(g(x)[0]) > 0
    nbytes = sum(part.nbytes for part in (g.W, g.R, g.bx, g.br))
    found = [("float32", f"{(plain == want).mean():.1%}", "", str(nbytes), "")]
    for words, widths in tqdm(WAYS.items(), leave=False):
        f = g.fixed(widths)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SaturationWarning)
            said = heard(f(x)[0]) > 0
        tables = sum(f.codes[name].nbytes for name in f.codes if name.startswith("table"))
        share, agree = (f"{(said == other).mean():.1%}" for other in (want, plain))
        found.append((words, share, agree, str(f.nbytes - tables), str(tables)))
    return found


HEADER = ("numbers", "frames right", "as in floats", "bytes of weights", "of tables")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sounds", type=int, default=40, help="how many to judge, 3 seconds each")
    print(table(HEADER, rows(parser.parse_args().sounds)))


if __name__ == "__main__":
    main()
