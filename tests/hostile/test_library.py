"""A library that does its worst in every function of the bridge."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from worker_processes import ASK, CHECK, PLACES, W, X, Y, ends, workers

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.cli import main
from ggmlq.errors import LibraryFailedError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc, which Linux has"
    ),
]

LATE = "gave no answer in"
FAILS = {  # trouble: what is said of it
    "abort": "died: SIGABRT",
    "flood": "died: SIGABRT.*the last words",
    "fork_exit": "died: exit status 4",
    "leave_exit": "died: exit status 4",
    "leave_flood": "died: exit status 4",
    "close_spin": "closed the pipe of its answers",
    "close": "died: exit status 1|died: SIGKILL|closed the pipe",
    "shout": r"wrote into the answers of its process: b'\\x1b\[31mwhat a",
}
HANGS = ["spin", "stop", "flood_on", "fork_spin", "leave_spin"]
BEARS = ["fork", "shout_low", "slow"]


def fails(hostile, trouble, place, timeout=60):
    """The error of a call that meets trouble; afterwards the bridge works, if there is one."""
    if place == "load":
        with pytest.raises(LibraryFailedError) as caught:
            hostile(trouble, place, timeout)
        return caught.value
    bridge = hostile(trouble, place)
    (worker,) = workers()
    bridge.timeout = timeout
    with pytest.raises(LibraryFailedError) as caught:
        ASK[place](bridge)
    assert ends([worker])
    bridge.timeout = 60
    np.testing.assert_allclose(bridge.mul_mat(X, W, "FAKE0"), Y, rtol=1e-4, atol=1e-4)
    return caught.value


@pytest.mark.parametrize("place", PLACES)
def test_failures_are_told_and_survived(hostile, noted, fresh, place):
    trouble = fresh.choice(list(FAILS))

    error = fails(hostile, trouble, place)
    assert re.search(FAILS[trouble], str(error)), (trouble, str(error))
    assert trouble.startswith("leave") or ends(noted())


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("place", PLACES)
def test_hangs_end_with_the_clock(hostile, noted, fresh, place):
    trouble = fresh.choice(HANGS)
    error = fails(hostile, trouble, place, timeout=2 if place == "load" else 0.5)
    assert LATE in str(error), (trouble, str(error))
    assert trouble.startswith("leave") or ends(noted())


@pytest.mark.parametrize("place", PLACES)
def test_oddities_are_borne(hostile, noted, fresh, place):
    trouble = fresh.choice(BEARS)
    bridge = hostile(trouble, place)
    for _ in range(3):
        ASK["devices" if place == "load" else place](bridge)
    np.testing.assert_allclose(bridge.mul_mat(X, W, "FAKE0"), Y, rtol=1e-4, atol=1e-4)
    bridge.close()
    assert ends(noted())


@pytest.mark.parametrize("trouble", ["shout_on", "end_soon"])
def test_answers_are_whole_or_errors(hostile, fresh, rounds, trouble):
    """Another thread of the library writes everywhere, or ends the process, while answers leave."""
    bridge = hostile(trouble, "mul_mat")
    w, told = gq.quantize(rows("normal", 2048, 32, 2), "q4_0"), []
    for _ in rounds(1.5):
        x = rows("normal", int(fresh.integers(1, 200)), 32, int(fresh.integers(100)))
        try:
            y = bridge.mul_mat(x, w, "FAKE0")
        except LibraryFailedError as error:
            told.append(str(error))
            os.environ["HOSTILE"] = f"{trouble} mul_mat"  # again, in the process to come
        else:
            np.testing.assert_allclose(y, gq.reference.linear(x, w), rtol=1e-4, atol=1e-4)
    assert all(re.search("wrote into the answers|died: exit status 5", text) for text in told), told


def test_a_flood_costs_nothing(hostile):
    bridge = hostile("flood", "mul_mat")
    tracemalloc.start()
    try:
        with pytest.raises(LibraryFailedError, match=r"the last words; ggmlq") as caught:
            bridge.mul_mat(X, W, "FAKE0")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(caught.value.tail) <= 2000
    assert peak < 2 << 20


def test_a_terminal_is_left_alone(hostile):
    error = fails(hostile, "escape", "mul_mat")
    assert r"\x1b]0;owned\x07\x1b[2J\rgone" in str(error)
    assert r"\u202e" in error.tail
    bridge = hostile("names", "nowhere")
    (device,) = bridge.devices()
    for text in (bridge.version, device.description, repr(bridge)):
        assert text.isprintable()
        assert r"\x1b" in text or text == repr(bridge)
    assert hostile("nameless", "nowhere").devices()[0].description == ""


def test_the_command_says_what_the_library_said(built, noted, monkeypatch, capsys):
    monkeypatch.setenv("HOSTILE", "escape mul_mat")
    assert main([*CHECK, str(built)]) == 1
    out, err = capsys.readouterr()
    assert r"died: SIGABRT; it said: \x1b]0;owned\x07\x1b[2J\rgone" in " ".join(out.split())
    assert (out + err).replace("\n", "").isprintable()
