"""Kernels of scaled products in Numba's simulator: whole blocks, their copies, tensor cores and scales.

The simulator is chosen when Numba is imported, so it has a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from ggmlq.codes import CODES
from ggmlq.cuda.intrinsics import codes8

PROGRAM = Path(__file__).with_name("simulated_codes8.py")


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("kind", "rounds"), [("plain", 1), ("integer", 1), ("float", 1)])
def test_kernels(kind, rounds, fresh):
    seed = str(fresh.integers(1 << 31))
    run = subprocess.run(
        [sys.executable, str(PROGRAM), seed, kind, str(rounds)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{seed} {kind} {rounds}: {run.stderr[-3000:]}"


def halves(word, widened):
    """The four halves that a word of codes becomes."""
    return np.array(widened(np.int32(word)), np.uint32).view(np.float16)


def raised(word):
    return codes8.lower_raised.meaning(word), codes8.upper_raised.meaning(word)


def by_bits(word):
    """The steps of halves_of_e4m3_by_bits in plain Python."""
    found = []
    for r in map(int, raised(word)):
        moved = (r & 0x80008000) | (r >> 1 & 0x3F803F80)
        carried = ((r & 0x7F007F00) + 0x01000100) & 0x80008000
        both = np.array([moved | carried >> 1], np.uint32)
        found.append(codes8.product_of_halves.meaning(both[0], codes8.TIMES_256))
    return found


@pytest.mark.parametrize("code", ["e4m3", "e5m2"])
def test_every_code_is_a_half(code, fresh):
    """All codes at all four places, and no place touches another."""
    codes = fresh.permutation(np.repeat(np.arange(256, dtype=np.uint8), 4)).reshape(-1, 4)
    for four in codes:
        word = four.view(np.int32)[0]
        found = halves(word, raised if code == "e5m2" else by_bits)
        np.testing.assert_array_equal(found.astype(np.float32), CODES[code].decode(four))


def test_dp4a_of_either_sign(fresh):
    for a, b in (("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")):
        x, y = (fresh.integers(0, 256, 4, np.uint8) for _ in range(2))
        kinds = {"s8": np.int8, "u8": np.uint8}
        want = 5 + int(x.view(kinds[a]).astype(int) @ y.view(kinds[b]).astype(int))
        assert codes8.dp4a(a, b).meaning(x.view(np.int32)[0], y.view(np.int32)[0], np.int32(5)) == want


@pytest.mark.cuda
def test_the_instruction_widens_as_the_bits_do(cupy):
    """``cvt.rn.f16x2.e4m3x2`` and the bit trick, over all codes."""
    from ggmlq.cuda.intrinsics.language import cuda, int32, uint32
    from ggmlq.cuda.machine import device
    from ggmlq.cuda.machine.launch import Kernel, array

    if device.capability() < (8, 9):
        pytest.skip("GPUs before 8.9 do not have the instruction")

    def kernel_of(widen):
        def widened(words, out):
            i = cuda.grid(1)
            if i < words.size:
                v = widen(words[i])
                out[i, 0], out[i, 1] = v[0], v[1]

        kinds = array(int32, 1), array(uint32, 2)
        return Kernel(f"widened {widen}", widened, *kinds, threads=64, least=(8, 9))

    words = cupy.asarray(np.arange(256, dtype=np.uint8).view(np.int32))
    for widen in (codes8.halves_of_e4m3, codes8.halves_of_e4m3_by_bits):
        out = cupy.zeros((64, 2), np.uint32)
        kernel_of(widen)((1,), (64,), words, out)
        found = out.get().view(np.float16).reshape(-1).astype(np.float32)
        np.testing.assert_array_equal(found, CODES["e4m3"].decode(np.arange(256, dtype=np.uint8)))
