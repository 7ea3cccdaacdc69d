"""The state of packed layers as tensors: strips, which kernels of a GPU read, on any device; no GPU here."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

from emulated_packed import pack_q4_0  # noqa: E402

import ggmlq.torch as gt  # noqa: E402
from ggmlq.torch import blocks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck looks at it
N, K = 40, 192
OPS = torch.ops.ggmlq


@pytest.fixture
def weights(fresh):
    """An array of q4_0, its bytes as a tensor, and its strips as a GPU's ``prepare`` makes them."""
    q = gq.quantize(fresh.standard_normal((N, K), np.float32), "q4_0")
    strips = np.ascontiguousarray(pack_q4_0(q)[0]).reshape(-1)
    return q, torch.from_numpy(q.raw.copy()), torch.from_numpy(strips)


def with_strips(q, strips):
    """A layer that was moved to the host by a program that knows nothing of blocks."""
    layer = gt.Linear(q)
    layer.weight.data = strips.clone()
    return layer


def floats(fresh, *shape):
    return torch.from_numpy(fresh.standard_normal(shape, np.float32))


def test_operators_take_strips(weights, fresh):
    q, w, strips = weights
    x, dy, type = floats(fresh, 3, K), floats(fresh, 3, N), q.format.id
    prepared = type | gt.PREPARED
    assert torch.equal(OPS.linear(x, strips, prepared, N), OPS.linear(x, w, type, N))
    assert torch.equal(OPS.linear_grad(dy, strips, prepared, K), OPS.linear_grad(dy, w, type, K))
    values = OPS.dequantize(strips, prepared, [N, K], torch.float32)
    assert torch.equal(values, OPS.dequantize(w, type, [N, K], torch.float32))
    assert torch.equal(blocks.file_bytes(strips, type, (N, K)), w)
    assert torch.equal(OPS.prepare(w, type), w)  # on the host the file's order is what kernels read
    for arguments in ((OPS.linear, x.requires_grad_(), strips, prepared, N), (OPS.prepare, w, type)):
        torch.library.opcheck(arguments[0].default, arguments[1:])


def test_strips_that_do_not_fit(weights, fresh):
    q, _, strips = weights
    prepared, x = q.format.id | gt.PREPARED, floats(fresh, 3, K)
    with pytest.raises(errors.ShapeError, match=r"w has shape .* with n 400 and rows of 192 .*pass the type"):
        OPS.linear(x, strips, prepared, 400)
    with pytest.raises(errors.UnsupportedError, match="rows do not lie together; pass the file's bytes"):
        OPS.get_rows(strips, prepared, torch.tensor([1]), torch.float32)
    with pytest.raises(errors.ShapeError, match="w has shape"):
        OPS.linear(x, strips, q.format.id, N)


def test_a_layer_with_strips_computes_and_is_saved_as_the_file_has_it(weights, fresh):
    q, w, strips = weights
    layer, plain, x = with_strips(q, strips), gt.Linear(q), floats(fresh, 3, K)
    want = plain(x)
    for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert each.weight.dim() == 1
        for _ in range(2):
            assert torch.equal(each(x), want)
        assert torch.equal(each.state_dict()["weight"], w)
        assert torch.equal(each.dequantize(), plain.dequantize())
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = gt.Linear(gq.quantize(fresh.standard_normal((N, K), np.float32), "q4_0"))
    for state in (torch.load(file), {"weight": strips}, {"weight": w.reshape(-1)}):
        other.weight.data.zero_()
        other.load_state_dict(state)
        assert torch.equal(other.weight, w)
        assert torch.equal(other(x), want)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        other.load_state_dict({"weight": w[:-1]})


def test_moves_end_in_the_order_of_the_file(weights, fresh):
    """On a GPU the layer would take strips again; here it has none to go to."""
    q, w, strips = weights
    layer, x = with_strips(q, strips), floats(fresh, 3, K)
    want = gt.Linear(q)(x)
    assert torch.equal(layer.cpu().weight, w)
    assert torch.equal(layer(x), want)
    layer = with_strips(q, strips).to("meta")
    assert tuple(layer.weight.shape) == tuple(w.shape)
    layer.load_state_dict({"weight": w}, assign=True)
    assert torch.equal(layer(x), want)


def test_offload_in_the_middle_of_a_model(weights, fresh):
    """A hook gives a layer its bytes for one call only, as strips or as the file has them."""
    q, w, strips = weights
    model = torch.nn.Sequential(gt.Linear(q), torch.nn.ReLU(), torch.nn.Linear(N, 4)).requires_grad_(False)
    x = floats(fresh, 3, K)
    want = model(x)
    before = len(blocks._ARRAYS)
    for data in (strips, w, strips):
        model[0].weight.data = data.clone()
        assert torch.equal(model(x), want)
        model[0].weight.data = torch.empty(0, dtype=torch.uint8)
    assert len(blocks._ARRAYS) <= before  # nothing stays of what went


def test_flattened_parameters(weights, fresh):
    """As FSDP flattens them: views of one tensor, at any offset."""
    q, w, strips = weights
    layers = [with_strips(q, strips), gt.Linear(q)]
    x = floats(fresh, 3, K)
    want = layers[1](x)
    flat = torch.cat([torch.zeros(3, dtype=torch.uint8), strips, w.reshape(-1)])
    layers[0].weight.data = flat[3 : 3 + strips.numel()]
    layers[1].weight.data = flat[3 + strips.numel() :].view(w.shape)
    for layer in layers:
        assert torch.equal(layer(x), want)
    del layers[1]._parameters["weight"]  # the original parameters are plain attributes there
    layers[1].weight = flat[3 + strips.numel() :].view(w.shape)
    assert torch.equal(layers[1](x), want)


def test_compiled(weights, fresh):
    q, _, strips = weights
    layer, x = with_strips(q, strips), floats(fresh, 3, K)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))


def test_a_shared_weight_keeps_the_order_that_both_read(weights):
    q, w, strips = weights
    embedding, layer = gt.Embedding(q, torch.float32), with_strips(q, strips)
    embedding.weight = layer.weight
    assert torch.equal(embedding(torch.tensor([3, 0])), gt.Linear(q).dequantize()[[3, 0]])
    assert torch.equal(embedding.state_dict()["weight"], w)


def test_fully_sharded(fresh):
    """FSDP of today: parameters are parts of distributed tensors, gathered for a call, then resized."""
    code = """if True:
        import os, numpy as np, torch, ggmlq as gq, ggmlq.torch as gt
        from torch.distributed import fsdp
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
        from torch.distributed.device_mesh import init_device_mesh
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        q = gq.quantize(np.random.default_rng(1).standard_normal((8, 256), np.float32), "q4_K")
        model, x = torch.nn.Sequential(gt.Linear(q, torch.ones(8)), torch.nn.Linear(8, 4)), torch.ones(2, 256)
        want = model(x)
        fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        same = [torch.equal(model(x), want) for _ in range(3)]
        model(x).sum().backward()
        print(all(same), type(model[0].weight).__name__, model[0].bias.grad is not None)
        tiny, mesh = torch.nn.Sequential(gt.Linear(q), torch.nn.ReLU()), init_device_mesh("cpu", (1,))
        fsdp.fully_shard(tiny[0], mesh=mesh)
        fsdp.fully_shard(tiny, mesh=mesh)
        for seed in range(8):  # gathered into memory that torch may have had before
            other = gq.quantize(np.random.default_rng(seed).standard_normal((8, 256), np.float32), "q4_K")
            whole = torch.from_numpy(other.raw.copy())
            options = StateDictOptions(full_state_dict=True)
            set_model_state_dict(tiny, {"0.weight": whole}, options=options)
            print(torch.equal(tiny(x), gt.Linear(other)(x).relu()))
        torch.distributed.destroy_process_group()
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == ["True", "DTensor", "True", *["True"] * 8], run.stderr[-2000:]
