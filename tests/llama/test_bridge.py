"""The bridge on a real libggml: every type that it multiplies, in the arithmetic that it claims."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import doctor
from ggmlq.check import cases
from ggmlq.check.judge import candidates, judge
from ggmlq.errors import LibraryFailedError, UnsupportedError
from ggmlq.formats import FORMATS
from ggmlq.llama import Bridge
from ggmlq.llama.library import is_weight_type

pytestmark = pytest.mark.llama
WEIGHTS = [fmt for fmt in FORMATS.values() if is_weight_type(fmt)]


@pytest.fixture(scope="module")
def bridge(libggml):
    with Bridge(libggml.path) as opened:
        yield opened


def test_devices(bridge):
    names = {device.name: device for device in bridge.devices()}
    assert names["CPU"].kind == "CPU"
    assert names["CPU"].memory_total > 1 << 20


def test_doctor_lists_the_devices(bridge, monkeypatch):
    monkeypatch.setenv("GGMLQ_LIBGGML", str(bridge.path))
    report = doctor.examine()
    assert report["libggml"]["version"] == bridge.version
    assert "CPU" in [device["name"] for device in report["libggml"]["devices"]]
    assert f"{bridge.version}, {bridge.path}\n  CPU: " in doctor.describe(report)


@pytest.mark.parametrize("fmt", WEIGHTS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("m", [1, 9])
def test_products_are_those_of_ggml_cpu(bridge, fmt, m):
    x, q = cases.activations("normal", m, 768, 3), cases.weights(fmt, "normal", 33, 768, 3)
    y = bridge.mul_mat(x, q)
    found = judge(y, x, q, ["ggml-cpu", "ggml-cpu-fp16"])
    assert found.out == 0
    assert found.distance <= 1e-11


@pytest.mark.parametrize("fmt", WEIGHTS, ids=lambda fmt: fmt.name)
def test_repacked_weights(bridge, fmt):
    x, q = cases.activations("normal", 9, 512, 4), cases.weights(fmt, "normal", 64, 512, 4)
    try:
        got = bridge.measure(x, q, repack=True, repeats=2, threads=2)
        refusal = ""
    except UnsupportedError as error:  # which types are repacked depends on the processor
        refusal = str(error)
    if refusal:
        assert "has no repacked layout for it; leave repack off" in refusal
        return
    assert got.buffer != "CPU"
    assert got.same
    assert judge(got.y, x, q, candidates("CPU", 9)).ok


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "iq4_xs", "q6_K", "f16"])
def test_encode_and_decode(bridge, name):
    q = bridge.quantize(cases.activations("normal", 8, 512, 5), name)
    values = bridge.dequantize(q)
    np.testing.assert_array_equal(values, np.asarray(q))
    assert q.shape == (8, 512)


def test_encode_with_an_imatrix(bridge):
    x = cases.activations("normal", 2, 512, 6)
    q = bridge.quantize(x, "iq2_xxs", imatrix=np.ones(512))
    assert gq.nmse(q, x) < 0.5
    with pytest.raises(UnsupportedError, match="with an imatrix only"):
        bridge.quantize(x, "iq2_xxs")
    with pytest.raises(gq.GGMLQError, match="imatrix has shape"):
        bridge.quantize(x, "q4_K", imatrix=np.ones(256))


def test_an_assertion_of_ggml_is_survived(bridge):
    x = cases.activations("normal", 2, 512, 6)
    with pytest.raises(LibraryFailedError, match=r"SIGABRT.*GGML_ASSERT\(imatrix"):
        bridge._call("iq2_xxs without an imatrix", {"do": "quantize", "format": "iq2_xxs"}, [x])
    assert bridge.quantize(x, "q4_K").shape == (2, 512)


def test_outside_of_main_nothing_runs_twice(libggml, tmp_path):
    """A user's script without an `if __name__ == "__main__"` must not run again in the child."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from ggmlq.llama import Bridge\n"
        f"with Bridge({str(libggml.path)!r}) as b: print(b.devices()[0].name)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "CPU\n"
