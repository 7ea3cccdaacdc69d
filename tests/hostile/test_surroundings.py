"""Processes in odd surroundings: no asserts, warnings as errors, little memory, no home, no streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WORK = """
import os, tempfile
import numpy as np
import ggmlq as gq
w = np.random.default_rng(0).standard_normal((40, 512), np.float32)
x = np.random.default_rng(1).standard_normal((3, 512), np.float32)
q = gq.quantize(w, "q4_0")
y = x @ q.T
if not gq.nmse(y, gq.reference.linear(x, q, "q8")) < 1e-12:
    raise SystemExit("a wrong product")
if not gq.diagnose(y, x, q).ok or gq.diagnose(y[:, ::-1], x, q).ok:
    raise SystemExit("a wrong diagnosis")
path = os.path.join(tempfile.mkdtemp(), "t.gguf")
gq.save(path, {"w": q}, {"general.architecture": "llama"})
if gq.open(path)["w"].raw.tobytes() != q.raw.tobytes():
    raise SystemExit("another file")
for call, *wrong in ((gq.quantize, w[:, :300], "q4_0"), (gq.linear, x[:, :32], q), (gq.open, path + "x")):
    try:
        call(*wrong)
    except gq.GGMLQError:
        continue
    raise SystemExit("a call without sense went through")
"""


def run(code, *flags, **env):
    """A process of its own; what is None in ``env`` is unset."""
    full = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    full = {name: value for name, value in full.items() if value is not None}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=full,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def assert_quiet(done):
    """Fine, and without a word."""
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_any_flags_of_python():
    """Nothing rests on an assert, on a docstring, or on nobody's seeing a warning."""
    assert_quiet(run(WORK, "-OO", "-X", "dev", "-W", "error", "-bb"))


@pytest.mark.skipif(os.name == "nt", reason="Windows needs its environment")
def test_isolated_and_without_an_environment():
    """``python -I`` takes nothing from the current folder either."""
    child = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + WORK]
    assert_quiet(subprocess.run(child, env={}, capture_output=True, text=True, check=False, timeout=300))


@pytest.mark.skipif(os.name == "nt", reason="homes of Windows are found otherwise")
def test_a_home_that_cannot_be_written():
    """Compiled code is not kept then; a product is right all the same. Root may write anywhere but there."""
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": None, "GGMLQ_CACHE_DIR": None}
    done = run(WORK, **nowhere)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr


def test_importing_takes_little_more_memory_than_numpy():
    resource = pytest.importorskip("resource", reason="limits of memory are a matter of Unix")
    assert resource
    code = """
import numpy as np, resource
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * (pages * resource.getpagesize() + (48 << 20),))
import ggmlq as gq
q = gq.quantize(np.ones((4, 256), np.float32), "q8_0")
q.dequantize()
try:
    gq.QuantArray.from_bytes(bytes(34), "q8_0", (1, 32)).to("cuda")
except gq.GGMLQError:
    pass
try:
    gq.quantize(np.broadcast_to(np.float32(1), (1 << 18, 4096)), "q8_0")
except MemoryError:
    pass
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("how much address space is in use is read from /proc")
    assert_quiet(run(code, OPENBLAS_NUM_THREADS="1"))
