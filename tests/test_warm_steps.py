"""A step of a model, or of a cache, that comes again: only its work is done."""

from __future__ import annotations

import subprocess
import sys

from ggmlq.testing.models import tiny_model

WARM = """
import signal, sys
import numpy as np, ggmlq as gq
from ggmlq.arrays import weights
model, cache = gq.model.load(sys.argv[1]), gq.KVCache(1, 32, 99)
k, steps = np.ones((1, 1, 1, 32), np.float32), model.generate([1, 5, 6], 9)
def turn():
    cache.append(k, k)
    return cache.attend(k), next(steps)
for _ in range(4): turn()
print("numba" in sys.modules)
def refused(*_): raise AssertionError("this is for errors, or for the first call")
signal.getsignal = signal.signal = signal.valid_signals = sys.stderr.isatty = refused
weights.written = gq.QuantArray.__repr__ = gq.KVCache.__repr__ = refused
for _ in range(3): turn()
print("right")
"""


def test_a_warm_step_makes_no_words_and_asks_for_no_handlers(tmp_path):
    """Handlers were asked for as long as Numba was not imported, which code of packs does not need."""
    told = [sys.executable, "-c", WARM, str(tiny_model(tmp_path / "m.gguf"))]
    done = subprocess.run(told, check=False, capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("right\n"), done.stdout + done.stderr
