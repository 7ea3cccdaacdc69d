"""accelerate's hooks move packed weights in the middle of a model, as they move any parameter."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq

torch = pytest.importorskip("torch", reason="torch is not installed")
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: tools/test --hosts")

import ggmlq.torch as gt  # noqa: E402

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]  # warnings of others


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_offloaded_layers(where, fresh, tmp_path):
    """Weights are on meta between calls, and come back for each."""
    layers = []
    for n, k in ((128, 256), (256, 128)):
        q = gq.quantize(fresh.standard_normal((n, k), np.float32), "q8_0")
        layers.append(gt.Linear(q, torch.from_numpy(fresh.standard_normal(n, np.float32))))
    model = torch.nn.Sequential(*layers).requires_grad_(False)
    x = torch.from_numpy(fresh.standard_normal((3, 256), np.float32))
    want = model(x)
    if where == "memory":
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        accelerate.disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
    assert model[0].weight.device.type == "meta"
    for _ in range(2):
        assert torch.equal(model(x), want)
    assert model[0].weight.device.type == "meta"
