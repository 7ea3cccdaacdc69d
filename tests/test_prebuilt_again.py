"""Packs against their sources: drawn kernels are compiled again, and have the bytes that packs have."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test-cuda)")

from scripts import ROOT, load

from ggmlq.cpu.machine import loading, served
from ggmlq.cpu.machine.levels import LEVELS
from ggmlq.cuda.driver import served as cuda
from ggmlq.store import store as packs

_objects, _verify = load("tools", "_objects"), load("tools", "_verify")
SMALL, DRAWN = 30, 3  # of so many small kernels so many: each is compiled in less than a second
MACHINES = [*(level.folder for level in LEVELS), "sm_90", "ptx"]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("machine", MACHINES)
def test_kernels_compiled_again_have_the_bytes_of_the_pack(machine, fresh):
    arguments = {"--only": f"{machine}: ", "--small": SMALL, "--sample": DRAWN, "--jobs": 1}
    arguments["--seed"] = int(fresh.integers(1 << 30))
    words = [str(word) for pair in arguments.items() for word in pair]
    command = [sys.executable, str(ROOT / "tools" / "prebuild.py"), "--verify", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    equal = int(done.stdout.splitlines()[-1].partition(" equal")[0])
    if not equal:
        pytest.skip(f"none of the drawn kernels of {machine} can be compared here: {done.stdout}")


def instructions(code):
    """The bytes of an object, as a range, that are its first instructions."""
    heads, count = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    listed = [struct.unpack_from("<IIQQQQ", code, heads + 64 * at) for at in range(count)]
    code_heads = (head for head in listed if head[1] == 1 and head[2] & 4 and head[5])
    return next(range(head[4], head[4] + head[5]) for head in code_heads)


@pytest.mark.parametrize(("store", "machine"), [(served.STORE, "avx2"), (cuda.STORE, "sm_90")])
@pytest.mark.parametrize("what", ["code", "failure"])
def test_other_code_is_found_and_named(store, machine, what, capsys):
    """A compiler whose instructions differ in a bit, and one that fails; where none is stale or foreign."""
    (drawn,) = _verify.draw([store], f"{machine}: ", 1, 1, 0)
    if drawn.is_stale or drawn.pack.compilers != store.compilers:
        pytest.skip(f"{drawn} is stale, or was compiled by other compilers than are installed")

    def compiled(kernels, jobs):
        for kernel in kernels:
            made = bytearray(_verify.fresh_code(store.prebuilt, [kernel])[kernel])
            made[instructions(made)[0]] ^= 1
            yield kernel, bytes(made) if what == "code" else f"{kernel}: it failed"

    assert _verify.verify([(store, compiled)], [drawn], 1) == 1
    said = capsys.readouterr().out
    assert str(drawn) in said
    assert "0 equal, 1 differ, 0 stale, 0 not compiled here" in said


def objects(machine):
    """Objects of a pack of a machine, by the names of their kernels."""
    pack = packs.opened(served.STORE.prebuilt / machine / f"machine{packs.SUFFIX}")
    for name, (key, *_) in pack.kernels.items():
        yield name, pack.load(name, key)[: -loading.SEAL]


@pytest.mark.parametrize("machine", [level.folder for level in LEVELS])
def test_renaming_hides_no_other_change(machine, fresh):
    """Names are changed once, and never what another byte of the instructions says."""
    for name, code in objects(machine):
        new = _objects.renamed(code)
        assert _objects.renamed(new) == new, name
        other = bytearray(code)
        other[fresh.choice(instructions(code))] ^= 1
        assert _objects.renamed(bytes(other)) != new, name


@pytest.mark.skipif(served.level() is None, reason="no code comes with the package for this system's CPU")
def test_a_renamed_object_loads_and_runs(fresh):
    """A sum of 64 lanes comes out as by the pack's own object."""
    name, code = next(each for each in objects(served.level().folder) if "digest.adder" in each[0])
    words, results = fresh.integers(0, 1 << 32, 1000, dtype=np.uint32), []
    for each in (code, _objects.renamed(code)):
        lanes = np.zeros(64, np.uint32)
        table = np.array([words.ctypes.data, words.size, lanes.ctypes.data], np.int64)
        loading.load(name, loading.sealed(name, each)).call(table.ctypes.data, 0, 1)
        results.append(lanes)
    assert results[0].any()
    assert np.array_equal(*results)
