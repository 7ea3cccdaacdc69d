"""safetensors to a device: all that ggml or a ScaledArray has a type for, scales beside their weights."""

from __future__ import annotations

import fake_cupy
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import GGMLQError


@pytest.fixture
def model(tmp_path, fresh):
    """Two files, joined by their folder."""
    w = fresh.standard_normal((64, 96), np.float32)
    gq.save(
        tmp_path / "model-00001-of-00002.safetensors",
        {
            "tiled": gq.quantize_scaled(w, "e4m3", (32, 32)),
            "rows": gq.quantize_scaled(w, "int8", (1, None)),
            "half": w.astype(np.float16),
            "bfloat": gq.quantize(w, "bf16"),
        },
    )
    gq.save(
        tmp_path / "model-00002-of-00002.safetensors",
        {"norm": w[0], "none": w[:0], "scalar": np.float32(3), "mask": np.ones(3, bool), "ids": np.arange(4)},
    )
    with gq.open(tmp_path) as f:
        yield f


def assert_loaded(got, f, device):
    """The same bytes on the device, and nothing that ggml has no type for."""
    assert list(got) == [name for name in f if name != "mask"]
    for name, x in got.items():
        assert x.device == device
        back = x.to("cpu")
        assert type(back) is type(f[name])
        assert gq.equal(back, f[name])


def test_everything_arrives(model, monkeypatch):
    fake_cupy.put_gpu(monkeypatch)
    assert_loaded(model.to("cuda"), model, "cuda:0")
    assert list(model.to("cuda:0", "*ale*")) == ["tiled_scale_inv", "rows_scale"]


def test_a_bar_and_a_device_that_is_not_there(model, monkeypatch, capsys):
    fake_cupy.put_gpu(monkeypatch)
    model.to("cuda", progress=True)
    assert "to cuda: 100%" in capsys.readouterr().err
    with pytest.raises(GGMLQError, match="this machine has 1 GPU"):
        model.to("cuda:7")


@pytest.mark.cuda
def test_everything_arrives_on_a_gpu(model, cupy, fresh):
    got = model.to("cuda")
    assert_loaded(got, model, f"cuda:{cupy.cuda.runtime.getDevice()}")
    x = fresh.standard_normal((5, 96), np.float32)
    for name in ("tiled", "half", "bfloat"):
        want = x @ np.asarray(model[name], np.float32).T
        assert gq.nmse((cupy.asarray(x) @ got[name].T).get(), want) < 5e-3
