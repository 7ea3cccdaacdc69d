"""The operators of torch: bits of the products here, gradients, opcheck, torch.compile, memory of torch."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

import ggmlq.torch as gt  # noqa: E402
from ggmlq.torch import blocks  # noqa: E402

N, K, E = 40, 512, 3
OPS = torch.ops.ggmlq
TYPES = ["q4_K", "q8_0", "q4_0", "q6_K", "iq4_nl", "nvfp4", "f16"]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
OPCHECKED = pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck looks at it


def tensors(fresh, name, *lead):
    """An array of blocks, a tensor of its bytes, and its type."""
    q = gq.quantize(fresh.standard_normal((*lead, N, K), np.float32), name)
    return q, torch.from_numpy(q.raw.copy()), q.format.id


def floats(fresh, *shape, dtype=torch.float32):
    return torch.from_numpy(fresh.standard_normal(shape, np.float32)).to(dtype)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", TYPES)
def test_products_have_the_bits_of_arrays(name, fresh):
    q, w, type = tensors(fresh, name)
    bias = floats(fresh, N)
    for shape in ((K,), (1, K), (2, 3, K), (0, K), (17, K)):
        x = floats(fresh, *shape)
        want = gq.linear(x.numpy(), q, bias=bias.numpy())
        for _ in range(2):
            assert np.array_equal(OPS.linear(x, w, type, N, bias).numpy(), want)
            assert np.array_equal(
                OPS.linear(x, OPS.prepare(w, type), type | gt.PREPARED, N, bias).numpy(), want
            )
    for dtype in FLOATS:
        y = OPS.linear(x.to(dtype), w, type, N)
        assert y.dtype == dtype
        assert torch.equal(y, torch.from_numpy(gq.linear(x.to(dtype).float().numpy(), q)).to(dtype))
        assert OPS.linear(x, w, type, N, None, dtype).dtype == dtype
        assert torch.equal(OPS.dequantize(w, type, [N, K], dtype), torch.from_numpy(np.asarray(q)).to(dtype))
        ids = torch.from_numpy(fresh.integers(0, N, (2, 5)))
        rows = OPS.get_rows(w, type, ids, dtype)
        assert torch.equal(rows, torch.from_numpy(gq.take(q, ids.numpy())).to(dtype))
        assert torch.equal(OPS.get_rows(w, type, ids.int(), dtype), rows)
    apart = floats(fresh, K, 6).T
    assert torch.equal(OPS.linear(apart, w, type, N), OPS.linear(apart.contiguous(), w, type, N))
    strided = torch.from_numpy(np.repeat(q.raw, 2, axis=0))[::2]
    assert torch.equal(OPS.linear(apart, strided, type, N), OPS.linear(apart, w, type, N))


@OPCHECKED
def test_experts(fresh):
    q, w, type = tensors(fresh, "q4_K", E)
    ids = torch.from_numpy(fresh.integers(0, E, (5, 2)))
    values = torch.from_numpy(np.asarray(q))
    for shape in ((5, K), (5, 2, K)):
        x = floats(fresh, *shape).requires_grad_()
        y = OPS.expert_linear(x, w, ids, type, N)
        assert np.array_equal(y.detach().numpy(), gq.expert_linear(x.detach().numpy(), q, ids.numpy()))
        dy = floats(fresh, 5, 2, N)
        y.backward(dy)
        dx = torch.einsum("tun,tunk->tuk", dy, values[ids])
        torch.testing.assert_close(x.grad, dx if x.dim() == 3 else dx.sum(1), rtol=1e-4, atol=1e-4)
        torch.library.opcheck(OPS.expert_linear.default, (x, w, ids, type, N))
    half = OPS.expert_linear(x.half(), w, ids, type, N)
    assert (half.dtype, half.shape) == (torch.float16, (5, 2, N))
    with pytest.raises(errors.BlockIndexError, match="experts, numbered from 0"):
        OPS.expert_linear(x, w, ids + E, type, N)
    with pytest.raises(errors.ShapeError, match=r"ids are \[T, U\]"):
        OPS.expert_linear(x, w, ids[0], type, N)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_are_those_of_the_decoded_weights(dtype, fresh):
    q, w, type = tensors(fresh, "q4_K")
    values = torch.from_numpy(np.asarray(q))
    x, bias = floats(fresh, 2, 4, K, dtype=dtype).requires_grad_(), floats(fresh, N).requires_grad_()
    y = OPS.linear(x, w, type, N, bias)
    dy = floats(fresh, 2, 4, N, dtype=dtype)
    y.backward(dy)
    assert (x.grad.dtype, bias.grad.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(x.grad, (dy.float() @ values).to(dtype), rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(bias.grad, dy.sum((0, 1)).float(), rtol=1e-2, atol=1e-3)
    twice = OPS.linear_grad(dy.requires_grad_(), w, type, K)
    twice.sum().backward()
    assert dy.grad.shape == dy.shape
    with pytest.raises(RuntimeError, match="floating point"):
        w.requires_grad_()
    loss = OPS.linear(x.detach(), w, type, N)
    assert not loss.requires_grad


@OPCHECKED
def test_opcheck_and_stand_ins(fresh):
    _, w, type = tensors(fresh, "q8_0")
    x = floats(fresh, 3, K).requires_grad_()
    cases = {
        OPS.linear: [(x, w, type, N, floats(fresh, N).requires_grad_()), (x.detach().half(), w, type, N)],
        OPS.linear_grad: [(floats(fresh, 2, 3, N).requires_grad_(), w, type, K)],
        OPS.dequantize: [(w, type, [N, K], torch.bfloat16), (w, type, [2, N // 2, K], torch.float32)],
        OPS.get_rows: [(w, type, torch.tensor([[1, 2]]), torch.float16)],
        OPS.prepare: [(w, type)],
        OPS.fake_quantize: [(x, type), (x.detach().half(), type, floats(fresh, K).abs())],
    }
    for operator, calls in cases.items():
        for arguments in calls:
            torch.library.opcheck(operator.default, arguments)
    meta = OPS.linear(x.to("meta"), w.to("meta"), type, N)
    assert (meta.device.type, meta.shape) == ("meta", (3, N))


def test_fake_quantize(fresh):
    """The bits of encoded and decoded values, in the dtype of x; a gradient that goes straight through."""
    fmt = sorted(fmt.name for fmt in gq.formats.values() if fmt.can_quantize and fmt.block_size > 1)
    name, importance = str(fresh.choice(fmt)), floats(fresh, 512).abs()
    for x in (floats(fresh, 2, 3, 512), floats(fresh, 2, 512).bfloat16()):
        x.requires_grad_()
        want = gq.fake_quantize(x.detach().float().numpy(), name, importance.numpy())
        assert np.array_equal(want, gq.quantize(x.detach().float().numpy(), name, importance).dequantize())
        y = gt.fake_quantize(x, name, importance)
        assert torch.equal(y, torch.from_numpy(want).to(x.dtype)), name
        (3 * y).sum().backward()
        assert (x.grad == 3).all()
    f = torch.compile(lambda x: gt.fake_quantize(2 * x, "q8_0").sum(), fullgraph=True, backend="eager")
    f(x).backward()
    assert torch.equal(x.grad, torch.full_like(x, 5))
    with pytest.raises(gq.errors.ShapeError, match=r"rows of 100, type 12 is q4_K, in blocks of 256; pass"):
        gt.fake_quantize(torch.ones(2, 100), "q4_K")


def test_compiled_whole_with_any_number_of_rows(fresh):
    """One graph, forward and backward, with eager's bits; experts and rows too."""
    _, w, type = tensors(fresh, "q4_K")
    _, e, _ = tensors(fresh, "q4_K", E)

    def model(x, ids):
        y = OPS.linear(x * 2, w, type, N).relu()
        y = y + OPS.get_rows(w, type, ids[:, 0], torch.float32)[:, :N]
        return y + OPS.expert_linear(x, e, ids, type, N).sum(1)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 5, 9):
        ids = torch.from_numpy(fresh.integers(0, E, (rows, 2)))
        x = floats(fresh, rows, K).requires_grad_()
        y = compiled(x, ids)
        y.sum().backward()
        dx, x.grad = x.grad, None
        want = model(x, ids)
        assert torch.equal(y, want)
        want.sum().backward()
        assert torch.equal(dx, x.grad)


def test_vmap_export_and_checkpoints(fresh):
    """Other ways of torch to call a function: batches, a program for export, activations computed again."""
    q, w, type = tensors(fresh, "q4_K")
    x = floats(fresh, 4, 3, K)
    want = OPS.linear(x, w, type, N)
    assert torch.equal(torch.vmap(lambda rows: OPS.linear(rows, w, type, N))(x), want)
    assert torch.equal(torch.vmap(lambda rows: OPS.linear(rows, w, type, N), 1, 1)(x), want)
    with pytest.raises(errors.UnsupportedError, match="through x alone"):
        torch.vmap(lambda bias: OPS.linear(x, w, type, N, bias))(floats(fresh, 2, N))
    layer, rows = gt.Linear(q), torch.export.Dim("rows")
    program = torch.export.export(layer, (x[0],), dynamic_shapes=({0: rows},)).module()
    assert torch.equal(program(x[:, 0]), layer(x[:, 0]))
    learning = x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(layer, learning, use_reentrant=False).sum().backward()
    torch.testing.assert_close(
        learning.grad, torch.ones_like(want) @ torch.from_numpy(np.asarray(q)), rtol=1e-4, atol=1e-4
    )


def test_autocast(fresh):
    _, w, type = tensors(fresh, "q4_K")
    x = floats(fresh, 3, K).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = OPS.linear(x, w, type, N)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        assert OPS.linear(x.detach().double(), w, type, N).dtype == torch.float64
    assert x.grad.dtype == torch.float32
    rounded = x.detach().bfloat16()
    assert torch.equal(y, OPS.linear(rounded, w, type, N))


def test_writes_are_seen_and_nothing_stays(fresh):
    q, w, type = tensors(fresh, "q8_0")
    x = floats(fresh, 2, K)
    before = OPS.linear(x, w, type, N)
    other = gq.quantize(-np.asarray(q), "q8_0")
    w.copy_(torch.from_numpy(other.raw.copy()))
    after = OPS.linear(x, w, type, N)
    assert np.array_equal(after.numpy(), gq.linear(x.numpy(), other))
    w.numpy()[:] = q.raw  # torch counts no write
    gt.forget(w)
    assert torch.equal(OPS.linear(x, w, type, N), before)
    assert torch.equal(OPS.linear(x, w.view(-1).view(N, -1), type, N), before)
    entries = len(blocks._ARRAYS)
    assert entries
    part = w[: N // 2]
    assert torch.equal(OPS.linear(x, part, type, N // 2), before[:, : N // 2])
    del w, part
    gc.collect()
    assert len(blocks._ARRAYS) < entries
    with torch.inference_mode():
        w = torch.from_numpy(q.raw.copy()).clone()
        assert torch.equal(OPS.linear(x, w, type, N), before)


def test_threads_share_a_tensor(fresh):
    _, w, type = tensors(fresh, "q4_K")
    x = floats(fresh, 4, K)
    want, results = OPS.linear(x, w, type, N), []
    gt.forget(w)

    def work():
        results.extend(OPS.linear(x, w, type, N) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    assert all(torch.equal(y, want) for y in results)


def test_errors_in_words(fresh):
    _, w, type = tensors(fresh, "q4_K")
    x = floats(fresh, 2, K)
    OPS.linear(x, w, type, N)  # the words are the same after a call that was right
    for arguments, kind, text in (
        ((x.int(), w, type, N), errors.DTypeError, "x is torch.int32"),
        ((x, w.float(), type, N), errors.DTypeError, "w is torch.float32"),
        ((x[:, :100], w, type, N), errors.ShapeError, "blocks of q4_K hold 256"),
        ((x, w, type, N - 1), errors.ShapeError, r"it is \(39, 288\)"),
        ((x, w, 8, N), errors.ShapeError, "in q8_0"),
        ((x[0, 0], w, type, N), errors.ShapeError, "a single number"),
        ((x, w, type, N, floats(fresh, N + 1)), errors.ShapeError, "bias"),
        ((x, w, type, N, None, torch.int8), errors.DTypeError, "results are floats, not torch.int8"),
        ((x.to(torch.float8_e4m3fn), w, type, N), errors.DTypeError, "x is torch.float8_e4m3fn"),
        ((x[:, :256], w, type, N), errors.ShapeError, "rows of 256 numbers; those of w have 512 in q4_K"),
        ((x, w, 31, N), errors.FormatError, "31"),
        ((x.to("meta"), w, type, N), errors.DeviceError, "meta"),
    ):
        with pytest.raises(kind, match=text):
            OPS.linear(*arguments)
    with pytest.raises(errors.ShapeError, match="bytes, shape"):
        OPS.dequantize(w, type, [N, 2 * K], torch.float32)
    with pytest.raises(errors.DTypeError, match="they are integers"):
        OPS.get_rows(w, type, torch.zeros(2), torch.float32)
    with pytest.raises(errors.BlockIndexError, match="numbered from 0"):
        OPS.get_rows(w, type, torch.tensor([N]), torch.float32)
    with pytest.raises(errors.UnsupportedError, match="are prepared"):
        OPS.prepare(w, type | gt.PREPARED)


def test_examples_of_the_room():
    import doctest
    import importlib
    import pkgutil

    for part in pkgutil.iter_modules(gt.__path__):
        examples = importlib.import_module(f"{gt.__name__}.{part.name}")
        assert doctest.testmod(examples).failed == 0, part.name
    assert doctest.testmod(gt).failed == 0


def test_the_package_does_not_import_torch():
    code = "import sys, ggmlq as gq; gq.linear, gq.open; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
