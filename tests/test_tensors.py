"""torch tensors in and out, on the host and on a GPU; torch itself is imported by nobody but its users."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays import tensors
from ggmlq.arrays.rows import rows
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import Linear
from ggmlq.ops import plan

N, K = 24, 128
SEED = int(np.random.default_rng().integers(1 << 31))


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request, torch):
    """Where tensors and weights are."""
    if request.param == "cuda":
        request.getfixturevalue("cupy")
        if not torch.cuda.is_available():
            pytest.skip("torch sees no GPU")
    return request.param


@pytest.fixture
def q(place):
    return gq.quantize(rows("normal", N, K, SEED), "q4_0").to(place)


def tensor(torch, place, m=6):
    return torch.from_numpy(rows("normal", m, K, SEED + 1)).to(place)


def test_torch_is_not_imported():
    program = (
        "import sys, numpy as np, ggmlq as gq\n"
        "q = gq.quantize(np.ones((2, 32), np.float32), 'q4_0')\n"
        "gq.linear(np.ones(32, np.float32), q); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def is_alike(torch, x, q):
    """True where a product of x is that of its float32: on a GPU other kernels may read 16 bits as they lie.

    ``cuda:warp_specialized`` multiplies float16 as that, float32 as bfloat16.
    """
    if q.device == "cpu" or x.dtype not in (torch.float16, torch.bfloat16):
        return True
    wide, narrow = (
        ladder.choose(Linear.here(q.format, len(x), N, K, lies, device="cuda")).name for lies in (False, True)
    )
    return wide == narrow and (x.dtype == torch.bfloat16 or wide != "cuda:warp_specialized")


@pytest.mark.parametrize("shape", [(6, K), (K,), (2, 3, K), (0, K), (2, 0, K)], ids=str)
def test_a_product(shape, torch, place, q):
    x = tensor(torch, place)[: int(np.prod(shape[:-1]))].reshape(shape)
    y = gq.linear(x, q)
    assert isinstance(y, torch.Tensor)
    assert (y.dtype, tuple(y.shape), y.device) == (torch.float32, (*shape[:-1], N), x.device)
    assert torch.equal(x @ q.T, y)
    if x.ndim < 3:
        assert torch.equal(q @ x.T if x.ndim == 2 else q @ x, y.T if x.ndim == 2 else y)
    if x.numel():
        want = gq.reference.linear(x.cpu().numpy(), q.to("cpu"))
        assert gq.nmse(y.cpu().numpy(), want) < 1e-3


def test_types_of_x(torch, place, q):
    x = tensor(torch, place)
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn):
        narrow = x.to(dtype)
        y, want = gq.linear(narrow, q), gq.linear(narrow.float(), q)
        if is_alike(torch, narrow, q):
            assert torch.allclose(y, want, rtol=1e-5, atol=1e-5)
        assert gq.nmse(y.cpu().numpy(), want.cpu().numpy()) < 1e-4
    if is_alike(torch, x.bfloat16(), q):
        assert torch.equal(gq.linear(x.bfloat16(), q), gq.linear(x.bfloat16().float(), q))
    strided = x.repeat_interleave(2, dim=1)[:, ::2]
    assert torch.equal(gq.linear(strided, q), gq.linear(x, q))
    assert torch.equal(gq.linear(x[:1].expand(6, K), q), gq.linear(x[:1].repeat(6, 1), q))


def test_types_of_results(torch, place, q):
    x, bias = tensor(torch, place), torch.randn(N).to(place)
    want = gq.linear(x, q, bias=bias)
    assert torch.allclose(want, gq.linear(x, q) + bias)
    assert gq.linear(x, q, dtype=np.float16).dtype == torch.float16
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        y = gq.linear(x, q, bias=bias, dtype=dtype)
        assert y.dtype == dtype
        rowwise, columnwise = (torch.empty(size, dtype=dtype, device=place) for size in ((6, N), (N, 6)))
        for out in (rowwise, columnwise.T):
            assert gq.linear(x, q, bias=bias, out=out) is out
            assert torch.equal(out, y)
        assert torch.equal(y, want.to(dtype))


def test_out_may_be_x(torch, place):
    q, x = gq.quantize(rows("normal", K, K, SEED), "q8_0").to(place), tensor(torch, place)
    want = gq.linear(x, q)
    assert torch.equal(gq.linear(x, q, out=x.clone()), want)
    for apart in (0, 3):
        both = torch.empty(6 + apart, K, device=place)
        both[:6] = x
        assert torch.equal(gq.linear(both[:6], q, out=both[apart:]), want)


def test_no_gradient_is_lost(torch, place, q):
    x = tensor(torch, place).requires_grad_()
    with pytest.raises(gq.GGMLQError, match=r"x requires a gradient.*x\.detach\(\)"):
        gq.linear(x, q)
    with pytest.raises(gq.GGMLQError, match="bias requires a gradient"):
        gq.linear(x.detach(), q, bias=torch.nn.Parameter(torch.zeros(N, device=place)))
    with torch.no_grad():
        y = gq.linear(x, q)
    with torch.inference_mode():
        assert torch.equal(gq.linear(x, q), y)
    assert torch.equal(gq.linear(x.detach(), q), y)
    assert not y.requires_grad


def test_quantize_takes_parameters(torch, place):
    w = torch.nn.Parameter(tensor(torch, place))
    for kind in (w, w.bfloat16()):
        q = gq.quantize(kind, "q8_0")
        assert q.device.startswith(place)
        want = gq.quantize(kind.detach().float().cpu().numpy(), "q8_0")
        assert np.array_equal(q.to("cpu").raw, want.raw)


def test_words(torch, place, q):
    x = tensor(torch, place)
    for call, words in (
        (lambda: gq.linear(x.int(), q), r"x is a tensor of torch\.int32.*x\.float\(\)"),
        (lambda: gq.linear(x.to_sparse(), q), r"torch\.sparse_coo.*x\.to_dense\(\)"),
        (lambda: gq.linear(x.to("meta"), q), "x is a tensor on meta"),
        (lambda: gq.linear(x[:, :32], q), "the last axis of both is K"),
        (lambda: gq.linear(x, x), "the weights are a Tensor"),
        (lambda: gq.linear(x, q, out=np.empty((6, N), np.float32)), r"torch\.as_tensor\(out\)"),
        (lambda: gq.linear(x, q, bias=np.zeros(N, np.float32)), r"torch\.as_tensor\(bias\)"),
        (lambda: gq.linear(x, q, out=x.new_empty(6, N, dtype=torch.int32)), "out is a tensor of torch.int32"),
        (lambda: gq.linear(x, q, out=x.new_empty(6, N).bfloat16()[None]), "out has shape"),
        (lambda: gq.linear(x, q, dtype=torch.int8), "torch.int8 was asked for"),
        (lambda: gq.linear(x, q, dtype="int8"), "int8 was asked for"),
        (lambda: x @ q, r"write x @ q\.T"),
    ):
        with pytest.raises(gq.GGMLQError, match=words):
            call()


@pytest.mark.parametrize("place", ["cpu"], indirect=True)
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("m", [1, 4])
def test_again_on_the_host(m, kind, torch, place, q):
    """By a plan from the second call on, and the same bits with all that may be asked."""
    x = tensor(torch, place, m).to(getattr(torch, kind))
    want = torch.from_numpy(gq.linear(x.float().numpy(), q))
    bias = torch.randn(N)
    for _ in range(3):
        assert torch.equal(gq.linear(x, q), want)
        assert torch.equal(torch.matmul(x, q.T), want)
        assert torch.equal(x[None] @ q.T, want[None])
        for b in (bias, bias.half(), torch.nn.Parameter(bias)):
            with torch.no_grad():
                assert torch.equal(gq.linear(x, q, bias=b), want + b)
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            out = torch.full((m, N), torch.nan, dtype=dtype)
            assert torch.equal(gq.linear(x, q, dtype=dtype), want.to(dtype))
            assert gq.linear(x, q, out=out) is out
            assert torch.equal(out, want.to(dtype))
    assert q.recording((x.shape, "auto", None)) is not None
    assert gq.linear(x, q).resize_(0).shape == (0,)  # its memory is torch's


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch 2.11 about itself
@pytest.mark.parametrize("place", ["cpu"], indirect=True)
def test_torch_compile(torch, place, q):
    """A graph ends before each product and begins after it; warnings are errors here."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q = q

        def forward(self, x):
            return gq.linear(x * 2, self.q).relu() + 1

    x, layer = tensor(torch, place), Layer()
    calls = [lambda x: (x @ q.T).relu(), layer]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Guards may run slower")  # on Python 3.13.0
        for call in calls:
            torch._dynamo.reset()
            compiled = torch.compile(call, backend="eager")
            for rows in (x, x[:2]):
                assert torch.allclose(compiled(rows), call(rows), rtol=1e-5)
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"ggmlq: torch\.compile cannot trace"):
            torch.compile(layer, backend="eager", fullgraph=True)(x)


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
@pytest.mark.parametrize("place", ["cpu"], indirect=True)
def test_tensors_without_numbers(torch, place, q):
    """The same error before and after there is a plan."""
    x = tensor(torch, place)
    for _ in range(2):
        for call in (
            lambda: torch.vmap(lambda row: gq.linear(row, q))(x),
            lambda: torch.vmap(lambda row: row @ q.T)(x),
            lambda: torch.jit.trace(lambda rows: gq.linear(rows, q), x),
        ):
            with pytest.raises(gq.GGMLQError, match=r"the numbers of x cannot be read \(.*dequantize"):
                call()
        gq.linear(x, q), gq.linear(x[0], q)


def test_compiling_is_left_to_torch(monkeypatch):
    """Without torch: where its compiler traces, an operation runs as ``torch.compiler.disable`` makes it."""
    calls = []

    def disable(function):
        return lambda *given, **options: calls.append(function.__name__) or function(*given, **options)

    compiler = SimpleNamespace(is_dynamo_compiling=lambda: not calls, disable=disable)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(compiler=compiler, Tensor=type(None)))
    monkeypatch.setitem(sys.modules, "torch.compiler", compiler)
    monkeypatch.setattr(tensors, "_outside", {})
    q = gq.QuantArray.from_bytes(bytes(34), "q8_0", (1, 32))
    assert gq.linear(np.ones(32, np.float32), q).tolist() == [0.0]
    assert calls == ["linear"]
    assert gq.linear._torchdynamo_disable


@pytest.mark.parametrize("place", ["cuda"], indirect=True)
@pytest.mark.cuda
class TestOnAGpu:
    """Streams, memory and graphs are torch's."""

    def test_one_device(self, torch, place, q):
        x = tensor(torch, place)
        with pytest.raises(gq.GGMLQError, match="x is on cpu, q on cuda:0"):
            gq.linear(x.cpu(), q)
        with pytest.raises(gq.GGMLQError, match="x is on cuda:0, q on cpu"):
            gq.linear(x, q.to("cpu"))
        with pytest.raises(gq.GGMLQError, match="out is not on cuda:0"):
            gq.linear(x, q, out=torch.empty(6, N))

    def test_a_stream_of_torch(self, torch, place, q):
        x, late = torch.zeros(6, K, device=place), tensor(torch, place)
        want = gq.linear(late, q)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            big = torch.ones(4096, 4096, device=place)
            for _ in range(20):
                big = big @ big * 1e-4
            x.copy_(late)
            y = gq.linear(x, q)
            x.zero_()
        stream.synchronize()
        assert torch.equal(y, want)

    def test_the_memory_is_torchs(self, torch, place, q, cupy):
        x = torch.ones(64, K, device=place)
        gq.linear(x, q)
        before = cupy.get_default_memory_pool().total_bytes()
        y = gq.linear(x, q)
        assert cupy.get_default_memory_pool().total_bytes() == before
        assert y.untyped_storage().nbytes() == 64 * N * 4

    def test_a_graph_of_torch(self, torch, place, q):
        x, out = torch.zeros(6, K, device=place), torch.zeros(6, N, device=place)
        gq.linear(x, q, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gq.linear(x, q, out=out)
            y = gq.linear(x, q)
        for m in range(3):
            x.copy_(tensor(torch, place) * (m + 1))
            graph.replay()
            want = gq.linear(x, q)
            assert torch.equal(out, want)
            assert torch.equal(y, want)
        assert not q.recorded

    @pytest.mark.parametrize("m", [1, 20, 64, 300])
    def test_a_graph_of_bfloat16(self, m, torch, place, q, monkeypatch):
        """One call before it is enough, whatever other calls have loaded."""
        from ggmlq.cuda.driver.launch import Kernel

        for kernel in gc.get_objects():
            if type(kernel) is Kernel:  # isinstance would ask objects of torch for their class, which warn
                monkeypatch.setattr(kernel, "_loaded", {})
        x, graph = tensor(torch, place, m).bfloat16(), torch.cuda.CUDAGraph()
        want = gq.linear(x, q)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = gq.linear(x, q)
        graph.replay()
        assert torch.equal(y, want)

    @pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
    @pytest.mark.parametrize("m", [1, 3, 8, 17, 64, 300, 1024])
    def test_again_and_again(self, m, kind, torch, place, q, cupy):
        """From the third call on by a plan; the same bits as without one, with all that may be asked."""
        x = tensor(torch, place, m).to(getattr(torch, kind))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan, "on_device", lambda *operands: None)
            want = torch.from_dlpack(gq.linear(cupy.from_dlpack(x.float()), q))
            if not is_alike(torch, x, q):
                want = gq.linear(x, q)
        bias = torch.randn(N, device=place)
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for _ in range(4):
                    assert torch.equal(gq.linear(x, q), want)
                    out = torch.full((m, N), torch.nan, device=place)
                    assert gq.linear(x, q, out=out) is out
                    assert torch.equal(out, want)
                    for b in (bias, bias.half(), bias.bfloat16()):
                        assert torch.equal(gq.linear(x, q, bias=b), want + b)
                    for dtype in (torch.float16, torch.bfloat16):
                        assert torch.equal(gq.linear(x, q, dtype=dtype), want.to(dtype))
                        assert torch.equal(gq.linear(x, q, out=out.to(dtype)), want.to(dtype))
                stream.synchronize()
        rung = ladder.choose(Linear.here(q.format, m, N, K, device="cuda"))
        letter = {"float32": "f", "float16": "e", "bfloat16": "H"}[kind]
        key = plan.key_of(m, "auto", None, letter + "f")
        assert (type(q.recording(key)) not in (type(None), ladder.Rung)) is rung.repeats
        assert gq.linear(x[:0], q).shape == (0, N)

    def test_between_kernels_memory_is_torchs(self, torch, place, cupy):
        """On a stream of its own, used again at once by what comes after."""
        q = gq.quantize(rows("normal", 1024, 1024, SEED), "q4_0").to(place)
        x = torch.from_numpy(rows("normal", 64, 1024, SEED)).to(place)
        want = gq.linear(x, q)
        for _ in range(2):
            assert torch.equal(gq.linear(x, q), want)
        pool = cupy.get_default_memory_pool().total_bytes()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(20):
                y = gq.linear(x, q)
                noise = torch.full((1 << 20,), torch.nan, device=place)
                assert torch.equal(y, want)
            del noise
        assert cupy.get_default_memory_pool().total_bytes() == pool
