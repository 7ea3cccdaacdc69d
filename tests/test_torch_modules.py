"""Packed modules move, copy and travel as torch's own; models are quantized, filled and trained in place."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

import ggmlq.torch as gt  # noqa: E402

N, K, E, WORDS = 48, 256, 3, 20


def quantized(fresh, *shape, name="q4_K", scale=None):
    q = gq.quantize(fresh.standard_normal(shape, np.float32), name)
    return gq.QuantArray.from_bytes(q.raw, name, shape, scale=scale)


def floats(fresh, *shape):
    return torch.from_numpy(fresh.standard_normal(shape, np.float32))


class Tiny(torch.nn.Module):
    """Words, two layers, and an output that may have the words' weights."""

    def __init__(self, tied=False):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, K)
        self.up, self.down = torch.nn.Linear(K, N), torch.nn.Linear(N, K, bias=False)
        self.norm = torch.nn.LayerNorm(K)
        self.output = torch.nn.Linear(K, WORDS, bias=False)
        if tied:
            self.output.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        return self.output(self.norm(x + self.down(torch.nn.functional.silu(self.up(x)))))


def test_a_layer_leaves_out_the_dispatcher_only_where_it_has_nothing_to_do(fresh, monkeypatch):
    from torch.utils._python_dispatch import TorchDispatchMode

    from ggmlq.torch import products

    layer, x = gt.Linear(quantized(fresh, N, K)), floats(fresh, 3, K)
    want = layer(x)  # the first call of weights is the operator's
    done = []
    linear_at_once = products.linear_at_once
    monkeypatch.setattr(
        "ggmlq.torch.modules.linear_at_once",
        lambda *operands: (done.append(linear_at_once(*operands)), done[-1])[1],
    )

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, operands=(), options=None):
            seen.append(str(function))
            return function(*operands, **(options or {}))

    def at_once(call):
        done.clear()
        result = call()
        return result, [y is not None for y in done]

    same, direct = at_once(lambda: layer(x))
    assert direct == [True]
    assert torch.equal(same, want)
    seen = []
    with Names():
        assert at_once(lambda: layer(x))[1] == [False]
    assert seen == ["ggmlq.linear.default"]
    assert at_once(lambda: torch.func.vmap(layer)(x))[1] == [False]
    y, direct = at_once(lambda: layer(x.clone().requires_grad_()))
    assert (y.requires_grad, direct) == (True, [False])
    with torch.autocast("cpu", torch.bfloat16):
        y, direct = at_once(lambda: layer(x))
    assert (y.dtype, direct) == (torch.bfloat16, [False])
    with torch.profiler.profile() as profile:
        layer(x)
    assert any(event.name == "ggmlq::linear" for event in profile.events())
    negative = torch.complex(x, x).conj().imag  # a view that says of its numbers that they are negative
    assert torch.equal(at_once(lambda: layer(negative))[0], layer(-x))
    layer.weight.data = layer.weight.data.clone()
    assert at_once(lambda: layer(x))[1] == [False]
    biased, bias = gt.Linear(quantized(fresh, N, K), floats(fresh, N)), torch.nn.Identity()
    want = biased(x).detach()
    torch.nn.utils.parametrize.register_parametrization(biased, "bias", bias)  # a property of another class
    assert torch.equal(biased(x), want)
    monkeypatch.setattr(products, "in_a_mode", lambda: True)
    assert at_once(lambda: layer(x))[1] == [False]


@pytest.mark.parametrize("scale", [None, 0.25])
def test_linear(scale, fresh):
    q, bias = quantized(fresh, N, K, name="nvfp4", scale=scale), floats(fresh, N)
    layer = gt.Linear(q, bias)
    assert isinstance(layer, torch.nn.Linear)
    assert "nvfp4, 4.5 bits a weight" + ", scale" * (scale is not None) in repr(layer)
    x = floats(fresh, 2, 3, K)
    want = gq.linear(x.numpy(), q, bias=bias.numpy())
    assert np.array_equal(layer(x).detach().numpy(), want)
    half = layer(x.half())
    assert half.dtype == torch.float16
    assert np.array_equal(layer.dequantize().numpy(), np.asarray(q))
    assert layer.dequantize(torch.bfloat16).dtype == torch.bfloat16
    learning = x.clone().requires_grad_()
    layer(learning).sum().backward()
    torch.testing.assert_close(
        learning.grad, torch.ones(2, 3, N) @ torch.from_numpy(np.asarray(q)), rtol=1e-4, atol=1e-4
    )
    assert layer.bias.grad is not None
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == ["bias"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    rows = gq.concatenate([q, quantized(fresh, 5, K, name="nvfp4", scale=3.0)])
    joined = gt.Linear(rows)
    assert np.array_equal(joined(x).numpy(), gq.linear(x.numpy(), rows))


def test_embedding_and_experts(fresh):
    for scale in (None, 0.5):
        q = quantized(fresh, WORDS, K, name="nvfp4", scale=scale)
        layer, ids = gt.Embedding(q), torch.from_numpy(fresh.integers(0, WORDS, (2, 3)))
        assert np.array_equal(layer(ids).numpy(), gq.take(q, ids.numpy()))
        assert layer.to(torch.bfloat16)(ids).dtype == torch.bfloat16
        assert gt.Embedding(q, torch.float16)(ids).dtype == torch.float16
        q = quantized(fresh, E, N, K, name="nvfp4", scale=None if scale is None else [0.5, 2, 3])
        experts, uses = gt.Experts(q), torch.from_numpy(fresh.integers(0, E, (4, 2)))
        x, weights = floats(fresh, 4, K), floats(fresh, 4, 2)
        want = gq.expert_linear(x.numpy(), q, uses.numpy())
        assert np.array_equal(experts(x, uses).numpy(), want)
        assert experts(x.bfloat16(), uses).dtype == torch.bfloat16
        torch.testing.assert_close(
            experts(x, uses, weights),
            torch.from_numpy((want * weights.numpy()[..., None]).sum(1)),
            rtol=1e-4,
            atol=1e-4,
        )
    assert "nvfp4" in repr(layer)
    assert f"{E} experts" in repr(experts)


def test_modules_travel(fresh):
    """Copies, pickles, state_dicts of files' bytes and of prepared ones, and other modules' floats."""
    model = torch.nn.Sequential(gt.Linear(quantized(fresh, N, K, name="nvfp4", scale=2.0), floats(fresh, N)))
    x = floats(fresh, 3, K)
    want = model(x).detach()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    state = torch.load(io.BytesIO(buffer.getvalue()))
    assert set(state) == {"0.weight", "0.bias", "0.scale"}
    other = torch.nn.Sequential(gt.Linear(quantized(fresh, N, K, name="nvfp4", scale=1.0), floats(fresh, N)))
    for form in (state, state | {"0.weight": torch.ops.ggmlq.prepare(state["0.weight"], 40).reshape(-1)}):
        other[0].weight.data.zero_()
        other.load_state_dict(form)
        assert torch.equal(other(x), want)
    other.load_state_dict(state, assign=True)
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other, model.to("cpu")]
    assert all(torch.equal(twin(x), want) for twin in twins)
    half = copy.deepcopy(model).half()
    assert (half[0].bias.dtype, half[0].scale.dtype, half[0].weight.dtype) == (
        torch.float16,
        torch.float32,
        torch.uint8,
    )
    flat = torch.nn.utils.parameters_to_vector([model[0].weight.view(-1)])
    assert flat.numel() == model[0].weight.numel()
    with pytest.raises(RuntimeError, match="quantize it first"):
        model.load_state_dict(torch.nn.Sequential(torch.nn.Linear(K, N)).state_dict(), strict=False)
    with pytest.raises(errors.DTypeError, match=r"QuantArray \[N, K\]"):
        gt.Linear(np.zeros((2, 3)))
    with pytest.raises(errors.DTypeError, match=r"QuantArray \[E, N, K\]"):
        gt.Experts(quantized(fresh, N, K))


def test_fork(fresh):
    code = """if True:
        import os, numpy as np, torch, ggmlq as gq, ggmlq.torch as gt
        layer = gt.Linear(gq.quantize(np.random.default_rng(1).standard_normal((8, 256), np.float32), "q4_K"))
        x = torch.ones(2, 256)
        want = layer(x)
        if os.fork() == 0:
            os._exit(0 if torch.equal(layer(x), want) else 3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "0"


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_is_quantized_in_place(tied, fresh):
    model = Tiny(tied).eval()
    dense = copy.deepcopy(model)
    ids = torch.from_numpy(fresh.integers(0, WORDS, (2, 7)))
    report = gt.quantize_(model, "q8_0", progress=False)
    assert set(report.taken) == {"words", "up", "output"}
    assert "blocks of q8_0 hold 32" in report.left["down"]
    assert "3 layers packed, 1 left" in str(report)
    assert (model.output.weight is model.words.weight) == tied
    assert gt.packed_bytes(model) == (N + WORDS * (1 if tied else 2)) * K // 32 * 34
    blocks = gq.quantize(dense.up.weight.detach().numpy(), "q8_0").raw
    assert np.array_equal(model.up.weight.numpy(), blocks)
    assert gq.nmse(model(ids).detach().numpy(), dense(ids).detach().numpy()) < 1e-3
    assert torch.equal(copy.deepcopy(model)(ids), model(ids))


def test_which_layers_are_taken(fresh):
    model = Tiny()
    report = gt.quantize_(model, "q4_K", include=["u*", "words"], exclude=lambda name: name == "words")
    assert list(report.taken) == ["up"]
    assert report.left["output"] == "its name was not picked"
    importance = np.ones(K, np.float32)
    gt.quantize_(model, "iq2_xxs", include="output", imatrix={"output.weight": importance})
    assert model.output.format.name == "iq2_xxs"
    with pytest.raises(errors.DeviceError, match="device meta"):
        gt.quantize_(Tiny().to("meta"), "q8_0")
    with pytest.raises(errors.UnsupportedError, match="single layer"):
        gt.quantize_(torch.nn.Linear(K, N), "q8_0")
    for pattern in ([3], 3):
        with pytest.raises(errors.DTypeError, match="function of a name"):
            gt.quantize_(Tiny(), "q8_0", include=pattern)
    for call in (lambda: gt.quantize_("tiny", "q8_0"), lambda: gt.load_(None, "x"), lambda: gt.lora_([])):
        with pytest.raises(errors.DTypeError, match=r"it is a torch\.nn\.Module"):
            call()
    with pytest.raises(errors.DTypeError, match="names are a mapping"):
        gt.load_(Tiny(), "tiny.gguf", names=["up"])
    with pytest.raises(errors.DTypeError, match="base is Linear"):
        gt.LoRA(torch.nn.Linear(K, N))
    with pytest.raises(errors.UnsupportedError, match="no packed Linear"):
        gt.lora_(Tiny())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's, of forward mode
def test_layers_that_cannot_be(fresh):
    """Gradients of blocks, odd biases and branches, importance of no layer, rows that a call changes."""
    q = quantized(fresh, N, K)
    layer = gt.Linear(q, floats(fresh, N))
    with pytest.raises(errors.UnsupportedError, match=r"blocks of q4_K have no gradient; .*lora_"):
        layer.requires_grad_()
    assert not layer.requires_grad_(False).bias.requires_grad
    layer.bias.requires_grad_()
    with pytest.raises(errors.DTypeError, match=r"blocks of q4_K are bytes; use \.to"):
        layer.type(torch.float64)
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level(), pytest.raises(errors.UnsupportedError, match="x has a tangent"):
        layer(forward_ad.make_dual(torch.ones(2, K), torch.ones(2, K)))
    with pytest.raises(errors.ShapeError, match=r"bias has shape \(2,\); q has 48 rows"):
        gt.Linear(q, torch.zeros(2))
    with pytest.raises(errors.DTypeError, match="it is a tensor"):
        gt.Linear(q, [0.0] * N)
    with pytest.raises(errors.ShapeError, match="a rank of 1 or more"):
        gt.lora_(torch.nn.Sequential(layer), rank=0)
    assert layer.bias.requires_grad, "nothing is frozen before all branches are made"
    with pytest.raises(errors.UnsupportedError, match="single layer"):
        gt.lora_(layer)
    for imatrix, text in (({"odd": np.ones(K)}, "no layer 'odd'"), ({"up": np.ones(3)}, r"shape \(3,\)")):
        with pytest.raises(errors.ImportanceError, match=text):
            gt.quantize_(Tiny(), "q4_K", imatrix=imatrix)
    imatrix, steps = {"up": np.ones(K), "down": np.ones(N)}, Tiny()
    gt.quantize_(steps, "q4_K", include="up", imatrix=imatrix)
    assert gt.quantize_(steps, "q4_0", include="down", imatrix=imatrix).left["up"] != ""
    model = torch.nn.Sequential(torch.nn.Embedding(4, K, max_norm=1.0), layer)
    assert gt.quantize_(model, "q8_0").left == {
        "0": "its max_norm changes rows that are read", "1": "it is packed already, in q4_K",
    }  # fmt: skip


def test_one_tensor_at_a_time(fresh, monkeypatch):
    """Floats of a layer are gone when the next one is quantized; other matrices are named, and stay."""
    model = torch.nn.Sequential(*(torch.nn.Linear(K, K) for _ in range(4)), torch.nn.Conv1d(4, 4, 3))
    floats_of = [weakref.ref(layer.weight) for layer in model[:4]]
    quantize, seen = gq.quantize, []

    def counted(*arguments):
        seen.append(sum(one() is not None for one in floats_of))
        return quantize(*arguments)

    monkeypatch.setattr(gq, "quantize", counted)
    report = gt.quantize_(model, "q8_0")
    assert seen == [4, 3, 2, 1]
    assert report.left == {"4.weight": "it is no weight of a torch.nn.Linear or torch.nn.Embedding"}


def test_experts_are_filled(fresh, tmp_path):
    model = torch.nn.ModuleDict({"mixture": gt.Experts(quantized(fresh, E, N, K))})
    q = quantized(fresh, E, N, K, name="nvfp4", scale=[1, 2, 3])
    gq.save(tmp_path / "m.gguf", {"e.weight": q})
    gt.load_(model, tmp_path / "m.gguf", {"e.weight": "mixture.weight"})
    assert isinstance(model["mixture"], gt.Experts)
    assert np.array_equal(model["mixture"].dequantize().numpy(), np.asarray(q))


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_is_filled_from_a_file(tied, fresh, tmp_path):
    """On meta before, tied weights from one tensor, floats as floats, what is missing by name."""
    source = Tiny(tied)
    gt.quantize_(source, "q8_0", exclude="output" if not tied else None)
    path = tmp_path / "m.gguf"
    tensors = {
        "w.weight": quantized(fresh, WORDS, K, name="nvfp4", scale=0.1),
        "u.weight": quantized(fresh, N, K),
    }
    tensors |= {
        "d.weight": floats(fresh, K, N).numpy(),
        "n.weight": np.ones(K, np.float32),
        "extra": np.ones(3, np.float32),
    }
    tensors |= {"n.bias": np.zeros(K, np.float32), "u.bias": floats(fresh, N).numpy()}
    if not tied:
        tensors["o.weight"] = quantized(fresh, WORDS, K)
    gq.save(path, tensors)
    parts = {"w": "words", "u": "up", "d": "down", "n": "norm", "o": "output"}

    def names(name):
        head, _, tail = name.partition(".")
        return f"{parts[head]}.{tail}" if head in parts else None

    with torch.device("meta"):
        model = Tiny(tied)
    report = gt.load_(model.eval(), path, names)
    assert report.left == {"extra": "it has no parameter"}
    assert isinstance(model.up, gt.Linear)
    assert model.words.scale.item() == np.float32(0.1)
    assert report.taken["words.weight"] == "nvfp4"
    assert (model.output.weight is model.words.weight) == tied
    ids = torch.from_numpy(fresh.integers(0, WORDS, (2, 7)))
    dense = Tiny(tied).eval()
    with torch.no_grad():
        for name, part in dense.named_parameters():
            key = next(key for key in tensors if names(key) == name)
            part.copy_(torch.from_numpy(np.array(tensors[key], np.float32)))
        assert gq.nmse(model(ids).numpy(), dense(ids).numpy()) < 1e-3
    again = gt.load_(dense, gq.open(path), names)
    assert again.taken == report.taken
    assert torch.equal(dense(ids), model(ids))
    with pytest.raises(errors.ShapeError, match="of another model"):
        gt.load_(Tiny(), path, {"u.weight": "output.weight"})
    with pytest.raises(errors.GGMLQError, match="no tensors for"):
        gt.load_(Tiny(), path, {"u.weight": "up.weight"})
    assert "words.weight" not in gt.load_(Tiny(), path, {"u.weight": "up.weight"}, strict=False).taken
    with pytest.raises(errors.GGMLQError, match="pass names"):
        gt.load_(Tiny(), path)


def test_branches_are_trained(fresh):
    """LoRA: the base is frozen, a fresh branch changes nothing, and the loss falls."""
    model = Tiny()
    gt.quantize_(model, "q8_0")
    ids = torch.from_numpy(fresh.integers(0, WORDS, (4, 6)))
    before = model(ids).detach()
    names = gt.lora_(model, rank=4, include=["up", "output"])
    assert names == ["up", "output"]
    assert torch.equal(model(ids), before)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"up.a", "up.b", "output.a", "output.b"}
    state = {name: value.clone() for name, value in model.state_dict().items() if name not in trained}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())
    assert "rank=4" in repr(model.up)
    assert gt.lora_(model, include="up") == []
    want = model(ids).detach()
    assert gt.merge_(model).taken == {"up": "q8_0", "output": "q8_0"}
    assert type(model.up) is gt.Linear
    assert 0 < gq.nmse(model(ids).detach().numpy(), want.numpy()) < 1e-3


def test_what_cannot_be_merged(fresh):
    model = torch.nn.Sequential(gt.Linear(quantized(fresh, N, K)), torch.nn.Linear(N, 2))
    with pytest.raises(errors.UnsupportedError, match="nothing can be merged; add one"):
        gt.merge_(model)
    gt.lora_(model, rank=2)
    with pytest.raises(errors.UnsupportedError, match=r"0 is iq2_xxs, which is not .*pass another type"):
        gt.merge_(model, "iq2_xxs")
    assert isinstance(model[0], gt.LoRA)


def test_a_report_of_all_weights(fresh):
    """Bytes, types and reasons, of layers of hosts too; tied weights count once."""

    class Host(torch.nn.Module):  # transformers' names
        def __init__(self, q):
            super().__init__()
            self.gate_up_type = q.format.id
            raw = torch.from_numpy(np.array(q.raw))
            self.gate_up_proj = torch.nn.Parameter(raw, requires_grad=False)

    class Own(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    layer, q = gt.Linear(quantized(fresh, N, K)), quantized(fresh, N, K, name="q8_0")
    model = torch.nn.ModuleDict(
        {"a": layer, "b": layer, "c": Host(q), "d": Own(4, 2), "e": torch.nn.Linear(4, 2, device="meta")}
    )
    report = gt.report(model)
    assert report.packed == {"a.weight": "q4_K", "c.gate_up_proj": "q8_0"}
    assert report.packed_bytes == layer.weight.numel() + q.nbytes
    assert report.floats["d.weight"] == "a Own computes with floats of its own"
    assert report.floats["e.weight"] == "on the device meta: nothing was loaded"
    assert report.floats_bytes == 2 * 4 * 8
    assert "2 weights packed" in str(report)


class Wrapper(torch.nn.Module):
    """A layer with an adapter, as PEFT wraps it, once or again."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer

    def merge(self, safe_merge=False):
        return "merged"


def test_adapters_of_others_are_not_merged(fresh):
    layer = gt.Linear(quantized(fresh, N, K))
    for wrapped in (Wrapper(layer), Wrapper(Wrapper(layer)), copy.deepcopy(Wrapper(layer))):
        with pytest.raises(errors.UnsupportedError, match="no floats can be added; keep the adapter"):
            wrapped.merge(safe_merge=True)
    assert Wrapper(torch.nn.Linear(2, 2)).merge() == "merged"
    assert Wrapper(Wrapper(torch.nn.Linear(2, 2))).merge() == "merged"


def test_modules_compile(fresh):
    model = torch.nn.Sequential(
        gt.Linear(quantized(fresh, N * 8, K), floats(fresh, N * 8)), torch.nn.ReLU(),
        gt.Linear(quantized(fresh, 4, N * 8, name="q8_0", scale=0.5)),
    )  # fmt: skip
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (1, 4, 11):
        x = floats(fresh, rows, K)
        assert torch.equal(compiled(x), model(x))
