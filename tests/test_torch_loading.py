"""Models that ``load_`` fills from the device meta, and what no file has: buffers, and other products."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

import ggmlq.torch as gt  # noqa: E402

K, WORDS, FACTOR = 256, 20, 16.0


class Turns(torch.nn.Module):
    """A rotary embedding as transformers has it: a buffer that comes from a config."""

    def __init__(self, config, device=None, **more):
        super().__init__()
        self.config = config
        turns = config.base ** -torch.arange(0, 1, 2 / K, device=device)
        self.register_buffer("turns", turns, persistent=False)
        self.register_buffer("unused", None, persistent=False)

    def forward(self, x):
        return x * self.turns.repeat(2)


class Mask(torch.nn.Module):
    """A buffer that no config gives."""

    def __init__(self, config, size):
        super().__init__()
        self.config = config
        self.register_buffer("mask", torch.ones(size, size).tril(), persistent=False)


class Words(torch.nn.Embedding):
    """The words of Gemma in transformers: rows times a number."""

    def __init__(self, rows, width, factor):
        super().__init__(rows, width)
        self.scalar_embed_scale = factor
        self.register_buffer("embed_scale", torch.tensor(factor), persistent=False)

    def forward(self, ids):
        return super().forward(ids) * self.embed_scale.to(self.weight.dtype)


class Twice(torch.nn.Linear):
    """A layer that computes something else than torch's."""

    def forward(self, x):
        return 2 * super().forward(x)


class Model(torch.nn.Module):
    def __init__(self, mask=False):
        super().__init__()
        config = SimpleNamespace(base=100.0)
        self.words, self.turns = Words(WORDS, K, FACTOR), Turns(config)
        self.up, self.twice = torch.nn.Linear(K, K, bias=False), Twice(K, K, bias=False)
        self.output = torch.nn.Linear(K, WORDS, bias=False)
        self.output.weight = self.words.weight
        if mask:
            self.masks = torch.nn.ModuleList([Mask(config, 3)])

    def forward(self, ids):
        return self.output(self.up(self.turns(self.words(ids))) + self.twice(self.words(ids)))


@pytest.fixture
def filled(fresh, tmp_path):
    """A file, its names of parameters, and a model of floats with its values."""
    shapes = {"words.weight": (WORDS, K), "up.weight": (K, K), "twice.weight": (K, K)}
    tensors = {
        name: gq.quantize(fresh.standard_normal(shape, np.float32), "q8_0") for name, shape in shapes.items()
    }
    gq.save(tmp_path / "m.gguf", tensors)
    dense = Model()
    dense.load_state_dict(
        {name: torch.from_numpy(np.array(q, np.float32)) for name, q in tensors.items()}, strict=False
    )
    return tmp_path / "m.gguf", {name: name for name in tensors}, dense


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_on_meta_computes(filled, fresh, dtype):
    """Buffers are made again; words are multiplied, the output that has their rows is not."""
    path, names, dense = filled
    with torch.device("meta"):
        model = Model().to(dtype)
        report = gt.load_(model, path, names)  # under the device that the model was made on, too
    assert not report.left
    assert report.taken == {
        "words.weight": "q8_0", "up.weight": "q8_0", "twice.weight": "q8_0, decoded", "output.weight": "q8_0",
    }  # fmt: skip
    assert not any(part.is_meta for part in (*model.parameters(), *model.buffers()))
    assert model.turns.turns.dtype == dtype
    assert torch.equal(model.turns.turns, dense.turns.turns.to(dtype))
    assert isinstance(model.output, gt.Linear)
    assert model.output.weight is model.words.weight
    ids = torch.from_numpy(fresh.integers(0, WORDS, (2, 5)))
    with torch.no_grad():
        want = dense(ids)
        assert model(ids).dtype == dtype
        assert gq.nmse(model(ids).float().numpy(), want.numpy()) < 1e-3
        gt.load_(model, path, names)  # packed ones once more
        assert gq.nmse(model.to(torch.float32)(ids).numpy(), want.numpy()) < 1e-3
        assert torch.equal(model.words(ids), dense.words(ids))
    assert set(model.state_dict()) == set(dense.state_dict())


def test_words_that_are_tied_to_an_output_before_them(filled, fresh):
    """They are multiplied by their number, too, when the file has the output's name."""
    path, names, dense = filled
    with torch.device("meta"):
        model = Model()
        model._modules["words"] = model._modules.pop("words")  # the last one
        report = gt.load_(model, path, names | {"words.weight": "output.weight"})
    assert report.taken["words.weight"] == "q8_0"
    assert model.words.weight is model.output.weight
    ids = torch.from_numpy(fresh.integers(0, WORDS, (2, 5)))
    assert torch.equal(model.words(ids), dense.words(ids))


def test_a_buffer_that_nothing_fills(filled):
    """It is named in the report, with what to do; no other buffer waits for it."""
    path, names, _ = filled
    with torch.device("meta"):
        model = Model(mask=True)
    report = gt.load_(model, path, names)
    assert list(report.left) == ["masks.0.mask"]
    assert "a Mask is not made of a config alone; it is still on the device meta: set it" in str(report)
    assert not model.turns.turns.is_meta
    report = gt.load_(Model(mask=True), path, names)
    assert not report.left


class Mixture(torch.nn.Module):
    """The experts of a layer as transformers 5 has them."""

    def __init__(self, count=3, hidden=64, width=K):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.empty(count, 2 * hidden, width))
        self.down_proj = torch.nn.Parameter(torch.empty(count, width, hidden))
        self.act_fn = torch.nn.functional.silu


def test_experts_come_as_stacks(fresh, tmp_path):
    shapes = {"gate": (3, 64, K), "up": (3, 64, K), "down": (3, K, 64)}
    stacks = {
        role: gq.quantize(fresh.standard_normal(shape, np.float32), "q4_0") for role, shape in shapes.items()
    }
    gq.save(tmp_path / "m.gguf", stacks)
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"experts": Mixture()})
    report = gt.load_(model, tmp_path / "m.gguf", {role: f"experts.{role}.weight" for role in shapes})
    assert not report.left
    assert isinstance(model["experts"], gt.GatedExperts)
    x, ids = torch.randn(5, K), torch.from_numpy(fresh.integers(0, 3, (5, 2)))
    shares = torch.rand(5, 2)
    gate, up, down = (torch.from_numpy(np.array(np.asarray(stacks[role]))) for role in shapes)
    bent = torch.nn.functional.silu(torch.einsum("tunk,tk->tun", gate[ids], x))
    bent = bent * torch.einsum("tunk,tk->tun", up[ids], x)
    want = torch.einsum("tuwn,tun,tu->tw", down[ids], bent, shares)
    assert gq.nmse(model["experts"](x, ids, shares).numpy(), want.numpy()) < 1e-3
    gq.save(tmp_path / "n.gguf", {"gate": stacks["gate"], "up": stacks["up"]})
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"experts": Mixture()})
    names = {role: f"experts.{role}.weight" for role in shapes}
    with pytest.raises(errors.GGMLQError, match=r"no tensors for experts\.gate_up_proj"):
        gt.load_(model, tmp_path / "n.gguf", names)
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"experts": Mixture(count=4)})
    with pytest.raises(errors.ShapeError, match="the model has 4 experts of 64 × 256"):
        gt.load_(model, tmp_path / "m.gguf", names)
