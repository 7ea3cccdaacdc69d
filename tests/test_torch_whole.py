"""Whole models as modules of this package: the logits of gq.model, caches, compilation, adapters."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from families import NAMES, family_model
from recurrent_families import RECURRENT

import ggmlq as gq
from ggmlq import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

import ggmlq.torch as gt  # noqa: E402

TYPES = ("q4_0", "q8_0", "q5_1")
FAMILIES = [name for name in NAMES if name not in RECURRENT]


def ids_of(rng, *shape):
    return torch.from_numpy(rng.integers(3, 250, shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_gq_model(family, fresh, tmp_path):
    path = family_model(tmp_path / "m.gguf", family, types=TYPES)
    model, ids = gt.model(path), ids_of(fresh, 2, 50)
    with torch.no_grad():
        y = model(ids).logits
        first = model(ids[:, :44])
        second = model(ids[:, 44:45], first.cache)
        third = model(ids[:, 45:], second.cache)
        again = model(ids[:, 44:], first.cache, last=True).logits
    want = gq.model.load(path, cache="f32").logits(ids.numpy())
    pairs = zip(y.flatten(0, 1).numpy(), want.reshape(-1, want.shape[-1]), strict=True)
    # Numbers on a half go up or down when they are rounded to 8 bits; and then another expert may be taken.
    assert np.median([gq.nmse(*pair) for pair in pairs]) < 2e-3
    pieces = torch.cat([first.logits, second.logits, third.logits], 1)
    apart = [gq.nmse(a, b) for a, b in zip(pieces.flatten(0, 1), y.flatten(0, 1), strict=True)]
    assert np.median(apart) < 2e-3
    assert again.shape == (2, 1, y.shape[-1])
    assert np.median([gq.nmse(a, b) for a, b in zip(again[:, 0], y[:, -1], strict=True)]) < 0.1
    assert first.cache[0].k.shape[2] == 44  # the cache that was passed stays as it is
    assert {name: tuple(t.shape) for name, t in model.state_dict().items() if t.dtype == torch.uint8} == {
        name: q.raw.shape for name, q in gq.open(path).items() if q.format.block_size > 1
    }


@pytest.mark.parametrize("family", ["gpt-oss", "deepseek2"])
def test_it_compiles_whole_and_trains_adapters(family, fresh, tmp_path):
    model, ids = gt.model(family_model(tmp_path / "m.gguf", family, types=TYPES)), ids_of(fresh, 1, 9)
    with torch.no_grad():
        y = model(ids).logits
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(ids).logits, y)
    assert gt.lora_(model, rank=2, include="*.attn_*")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(3):
        logits = model(ids).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]))
        losses[-1].backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()
    assert losses[2] < losses[0]


def test_it_is_a_module_as_any_other(fresh, tmp_path):
    path = family_model(tmp_path / "m.gguf", "qwen3moe", types=TYPES)
    model, ids = gt.model(path), ids_of(fresh, 2, 5)
    with torch.no_grad():
        y = model(ids).logits
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(ids).logits, y)
        half = gt.model(path, dtype=torch.bfloat16)(ids)
    assert half.logits.dtype == half.cache[0].k.dtype == torch.bfloat16
    assert np.median([gq.nmse(a.float(), b) for a, b in zip(half.logits[0], y[0], strict=True)]) < 0.1
    file, state = gq.open(path), model.state_dict()
    assert state.keys() == file.keys()
    for name, q in file.items():
        same = q.raw if q.format.block_size > 1 else np.asarray(q)
        assert np.array_equal(state[name].numpy(), same)
    model.load_state_dict(state)
    assert "made-up" not in repr(model)
    assert "qwen3moe, 2 layers of 128, 1,024 positions" in repr(model)


@pytest.mark.parametrize("family", RECURRENT)
def test_layers_with_a_state_are_refused(family, tmp_path):
    path = family_model(tmp_path / "m.gguf", family, types=TYPES)
    with pytest.raises(errors.UnsupportedError, match=r"remember by a state.*gq\.model\.load"):
        gt.model(path)


def test_what_cannot_be_called(fresh, tmp_path):
    path = family_model(tmp_path / "m.gguf", "qwen2", types=TYPES)
    with pytest.raises(errors.DTypeError, match=r"activations are floats; pass torch\.bfloat16"):
        gt.model(path, dtype=torch.int8)
    model = gt.model(path, context=8)
    with pytest.raises(errors.ShapeError, match="9 tokens behind 0; the context has 8 positions"):
        model(ids_of(fresh, 1, 9))
    for bad in ([1, 2], torch.ones(1, 2), torch.ones(3).long(), torch.ones(1, 0).long()):
        with pytest.raises(errors.ShapeError, match=r"they are integers \[B, T\]"):
            model(bad)
    cache = model(ids_of(fresh, 2, 4)).cache
    with pytest.raises(errors.ShapeError, match=r"2 layers of \[2\] sequences.*input_ids 1 sequences"):
        model(ids_of(fresh, 1, 2), cache)
    with pytest.raises(errors.ShapeError, match="5 tokens behind 4"):
        model(ids_of(fresh, 2, 5), cache)
    with pytest.raises(errors.ShapeError, match="the cache has 1 layers"):
        model(ids_of(fresh, 2, 2), cache[:1])
    f = gq.open(path)
    gq.save(tmp_path / "n.gguf", {name: q for name, q in f.items() if "ffn_up" not in name}, f.metadata)
    with pytest.raises(errors.GGUFError, match=r"no tensor blk\.0\.ffn_up\.weight"):
        gt.model(tmp_path / "n.gguf")
    with pytest.raises(errors.GGMLQError):
        model(torch.tensor([[1, 10**6]]))
