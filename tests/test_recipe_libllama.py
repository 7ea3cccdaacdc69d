"""libllama as the judge: a recipe's file of types, layers left out, and parts kept give its bytes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from llama_quantizer import Quantizer, metadata, tensors

import ggmlq as gq
from ggmlq.base.mixes import FILE_TYPES, MIXES
from ggmlq.convert import Pruned

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def llama():
    with Quantizer() as quantizer:
        yield quantizer


@pytest.fixture
def model(tmp_path, fresh):
    content = tensors(int(fresh.integers(1 << 30)), layers=4)
    content = {name: x * np.float32(fresh.lognormal(0, 1)) for name, x in content.items()}
    gq.save(tmp_path / "in.gguf", content, metadata(4))
    imatrix = {
        name: fresh.gamma(1, 1, x.shape[-1]).astype(np.float32) for name, x in content.items() if x.ndim > 1
    }
    return tmp_path / "in.gguf", imatrix


def unlike(a, b):
    found = gq.diff.compare(a, b, ignore_metadata=True)
    return [(t.name, t.status, t.types) for t in found.tensors if t.status != "same bytes"]


@pytest.mark.slow
def test_a_recipe_in_llama_quantize(llama, model, tmp_path, fresh):
    path, imatrix = model
    found = gq.convert.recipe(
        path,
        float(fresh.uniform(4, 8.5)),  # with 8.57 all can be q8_0
        imatrix=imatrix,
        types=["q4_0", "q3_K", "q4_K", "q5_K", "q6_K", "q8_0"],
    )
    found.save(tmp_path / "types.txt")
    gq.convert.run(found.plan, tmp_path / "ours.gguf")
    keep = gq.convert.read_tensor_types(tmp_path / "types.txt")
    number = FILE_TYPES["q4_K"]
    assert llama(path, tmp_path / "theirs.gguf", number, imatrix=imatrix, keep=keep, pure=False), llama.said
    assert not unlike(tmp_path / "theirs.gguf", tmp_path / "ours.gguf")
    assert len({step.after for step in found.plan.steps}) > 2


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("layers", [[0], [1, 2], [0, 3]])
@pytest.mark.parametrize("mix", ["q4_K_M", "q3_K_M"])
def test_layers_left_out(llama, model, tmp_path, layers, mix, monkeypatch):
    path, imatrix = model
    held = (ctypes.c_int32 * (len(layers) + 1))(*layers, -1)
    real = llama._llama.llama_model_quantize_default_params

    def params():
        found = real()
        found.prune_layers = ctypes.cast(held, type(found.prune_layers))
        return found

    monkeypatch.setattr(llama._llama, "llama_model_quantize_default_params", params)
    number = next(m.number for m in MIXES if m.name == mix)
    assert llama(path, tmp_path / "theirs.gguf", number, imatrix=imatrix, pure=False), llama.said
    with gq.open(path) as file:
        plan = gq.convert.plan_quantize(Pruned(file, layers), mix, imatrix=imatrix)
        gq.convert.run(plan, tmp_path / "ours.gguf")
    assert not unlike(tmp_path / "theirs.gguf", tmp_path / "ours.gguf")
    with gq.open(tmp_path / "theirs.gguf") as theirs, gq.open(tmp_path / "ours.gguf") as ours:
        assert list(theirs) == list(ours)
        own = "quantize.imatrix."  # keys of llama-quantize
        assert list(theirs.metadata) == [key for key in ours.metadata if not key.startswith(own)]
        key = "llama.block_count"
        assert (ours.metadata[key], ours.metadata.type(key)) == (
            theirs.metadata[key],
            theirs.metadata.type(key),
        )
