"""libllama as the judge of what `ggmlq quantize` makes: which tensors, which types, which bytes."""

from __future__ import annotations

import numpy as np
import pytest
from llama_quantizer import FFN, K, Quantizer, metadata, tensors

import ggmlq as gq
from ggmlq.base.mixes import FILE_TYPES
from ggmlq.convert import rules
from ggmlq.errors import ConvertError
from ggmlq.formats import FORMATS

pytestmark = pytest.mark.llama

ABLE = [name for name in FILE_TYPES if FORMATS[name].can_quantize]
SEED = int(np.random.default_rng().integers(1 << 30))


@pytest.fixture(scope="module")
def llama():
    with Quantizer() as quantizer:
        yield quantizer


@pytest.fixture
def both(llama, tmp_path):
    """Quantize with libllama and with ggmlq, and compare every tensor, and the whole file."""

    def both(content, fmt, *, imatrix=None, keep=(), requantize=False, meta=None):
        before = {"general.quantization_version": 1, "general.file_type": 0}  # of which none is the last key
        gq.save(tmp_path / "in.gguf", content, before | (meta or metadata()))
        assert llama(
            tmp_path / "in.gguf", tmp_path / "theirs.gguf", FILE_TYPES[fmt],
            imatrix=imatrix, keep=keep, requantize=requantize,
        ), llama.said  # fmt: skip
        report = gq.convert.quantize(
            tmp_path / "in.gguf", tmp_path / "ours.gguf", fmt,
            imatrix=imatrix, keep=keep, allow_requantize=requantize,
        )  # fmt: skip
        found = gq.diff.compare(tmp_path / "theirs.gguf", tmp_path / "ours.gguf", ignore_metadata=True)
        unlike = [(t.name, t.status, t.types) for t in found.tensors if t.status != "same bytes"]
        assert not unlike, f"seed {SEED}, {fmt}: {unlike}"
        ours, theirs = (gq.open(tmp_path / f"{name}.gguf") for name in ("ours", "theirs"))
        assert list(ours) == list(theirs)
        kept = [key for key in ours.metadata if not key.startswith("quantize.imatrix.")]  # llama-quantize's
        assert kept == list(theirs.metadata)
        for key in ("general.file_type", "general.quantization_version"):
            assert (ours.metadata[key], ours.metadata.type(key)) == (
                theirs.metadata[key], theirs.metadata.type(key),
            )  # fmt: skip
        if kept == list(ours.metadata):
            same(tmp_path)
        return report

    return both


def same(folder):
    """Hold the two files against each other, byte for byte."""
    ours, theirs = ((folder / f"{name}.gguf").read_bytes() for name in ("ours", "theirs"))
    assert ours == theirs


def importance(content, seed=SEED):
    """A row for each matrix, as an importance matrix has."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.gamma(1, 1, (*x.shape[:-2], x.shape[-1])).astype(np.float32)
        for name, x in content.items()
        if x.ndim > 1
    }


@pytest.mark.parametrize("fmt", [f for f in ABLE if f != "nvfp4"])  # no file type of libllama's yet
def test_every_type(both, fmt):
    content = {name: x for name, x in tensors(SEED).items() if "ffn_down" not in name}
    both(content, fmt, imatrix=importance(content) if fmt in rules.WANT_IMATRIX else None)


@pytest.mark.parametrize("fmt", [f for f in ABLE if getattr(FORMATS[f], "fallback", None)])
def test_types_with_a_fallback(both, fmt):
    content = tensors(SEED)
    content["blk.0.ffn_down.weight"] = content["blk.0.ffn_down.weight"][:, :72]  # not even blocks of 32
    if FORMATS[fmt].block_size <= 32:
        content["blk.1.ffn_down.weight"] = content["blk.0.ffn_down.weight"]
    imatrix = importance(content) if fmt in rules.WANT_IMATRIX else None
    report = both(content, fmt, imatrix=imatrix)
    found = {done.step.name: done.step for done in report.tensors}
    assert found["blk.1.ffn_down.weight"].after.name == FORMATS[fmt].fallback
    assert "do not fit" in found["blk.1.ffn_down.weight"].why
    assert found["blk.0.ffn_down.weight"].after.name == "f16"


@pytest.mark.parametrize("fmt", [f for f in ABLE if getattr(FORMATS[f], "imatrix", "ignored") != "ignored"])
def test_the_importance_matrix(both, fmt):
    content = tensors(SEED)
    matrix = importance(content)
    if fmt not in rules.WANT_IMATRIX:
        del matrix["blk.0.attn_q.weight"]  # quantized as without
    matrix["token_embd.weight"] = matrix["token_embd.weight"][:7]  # of other columns: left aside
    if FORMATS[fmt].needs_imatrix:
        del content["token_embd.weight"]  # libllama would abort
    both(content, fmt, imatrix=matrix)


@pytest.mark.parametrize("fmt", ["q4_0", "q4_K"])
def test_experts_have_importance_of_their_own(both, fmt):
    if not FORMATS[fmt].can_quantize:
        pytest.skip(f"this version does not encode {fmt}")
    content = tensors(SEED, experts=3)
    both(content, fmt, imatrix=importance(content), meta=metadata(experts=3))


def test_names_that_stay(both):
    content = tensors(SEED)
    odd = [f"blk.0.{part}" if part.endswith(".weight") else f"blk.0.x{part}y.weight" for part in rules.PARTS]
    odd += [*rules.NAMES, "v.position_embd", "foo.bias", "cls.weight", "per_layer_token_embd.weight"]
    content |= {name: np.random.default_rng(i).random((2, K), np.float32) for i, name in enumerate(odd)}
    content["blk.0.row.weight"] = content["token_embd.weight"][:1]  # one axis for ggml
    content["blk.0.one.weight"] = content["token_embd.weight"][:1, None]
    content["blk.0.outer.weight"] = content["token_embd.weight"][None]  # two
    report = both(content, "q8_0")
    stayed = {done.step.name for done in report.tensors if not done.step.changes}
    assert stayed >= set(odd) - {"cls.weight", "per_layer_token_embd.weight"}


@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_sources_of_16_bits(both, source):
    content = {name: gq.quantize(x, source) if x.ndim > 1 else x for name, x in tensors(SEED).items()}
    both(content, "q5_1")
    both(content, source)


@pytest.mark.parametrize("target", ["q4_0", "f16", "f32"])
def test_blocks_are_quantized_again(both, target):
    content = {name: gq.quantize(x, "q5_1") if x.ndim > 1 else x for name, x in tensors(SEED).items()}
    both(content, target, requantize=True)


def test_dequantize(llama, tmp_path):
    content = {name: gq.quantize(x, "q8_0") if x.ndim > 1 else x for name, x in tensors(SEED).items()}
    gq.save(tmp_path / "in.gguf", content, metadata())
    for fmt in ("f32", "f16", "bf16"):
        assert llama(tmp_path / "in.gguf", tmp_path / "theirs.gguf", FILE_TYPES[fmt], requantize=True)
        gq.convert.dequantize(tmp_path / "in.gguf", tmp_path / "ours.gguf", fmt)
        same(tmp_path)


def test_patterns(both):
    keep = [(r"attn_[kv]\.", "q5_1"), ("attn", "q8_0"), ("^output", "f16"), (r"blk\.1\.ffn_down", "q4_1")]
    report = both(tensors(SEED), "q4_0", keep=keep)
    types = {done.step.name: done.step.after.name for done in report.tensors}
    assert types["blk.0.attn_k.weight"] == "q5_1"
    assert types["blk.0.attn_q.weight"] == "q8_0"
    assert types["output.weight"] == "f16"
    assert types["blk.1.ffn_down.weight"] == "q4_1"
    assert types["blk.0.attn_norm.weight"] == "f32"


def refused(llama, tmp_path, content, fmt, **how):
    gq.save(tmp_path / "in.gguf", content, metadata())
    assert not llama(tmp_path / "in.gguf", tmp_path / "theirs.gguf", FILE_TYPES[fmt], **how)
    if "requantize" in how:
        how["allow_requantize"] = how.pop("requantize")
    with pytest.raises(ConvertError) as error:
        gq.convert.quantize(tmp_path / "in.gguf", tmp_path / "ours.gguf", fmt, **how)
    assert not (tmp_path / "ours.gguf").exists()
    return str(error.value)


def test_what_libllama_refuses(llama, tmp_path):
    content = tensors(SEED)
    assert "'blk.0.ffn_down.weight' to q1_0: rows have 96" in refused(llama, tmp_path, content, "q1_0")
    again = content | {"output.weight": gq.quantize(content["output.weight"], "q8_0")}
    assert "of blocks already (q8_0), and" in refused(llama, tmp_path, again, "q4_0")
    wrong = {"blk.0.ffn_down.weight": np.ones(FFN + 1, np.float32)}
    assert f"{FFN + 1} values, the tensor needs {FFN}" in refused(
        llama, tmp_path, content, "q4_0", imatrix=wrong
    )
    huge = content | {"output.weight": content["output.weight"] * np.float32(1e9)}
    assert "f16 cannot hold" in refused(llama, tmp_path, huge, "f16")
    huge["output.weight"][3, 5] = np.nan
    assert "row 3, column 5 is nan" in refused(llama, tmp_path, huge, "q8_0")
    strange = {"blk.0.ffn_up.weight": np.full(K, np.inf, np.float32)}
    assert "NaN, infinite" in refused(llama, tmp_path, content, "q4_0", imatrix=strange)


@pytest.mark.parametrize("fmt", [f for f in rules.WANT_IMATRIX if f in ABLE])
def test_what_needs_a_matrix(llama, tmp_path, fmt):
    content = tensors(SEED)
    assert "there is no matrix" in refused(llama, tmp_path, content, fmt)
    del content["token_embd.weight"], content["output.weight"]
    matrix = importance(content)
    del matrix["blk.1.attn_v.weight"]
    said = refused(llama, tmp_path, content, fmt, imatrix=matrix)
    assert "'blk.1.attn_v.weight'" in said
    assert "none for them in the matrix" in said
