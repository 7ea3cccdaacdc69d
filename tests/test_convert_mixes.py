"""libllama as the judge of mixes: which type each tensor of a model gets."""

from __future__ import annotations

import re

import numpy as np
import pytest
from llama_quantizer import HPARAMS, Quantizer

import ggmlq as gq
from ggmlq.base.mixes import MIXES
from ggmlq.convert import plan_quantize
from ggmlq.errors import ConvertError, FormatError, GGUFError

SEED = int(np.random.default_rng().integers(1 << 30))
ROW = np.random.default_rng(SEED).standard_normal((2, 256), np.float32)


@pytest.fixture(scope="module")
def llama():
    with Quantizer() as quantizer:
        yield quantizer


def model(path, layers, *, experts=0, heads=(4, 2), tied=False, arch="llama", fused=False, odd=False):
    """A model of two rows a tensor: only names, columns and metadata decide."""
    content = {"token_embd.weight": ROW, "output_norm.weight": ROW[0]}
    if not tied:
        content["output.weight"] = ROW[:, :96] if odd else ROW
    for i in range(layers):
        names = ["attn_qkv"] if fused else ["attn_q", "attn_k", "attn_v"]
        names += ["attn_output", "ffn_up", "ffn_gate", "ffn_down", "other"]
        for name in names:
            stacked = experts and name.startswith("ffn")
            suffix = "_exps" if stacked else ""
            content[f"blk.{i}.{name}{suffix}.weight"] = np.stack([ROW] * experts) if stacked else ROW
    keys = {key.replace("llama.", f"{arch}."): value for key, value in HPARAMS.items()}
    keys |= {"general.architecture": arch, f"{arch}.block_count": layers}
    keys |= {f"{arch}.attention.head_count": heads[0], f"{arch}.attention.head_count_kv": heads[1]}
    keys |= {f"{arch}.attention.layer_norm_epsilon": 1e-5, f"{arch}.rope.dimension_count": 256 // heads[0]}
    if experts:
        keys |= {f"{arch}.expert_count": experts, f"{arch}.expert_used_count": 2}
    shuffled = list(content)
    np.random.default_rng(SEED).shuffle(shuffled)
    gq.save(path, {name: content[name] for name in shuffled}, keys)
    return {name: np.ones(x.shape[-1] * (experts if x.ndim > 2 else 1)) for name, x in content.items()}


CASES = {
    "one layer": {"layers": 1},
    "eleven layers": {"layers": 11},
    "many layers": {"layers": 34},  # and exceptions
    "sixty layers": {"layers": 60},
    "tied": {"layers": 9, "tied": True},
    "shared keys": {"layers": 9, "heads": (8, 2)},
    "fused": {"layers": 17, "fused": True},
    "an odd output": {"layers": 2, "odd": True},
    "four experts": {"layers": 9, "experts": 4},
    "eight experts": {"layers": 9, "experts": 8},
    "falcon": {"layers": 17, "arch": "falcon", "fused": True},
    "eighty layers": {"layers": 80, "heads": (8, 4)},
}


SAID = re.compile(r"\] +(\S+) +- \[.*type = +(\w+), .*? MiB(?: -> .*\((\w+)\))?")


@pytest.mark.slow
@pytest.mark.drawn(8)
@pytest.mark.llama
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weighted", [False, True], ids=["bare", "imatrix"])
def test_every_tensor_gets_libllamas_type(llama, tmp_path, monkeypatch, case, weighted):
    """Types alone are compared, so that nothing is encoded; the bytes of each have their own test."""
    for check in ("check_target", "check_weighted"):  # of all types, with or without a matrix
        monkeypatch.setattr(f"ggmlq.convert.plan.{check}", lambda *args: None)
    matrix = model(tmp_path / "in.gguf", **CASES[case])
    imatrix = matrix if weighted else None
    keep = [("blk.1.attn_v", "q8_0"), ("ffn_down.*weight", "q5_0")] if case == "many layers" else []
    with gq.open(tmp_path / "in.gguf") as f:
        for mix in MIXES:
            paths = tmp_path / "in.gguf", tmp_path / "out.gguf"
            assert llama(*paths, mix.number, imatrix=imatrix, keep=keep, pure=False, dry=True), llama.said
            theirs = {found[1]: found[3] or found[2] for found in SAID.finditer(llama.said)}
            plan = plan_quantize(f, mix.name, mixed=True, imatrix=imatrix, keep=keep)
            ours = {step.name: step.after.name for step in plan.steps}
            assert ours.keys() == theirs.keys()
            unlike = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
            assert not unlike, f"{mix.name}, {case}, seed {SEED}: ours, libllama's"
            assert plan.metadata["general.file_type"].value == mix.number


# --- without libllama -----------------------------------------------------------------------


def planned(path, type, **how):
    with gq.open(path) as f:
        return {step.name: step.after.name for step in plan_quantize(f, type, **how).steps}


def test_a_name_means_the_type_or_the_mix(tmp_path):
    model(tmp_path / "in.gguf", 2)
    pure, mixed = (planned(tmp_path / "in.gguf", "q4_0", mixed=mixed) for mixed in (False, True))
    assert (pure["output.weight"], mixed["output.weight"]) == ("q4_0", "q6_K")
    assert planned(tmp_path / "in.gguf", "Q4_K_M") == planned(tmp_path / "in.gguf", 12, mixed=True)
    with pytest.raises(FormatError, match="did you mean q4_K"):
        planned(tmp_path / "in.gguf", "q4_k_x")
    with pytest.raises(ConvertError, match=r"has none of this name.* the mixes are q4_0, .*q4_K_M"):
        planned(tmp_path / "in.gguf", "f16", mixed=True)


def test_exceptions_come_before_the_mix(tmp_path):
    model(tmp_path / "in.gguf", 8)
    keep = {"attn_v": "q4_0", "^output": "same"}
    found = planned(tmp_path / "in.gguf", "q4_K_M", keep=keep)
    assert found["blk.0.attn_v.weight"] == "q4_0"
    assert found["output.weight"] == "f32"
    assert found["blk.0.ffn_down.weight"] == "q6_K"


def test_what_a_mix_must_know(tmp_path):
    gq.save(tmp_path / "in.gguf", {"blk.0.attn_v.weight": ROW})
    with pytest.raises(GGUFError, match="is None; a mix depends on"):
        planned(tmp_path / "in.gguf", "q4_K_M")
    keys = {"general.architecture": "llama", "llama.expert_count": 4, "llama.block_count": 1}
    gq.save(tmp_path / "in.gguf", {"blk.7.ffn_up.weight": ROW}, keys)
    with pytest.raises(ConvertError, match="its name has none of 0 to 0"):
        planned(tmp_path / "in.gguf", "q4_K_M")


def test_a_mix_that_wants_a_matrix(tmp_path):
    model(tmp_path / "in.gguf", 2)
    with pytest.raises(ConvertError, match="would become q2_K, which needs the importance"):
        planned(tmp_path / "in.gguf", "q2_K_S")
