"""diffusers itself: its layers for GGUF multiply packed weights."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed: tools/test --hosts")

import ggmlq.torch as gt  # noqa: E402

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]  # warnings of others
WIDTH, FEED = 256, 512


def block(fresh, kind, utils, gguf, dtype):
    """Two layers as diffusers makes them of a GGUF file."""
    layers, arrays = [], []
    for n, k in ((FEED, WIDTH), (WIDTH, FEED)):
        q = gq.quantize(fresh.standard_normal((n, k), np.float32) / k**0.5, kind)
        layer = utils.GGUFLinear(k, n, bias=True, compute_dtype=dtype)
        type = gguf.GGMLQuantizationType(q.format.id)
        layer.weight = utils.GGUFParameter(torch.from_numpy(q.raw.copy()), quant_type=type)
        layers += [layer.requires_grad_(False), torch.nn.GELU()]
        arrays.append(q)
    return torch.nn.Sequential(*layers[:-1]), arrays


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["q8_0", "q4_K", "q5_1"])
def test_layers_beside_their_own(kind, dtype, fresh):
    import gguf
    from diffusers.quantizers.gguf import utils

    model, arrays = block(fresh, kind, utils, gguf, dtype)
    x = torch.from_numpy(fresh.standard_normal((2, 33, WIDTH), np.float32)).to(dtype)
    own = model(x)
    said = gt.hosts.diffusers.enable()
    try:
        assert "GGUFLinear.forward" in said
        y = model(x)
        values = utils.dequantize_gguf_tensor(model[0].weight)
        compiled = torch.compile(model, backend="aot_eager")(x)
    finally:
        gt.hosts.diffusers.disable()
    assert y.dtype == own.dtype == dtype
    assert gq.nmse(y.float().numpy(), own.float().numpy()) < 1e-3
    assert np.array_equal(values.numpy(), np.asarray(arrays[0]))
    assert torch.equal(compiled, y)
    assert torch.equal(model(x), own)
