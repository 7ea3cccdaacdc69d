"""Quantizers of scaled arrays for GPUs, run thread by thread on the host: the bits of codes/scaling.py.

They run in a process of their own, for the simulator is chosen when Numba is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed (extra test)")

PROGRAM = Path(__file__).with_name("simulated_scaled.py")


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("capability", ["7.5", "9.0"])
def test_the_bits_of_the_host(capability, fresh):
    seed = str(fresh.integers(10**9))
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), seed, capability, "6"],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"seed {seed}: {run.stderr[-3000:]}"
