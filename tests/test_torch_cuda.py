"""The operators and modules of torch on a GPU: values, gradients, torch.compile, CUDA graphs, moves."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

from stale import skip_if_stale  # noqa: E402

import ggmlq.torch as gt  # noqa: E402
from ggmlq.arrays.blocks import random_blocks  # noqa: E402
from ggmlq.cuda.driver import served  # noqa: E402
from ggmlq.torch import products  # noqa: E402

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
]  # opcheck looks at it
N, K, E = 48, 512, 3
OPS = torch.ops.ggmlq
TYPES = ["q4_0", "q4_K", "q6_K", "q8_0", "mxfp4", "f16"]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def on_a_card(cupy):
    """Skip where there is no GPU."""


def packed(fresh, name, *lead):
    """Values, bytes on the GPU, and ggml's number of a type."""
    q = gq.quantize(fresh.standard_normal((*lead, N, K), np.float32), name)
    return torch.from_numpy(np.asarray(q)).cuda(), torch.from_numpy(q.raw.copy()).cuda(), q.format.id


def floats(fresh, *shape, dtype=torch.float32):
    return torch.from_numpy(fresh.standard_normal(shape, np.float32)).to("cuda", dtype)


def far(y, want):
    """Error over magnitude, of all numbers together."""
    y, want = y.detach().double(), want.detach().double()
    return float((y - want).norm() / want.norm())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TYPES)
def test_values_and_gradients(name, dtype, fresh):
    values, w, type = packed(fresh, name)
    bias = floats(fresh, N).requires_grad_()
    for shape in ((K,), (1, K), (2, 3, K), (0, K), (17, K), (150, K)):
        x = floats(fresh, *shape, dtype=dtype).requires_grad_()
        y = OPS.linear(x, w, type, N, bias)
        assert (y.dtype, y.shape) == (dtype, (*shape[:-1], N))
        if not x.numel():
            continue
        assert far(y, x.float() @ values.T + bias) <= 2e-2  # x may be rounded to 8 bits
        dy = floats(fresh, *shape[:-1], N, dtype=dtype)
        y.backward(dy)
        assert far(x.grad, dy.float() @ values) <= 2e-2
        assert torch.equal(OPS.linear(x.detach(), w, type, N, bias.detach()), y.detach())
    assert torch.equal(OPS.dequantize(w, type, [N, K], dtype), values.to(dtype))
    ids = torch.from_numpy(fresh.integers(0, N, (2, 5))).cuda()
    assert torch.equal(OPS.get_rows(w, type, ids, dtype), values[ids].to(dtype))
    with pytest.raises(errors.DeviceError, match="one device"):
        OPS.linear(x.detach().cpu(), w, type, N)


@pytest.mark.parametrize("name", ["q4_0", "q6_K", "iq4_xs"])
def test_many_rows(name, fresh, monkeypatch):
    """Weights are decoded for torch's product: one result by layer and operator, whole and in pieces."""
    values, w, type = packed(fresh, name)
    bias, rows = floats(fresh, N, dtype=torch.bfloat16), products.fewest_decoded(0)
    x = floats(fresh, 3, rows // 3 + 1, K, dtype=torch.bfloat16)
    layer = gt.Linear(gq.QuantArray.from_bytes(w.cpu().numpy(), name, (N, K)), bias).cuda()
    want, decoded = x.float() @ values.T + bias, []
    by_decoding = products._decoded_rows

    def counted(q, first, last):
        decoded.append((first, last))
        return by_decoding(q, first, last)

    monkeypatch.setattr(products, "_decoded_rows", counted)
    with torch.no_grad():
        results = [
            layer(x),
            layer(x),
            layer(x.reshape(-1, K)).reshape(want.shape),
            OPS.linear(x, w, type, N, bias),
        ]
    assert decoded == [(0, N)] * 4
    assert all(torch.equal(y, results[0]) for y in results)
    assert far(results[0], want) <= 2**-7
    monkeypatch.setattr(products, "MOST_DECODED", 2 * 16 * K)
    decoded.clear()
    assert far(OPS.linear(x, w, type, N, bias), want) <= 2**-7
    assert decoded == [(0, 16), (16, 32), (32, 48)]
    decoded.clear()
    assert far(OPS.linear(x.float(), w, type, N, bias), want) <= 2e-2
    assert far(OPS.linear(x[:, :9], w, type, N, bias), want[:, :9]) <= 2e-2
    assert decoded == []


@pytest.mark.parametrize("dtype", FLOATS)
def test_experts(dtype, fresh):
    values, w, type = packed(fresh, "q4_K", E)
    ids = torch.from_numpy(fresh.integers(0, E, (5, 2))).cuda()
    for shape in ((5, K), (5, 2, K)):
        x = floats(fresh, *shape, dtype=dtype).requires_grad_()
        y = OPS.expert_linear(x, w, ids, type, N)
        rows = x.float() if x.dim() == 3 else x.float()[:, None].expand(-1, 2, -1)
        assert y.dtype == dtype
        assert far(y, torch.einsum("tuk,tunk->tun", rows, values[ids])) <= 2e-2
        dy = floats(fresh, 5, 2, N, dtype=dtype)
        y.backward(dy)
        dx = torch.einsum("tun,tunk->tuk", dy.float(), values[ids])
        assert far(x.grad, dx if x.dim() == 3 else dx.sum(1)) <= 2e-2


def test_opcheck(fresh):
    _, w, type = packed(fresh, "q8_0")
    _, e, _ = packed(fresh, "q8_0", E)
    x, ids = floats(fresh, 3, K).requires_grad_(), torch.from_numpy(fresh.integers(0, E, (3, 2))).cuda()
    for operator, *arguments in (
        (OPS.linear, x, w, type, N, floats(fresh, N).requires_grad_()),
        (OPS.linear, x.detach().bfloat16(), w, type, N),
        (OPS.linear_grad, floats(fresh, 3, N).requires_grad_(), w, type, K),
        (OPS.dequantize, w, type, [N, K], torch.bfloat16),
        (OPS.get_rows, w, type, ids, torch.float16),
        (OPS.expert_linear, x, e, ids, type, N),
        (OPS.prepare, w, type),
    ):
        torch.library.opcheck(operator.default, tuple(arguments))


@pytest.mark.filterwarnings("ignore")  # torch's compiler has warnings of its own
@pytest.mark.parametrize("prepared", [False, True])
def test_compiled_with_cuda_graphs(prepared, fresh):
    """``mode="reduce-overhead"`` records launches; replays have eager's bits, for other values too.

    The first product of all, not ``prepared``, is in the compiled model: what it leaves must not be in the
    memory of its graph, or torch refuses it ("live storage" or "allocated in the cudagraph pool").
    """
    pytest.importorskip("triton", reason="triton is not installed, which torch.compile takes on a GPU")
    from torch._dynamo.utils import counters

    shapes = ((2 * K, K), (K, 2 * K))
    up, down = (gt.Linear(gq.quantize(fresh.standard_normal(n, np.float32), "q4_K")).cuda() for n in shapes)

    def model(x):
        return down(up(x).relu())

    def inputs(rows):
        return floats(fresh, rows, K, dtype=torch.bfloat16)

    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        for rows in (1, 40, products.fewest_decoded(0)):
            if prepared:
                model(inputs(rows)), model(inputs(rows))
            for call, what in enumerate(("compiled and run once", "recorded", "replayed", "replayed again")):
                x, place = inputs(rows), f"{rows} rows, call {call}, in which the graph is {what}"
                try:
                    torch.compiler.cudagraph_mark_step_begin()
                    y = compiled(x).clone()
                    torch.cuda.synchronize()
                except Exception as error:
                    pytest.fail(f"{place}: {type(error).__name__}: {str(error)[:2000]}")
                wrong = int((y != model(x)).sum())
                assert not wrong, f"{place}: {wrong} of {y.numel()} numbers differ from eager's"
    skips = counters["inductor"]["cudagraph_skips"]
    assert not skips, f"torch made no graph, {skips} times; TORCH_LOGS=cudagraphs says why"


def test_a_graph_is_replayed_with_other_values(fresh):
    layer = gt.Linear(gq.quantize(fresh.standard_normal((N, K), np.float32), "q4_0"), floats(fresh, N)).cuda()
    for rows in (1, 9, 70):
        x = floats(fresh, rows, K, dtype=torch.float16)
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                layer(x), layer(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(x)
            for _ in range(3):
                x.copy_(floats(fresh, rows, K, dtype=torch.float16))
                graph.replay()
                assert torch.equal(y, layer(x))


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K", "q8_0", "mxfp4", "iq4_xs", "iq2_xs"])
def test_strips(name, fresh):
    """A layer's weights on a card are what its kernels read, and nothing beside them."""
    fmt = gq.formats[name]
    raw = random_blocks(fmt, 384, 1024 // fmt.block_size, int(fresh.integers(1 << 30))).view(np.uint8)
    q = gq.QuantArray.from_bytes(raw.tobytes(), fmt, (384, 1024))
    file, x = torch.from_numpy(q.raw.copy()), floats(fresh, 5, 1024, dtype=torch.bfloat16)
    values = torch.from_numpy(np.asarray(q)).cuda()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    layer = gt.Linear(q).cuda()
    assert (layer.weight.dim() == 1) is (name != "iq2_xs")  # which has a code book
    with torch.no_grad():
        for _ in range(3):
            y = layer(x)
    if layer.weight.dim() == 1:
        assert torch.cuda.memory_allocated() - before <= layer.weight.numel() + y.numel() * 2 + 4096
        assert layer.weight.numel() <= file.numel() * 1.3
    assert far(y, x.float() @ values.T) <= 2e-2
    assert torch.equal(OPS.linear(x, file.cuda(), fmt.id, 384), y)
    assert torch.equal(layer.dequantize(), values)
    assert torch.equal(layer.dequantize(torch.bfloat16), values.bfloat16())
    rows = floats(fresh, 5, 1024, dtype=torch.bfloat16).requires_grad_()
    layer(rows).backward(dy := floats(fresh, 5, 384, dtype=torch.bfloat16))
    assert far(rows.grad, dy.float() @ values) <= 2e-2
    assert torch.equal(layer.state_dict()["weight"].cpu(), file)
    other = gt.Linear(gq.QuantArray.from_bytes(bytes(len(raw.tobytes())), fmt, (384, 1024))).cuda()
    for state in (layer.state_dict(), {"weight": file}, {"weight": layer.weight.data.cpu()}):
        other.weight.data.zero_()
        other.load_state_dict(state)
        for each in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
            with torch.no_grad():
                assert torch.equal(each(x), y)
    flat = torch.cat([torch.zeros(3, dtype=torch.uint8, device="cuda"), layer.weight.data.reshape(-1)])
    other.weight.data = flat[3:].view(layer.weight.shape)  # as FSDP has it, at an odd address
    with torch.no_grad():
        assert torch.equal(other(x), y)
        other.weight.data = file.cuda()  # as a hook gives it for one call
        assert torch.equal(other(x), y)
        strips = layer.weight.data.cpu()
        assert torch.equal(layer.cpu().weight, file)
        here = layer(x.cpu())
        layer.weight.data = strips
        assert torch.equal(layer(x.cpu()), here)


ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cupy", "cupy_backends", "numba", "numba_cuda", "llvmlite"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import numpy as np, torch
import ggmlq as gq, ggmlq.torch as gt
fresh = np.random.default_rng(int(sys.argv[1]))
for index in range(torch.cuda.device_count()):
    for name in ("q4_0", "q4_K", "q8_0", "f16"):
        q = gq.quantize(fresh.standard_normal((48, 512), np.float32), name)
        layer, values = gt.Linear(q).to(f"cuda:{index}"), torch.from_numpy(np.asarray(q)).to(f"cuda:{index}")
        for rows in (1, 8, 40, 300):
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.randn(rows, 512, device=f"cuda:{index}").to(dtype).requires_grad_()
                for _ in range(3):
                    y = layer(x)
                want = x.float() @ values.T
                assert float((y - want).norm() / want.norm()) < 2e-2, (index, name, rows, dtype)
                y.sum().backward()
        ids = torch.tensor([[0, 3], [47, 3]], device=f"cuda:{index}")
        assert torch.equal(gt.Embedding(q, torch.float32).to(f"cuda:{index}")(ids), values[ids])
        experts = gq.quantize(fresh.standard_normal((3, 48, 512), np.float32), name)
        y = gt.Experts(experts).to(f"cuda:{index}")(x[:2].detach(), ids % 3)
        assert torch.isfinite(y).all()
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_neither_cupy_nor_numba(fresh):
    """On each GPU of this machine, in a process that can import neither."""
    skip_if_stale(served.STORE)
    command = [sys.executable, "-c", ALONE, str(fresh.integers(1 << 30))]
    env = {name: value for name, value in os.environ.items() if name != "GGMLQ_COMPILE_HERE"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not {"cupy", "numba", "numba_cuda", "llvmlite"} & set(done.stdout.split())


def test_a_layer_goes_to_the_card_and_back(fresh):
    q = gq.quantize(fresh.standard_normal((N, K), np.float32), "q4_K")
    layer, x = gt.Linear(q), floats(fresh, 5, K)
    with torch.no_grad():
        for _ in range(3):
            y = layer.cuda()(x)
            here = layer.cpu()(x.cpu())
            assert far(y.cpu(), here) <= 2e-2
        assert np.array_equal(layer.weight.numpy(), q.raw)
        other = torch.cuda.Stream()
        layer.cuda()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            assert torch.equal(layer(x), y)
