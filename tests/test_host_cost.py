"""Python calls of the package beside its kernels: a count is the same on any machine, where time is not."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.testing.rows import rows

HERE = str(Path(gq.__file__).parent)


def python_calls(work):
    """Calls of the package's functions while ``work()`` runs, by their names."""
    calls = Counter()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HERE):
            calls[code.co_qualname] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


BLOCKS = gq.quantize(rows("normal", 48, 64), "q4_0")
EXPERTS = gq.quantize(rows("normal", 48, 64).reshape(3, 16, 64), "q4_0")
ROWS = gq.quantize_scaled(rows("normal", 48, 256), "e4m3", (1, 128))
TILES = gq.quantize_scaled(rows("normal", 48, 256), "int8", (16, 128))


@pytest.mark.parametrize("index", [slice(3, 10), slice(None), slice(-5, None), 3, -1], ids=str)
@pytest.mark.parametrize(("w", "most"), [(BLOCKS, 4), (EXPERTS, 6), (ROWS, 7), (TILES, 7)], ids=str)
def test_whole_rows_are_taken_in_a_few_steps(w, most, index):
    index = index if index != 3 or len(w) > 3 else 2
    assert python_calls(lambda: w[index]).total() <= most
    assert np.array_equal(np.asarray(w[index]), np.asarray(w)[index])
