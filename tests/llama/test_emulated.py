"""A build for another machine, in the folder that GGMLQ_EMULATED names: its kernels are judged, too.

tools/build-emulated.sh makes both. What the command says to wrong names is tried everywhere.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.check.cases import Case
from ggmlq.check.plan import Settings
from ggmlq.check.run import run_case
from ggmlq.cli import main
from ggmlq.llama import Bridge

FOLDER = os.environ.get("GGMLQ_EMULATED", "")
BUILD, EMULATOR = f"{FOLDER}/build", f"qemu-aarch64-static:{FOLDER}/root"
needs_one = pytest.mark.skipif(not FOLDER, reason="GGMLQ_EMULATED names no build of another machine")


@needs_one
@pytest.mark.parametrize("name", ["q4_0", "q5_K", "iq4_nl", "f16"])
def test_kernels_of_another_machine_are_right(name, fresh):
    with Bridge(BUILD, timeout=600, emulator=EMULATOR) as bridge:
        (device,) = bridge.devices()
        assert "NEON" in device.features
        for m, n, blocks in ((1, 33, 3), (9, 64, 2)):
            k = blocks * max(gq.formats[name].block_size, 32)
            case = Case(gq.formats[name], m, n, k, "normal", int(fresh.integers(1 << 30)))
            for buffer in ("", *device.layouts):
                outcome = run_case(bridge, case, Settings("CPU", "CPU", repeats=2, threads=2, repack=buffer))
                assert outcome.verdict in ("ok", "not run"), outcome.text


@needs_one
def test_weights_of_another_machine_are_ours(fresh):
    x = fresh.standard_normal((4, 256)).astype(np.float32)
    with Bridge(BUILD, timeout=600, emulator=EMULATOR) as bridge:
        assert np.array_equal(bridge.quantize(x, "q8_0").raw, gq.quantize(x, "q8_0").raw)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no-such-emulator:/", "no program"),
        ("sh:/nowhere", "has no python3"),
        ("sh", "no emulator and folder"),
    ],
)
def test_what_is_missing_is_said(text, says, capsys, tmp_path):
    (tmp_path / "libggml-base.so").write_bytes(b"")
    assert main(["check", "--lib", str(tmp_path), "--emulate", text]) == 2
    assert says in capsys.readouterr().err
