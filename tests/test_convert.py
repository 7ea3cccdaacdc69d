"""Quantizing and dequantizing whole files: what becomes of each tensor, and that nothing is ever lost."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base.mixes import FILE_TYPES
from ggmlq.convert import plan_quantize
from ggmlq.errors import ConvertError, FormatError, GGUFOSError, UnsupportedError
from ggmlq.formats import FORMATS

SEED = int(np.random.default_rng().integers(1 << 30))


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(SEED)
    content = {
        f"blk.{i}.{name}.weight": rng.standard_normal(shape, np.float32)
        for i in range(2)
        for name, shape in [("ffn_up", (24, 64)), ("ffn_down", (16, 96)), ("attn_norm", (64,))]
    }
    content["output.weight"] = rng.standard_normal((10, 256), np.float32)
    content["experts.weight"] = rng.standard_normal((3, 8, 64), np.float32)
    content["ids"] = np.arange(6, dtype=np.int32).reshape(2, 3)
    gq.save(tmp_path / "in.gguf", content, {"general.architecture": "llama", "general.file_type": 0})
    return tmp_path / "in.gguf"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.gguf"


def types(path):
    with gq.open(path) as f:
        return {name: f[name].format.name for name in f}


def test_quantize(model, out):
    report = gq.convert.quantize(model, out, "q8_0")
    source, made = gq.open(model), gq.open(out)
    # llama.cpp's order: what is in no layer first, then by layer and name; keys that are set come last
    assert list(made) == [
        "experts.weight", "ids", "output.weight",
        *(f"blk.{i}.{name}.weight" for i in range(2) for name in ("attn_norm", "ffn_down", "ffn_up")),
    ]  # fmt: skip
    assert list(made.metadata)[1:] == ["general.quantization_version", "general.file_type"]
    for done in report.tensors:
        x, q = source[done.step.name], made[done.step.name]
        assert q.format is done.step.after
        if done.step.changes:
            assert np.array_equal(q.raw, gq.quantize(np.asarray(x), "q8_0").raw)
            assert done.nmse == pytest.approx(gq.nmse(q, x), rel=1e-6)
            assert 0 < done.nmse < 1e-4
        else:
            assert np.array_equal(q.raw, x.raw)
            assert done.nmse == 0
            assert done.step.why
    assert made.metadata["general.file_type"] == 7
    assert made.metadata.type("general.file_type") == "uint32"
    assert made.metadata["general.quantization_version"] == 2
    assert made.metadata["general.architecture"] == "llama"
    assert report.paths == [str(out)]
    assert report.bytes_after == sum(made[name].nbytes for name in made)
    assert report.bytes_before == sum(source[name].nbytes for name in source)


def test_dequantize_gives_the_values(model, out, tmp_path):
    gq.convert.quantize(model, out, "q4_0")
    for fmt, dtype in (("f32", np.float32), ("f16", np.float16), ("bf16", None)):
        gq.convert.dequantize(out, tmp_path / "back.gguf", fmt, keep={"^output": "same"})
        q, back = gq.open(out), gq.open(tmp_path / "back.gguf")
        assert types(tmp_path / "back.gguf") == {
            "blk.0.ffn_up.weight": fmt, "blk.0.ffn_down.weight": fmt, "blk.0.attn_norm.weight": "f32",
            "blk.1.ffn_up.weight": fmt, "blk.1.ffn_down.weight": fmt, "blk.1.attn_norm.weight": "f32",
            "output.weight": "q4_0", "experts.weight": fmt, "ids": "i32",
        }  # fmt: skip
        for name in q:
            if dtype is not None and q[name].format is not back[name].format:
                assert np.array_equal(np.asarray(back[name]), np.asarray(q[name]).astype(dtype))
        assert back.metadata["general.file_type"] == FILE_TYPES[fmt]


def test_exceptions_of_dequantize_may_be_blocks(model, out):
    report = gq.convert.dequantize(model, out, "f16", keep={"ffn_down": "q4_K", "ffn_up": "same"})
    assert types(out)["blk.0.ffn_down.weight"] == "q5_0"
    assert types(out)["blk.0.ffn_up.weight"] == "f32"
    assert "do not fit q4_K" in report.tensors[1].step.why


def test_dequantize_decodes_what_llama_cpp_would_not_have_quantized(tmp_path, out):
    w = np.random.default_rng(SEED).standard_normal((4, 64), np.float32)
    row = gq.quantize(w[0], "q4_0")
    gq.save(tmp_path / "in.gguf", {"x_norm.weight": row, "ids": gq.quantize(w, "q8_0"), "f": w.astype("f2")})
    gq.convert.dequantize(tmp_path / "in.gguf", out)
    assert types(out) == {"x_norm.weight": "f32", "ids": "f32", "f": "f16"}
    assert np.array_equal(np.asarray(gq.open(out)["x_norm.weight"]), row.dequantize())


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("split", [None, 4000])
def test_split_and_big_endian_sources(model, out, tmp_path, byteorder, split):
    gq.convert.quantize(model, tmp_path / "want.gguf", "q5_1")
    paths = gq.save(tmp_path / "other.gguf", gq.open(model), byteorder=byteorder, split_max_bytes=split)
    assert (len(paths) > 1) == (split is not None)
    gq.convert.quantize(paths[-1], out, "q5_1")
    assert gq.open(out).byteorder == byteorder
    assert gq.diff.compare(tmp_path / "want.gguf", out).equal


def test_keep(model, out):
    keep = [(r"blk\.1", "same"), ("ffn_down", "Q8_0"), ("ffn", gq.formats["f16"])]
    report = gq.convert.quantize(model, out, "q4_0", keep=keep)
    assert types(out) == {
        "blk.0.ffn_up.weight": "f16", "blk.0.ffn_down.weight": "q8_0", "blk.0.attn_norm.weight": "f32",
        "blk.1.ffn_up.weight": "f32", "blk.1.ffn_down.weight": "f32", "blk.1.attn_norm.weight": "f32",
        "output.weight": "q4_0", "experts.weight": "q4_0", "ids": "i32",
    }  # fmt: skip
    why = {done.step.name: done.step.why for done in report.tensors}
    assert why["blk.0.ffn_down.weight"] == "keep ffn_down=q8_0"
    assert why["blk.1.ffn_up.weight"] == r"keep blk\.1=same"


def test_names_may_be_left_aside(tmp_path, out):
    w = np.ones((4, 32), np.float32)
    gq.save(tmp_path / "in.gguf", {"w": w, "x_norm.weight": w, "row": w[0], "n": np.ones((2, 2), np.int8)})
    gq.convert.quantize(tmp_path / "in.gguf", out, "q4_0", any_name=True)
    assert types(out) == {"w": "q4_0", "x_norm.weight": "q4_0", "row": "f32", "n": "i8"}


def test_four_axes_have_importance_for_each_matrix(tmp_path, out, monkeypatch):
    x = np.random.default_rng(SEED).standard_normal((2, 3, 4, 32), np.float32)
    gq.save(tmp_path / "in.gguf", {"w.weight": x})
    matrix = np.random.default_rng(SEED).gamma(1, 1, (3, 32)).astype(np.float32)
    with gq.open(tmp_path / "in.gguf") as f:
        (step,) = plan_quantize(f, "q4_0", imatrix={"w.weight": matrix.reshape(-1)}).steps
    assert np.array_equal(step.weights, matrix)
    gq.convert.quantize(tmp_path / "in.gguf", out, "q4_0", imatrix={"w.weight": matrix})
    made = gq.open(out)["w.weight"]
    for i, expert in np.ndindex(2, 3):
        right = gq.quantize(x[i, expert], "q4_0", matrix[expert])
        assert made[i, expert].raw.tobytes() == right.raw.tobytes()


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (4, 0), (0,), ()])
@pytest.mark.parametrize("type", ["q8_0", "q4_K", "f16"])
def test_empty_tensors(tmp_path, out, shape, type):
    gq.save(tmp_path / "in.gguf", {"a.weight": np.zeros(shape, np.float32)})
    gq.convert.quantize(tmp_path / "in.gguf", out, type)
    assert gq.open(out)["a.weight"].shape == shape
    gq.convert.dequantize(out, tmp_path / "back.gguf")
    gq.save(tmp_path / "in.gguf", {})
    assert gq.convert.quantize(tmp_path / "in.gguf", out, type).tensors == []


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"keep": {"attn_v": "q8_0"}}, "keep attn_v=q8_0: none of the 9 tensors has such a name"),
        ({"keep": {"ffn_upp": "q8_0"}}, r"did you mean .*ffn_up"),
        ({"keep": {"norm": "f16"}}, "matches 2 tensors, and all of them stay .* 'blk.0.attn_norm.weight'"),
        ({"keep": {"ffn(": "f16"}}, "is no regular expression: .*unterminated"),
        ({"allow_fallback": False}, "rows of 64 do not fit tq2_0 .256.; allow .* which is q4_0 here"),
        ({"imatrix": {"output.weight": np.ones(255, np.float32)}}, "has 255 values, the tensor needs 256;"),
        ({"imatrix": {"experts.weight": np.ones(64)}}, "has 64 values, the tensor needs 64 for each of 3"),
    ],
)
def test_what_does_not_fit(model, out, how, says):
    with pytest.raises(ConvertError, match=says):
        gq.convert.quantize(model, out, "tq2_0", **how)
    assert not out.exists()


def test_importance_that_means_nothing(model, out):
    zero = np.ones((3, 64), np.float32)
    zero[1] = 0
    for values, says in ((zero, "all 64 values of expert 1 are zero"), (-zero, "NaN, infinite or negative")):
        with pytest.raises(ConvertError, match=says):
            gq.convert.quantize(model, out, "q4_0", imatrix={"experts.weight": values})
    with pytest.raises(ConvertError, match="'many' is no array of numbers"):
        gq.convert.quantize(model, out, "q4_0", imatrix={"output.weight": "many"})
    nan = np.full(256, np.nan)
    with pytest.raises(ConvertError, match="NaN"):
        gq.convert.quantize(model, out, "q4_0", imatrix={"output.weight": nan})


def test_types_that_are_no_target(model, out):
    with pytest.raises(ConvertError, match="has no files of it"):
        gq.convert.quantize(model, out, "q8_1")
    with pytest.raises(FormatError, match="did you mean q4_K"):
        gq.convert.quantize(model, out, "q4_kk")
    with pytest.raises(FormatError):
        gq.convert.quantize(model, out, "q4_0", keep={"ffn": "q4"})
    with pytest.raises(ConvertError, match="no type of floats"):
        gq.convert.dequantize(model, out, "q8_0")
    for fmt in (name for name in FILE_TYPES if not FORMATS[name].can_quantize):
        with pytest.raises(UnsupportedError, match="cannot encode it; it encodes f32, f16"):
            gq.convert.quantize(model, out, fmt)


def test_the_input_is_not_overwritten(model, tmp_path):
    before = model.read_bytes()
    os.symlink(model, tmp_path / "link.gguf")
    for target in (model, tmp_path / "link.gguf", tmp_path / "." / "in.gguf"):
        with pytest.raises(ConvertError, match="they are one file"):
            gq.convert.quantize(model, target, "q8_0")
    assert model.read_bytes() == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device")])
def test_a_failure_leaves_what_was_there(model, out, monkeypatch, failure):
    from ggmlq.convert import stream

    out.write_bytes(b"what was there")
    before = sorted(os.listdir(out.parent))
    real, calls = stream.quantize, []

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise failure
        return real(*args, **options)

    monkeypatch.setattr(stream, "quantize", failing)
    with pytest.raises(GGUFOSError if isinstance(failure, OSError) else failure):
        gq.convert.quantize(model, out, "q8_0")
    assert out.read_bytes() == b"what was there"
    assert sorted(os.listdir(out.parent)) == before


def test_the_place_of_a_value_that_cannot_be_converted(tmp_path, out):
    x = np.ones((3, 40000, 32), np.float32)
    x[2, 34567, 8] = np.inf
    gq.save(tmp_path / "in.gguf", {"e.weight": x})
    with pytest.raises(ConvertError, match="to q8_0: matrix 2, row 34567, column 8 is inf"):
        gq.convert.quantize(tmp_path / "in.gguf", out, "q8_0")


# --- notes ----------------------------------------------------------------------------------


def test_notes(model, out, tmp_path):
    sums = {"nothing.weight": np.ones((1, 8)), "else": np.ones((1, 8)), "output.weight": np.ones((1, 256))}
    sums = {name: x.astype(np.float32) for name, x in sums.items()}
    gq.save(tmp_path / "imatrix", {f"{k}.in_sum2": x for k, x in sums.items()}
            | {f"{k}.counts": np.float32([[k != "nothing.weight"]]) for k in sums})  # fmt: skip
    report = gq.convert.quantize(model, out, "q8_0", imatrix=tmp_path / "imatrix")
    assert report.notes == [
        "importance of tensors that are not here: 'nothing.weight', 'else'",
        "the calibration never reached 1 matrix of 'nothing.weight': there all columns count alike",
    ]
    found = gq.open(out).metadata
    assert found["quantize.imatrix.file"] == str(tmp_path / "imatrix")
    assert found["quantize.imatrix.entries_count"] == 3
    report = gq.convert.quantize(out, tmp_path / "again.gguf", "q4_0", allow_requantize=True)
    assert "6 tensors (" in report.notes[0]
    assert "quantized a second time" in report.notes[0]


def test_tensors_without_importance_are_told(model):
    with gq.open(model) as f:
        plan = plan_quantize(f, "q4_0", imatrix={"output.weight": np.ones(256, np.float32)})
    assert [step.name for step in plan.steps if step.weights is not None] == ["output.weight"]
    assert "5 tensors ('blk.0.ffn_up.weight', " in plan.notes[0]
    assert "without importance" in plan.notes[0]


# --- memory ---------------------------------------------------------------------------------

MEMORY = """
    import sys, ggmlq as gq
    def memory(kind):
        with open("/proc/self/status") as file:
            return int(file.read().split(kind + ":")[1].split()[0]) >> 10
    source, made, back = sys.argv[1:]
    for _ in range(4):  # what is imported and compiled the first times does not count
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts anew
        before = memory("VmRSS")
        gq.convert.quantize(source, made, "q8_0")
        gq.convert.dequantize(made, back, "f16")
        gq.diff.compare(source, back)
    print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="this system does not tell of peaks of memory"
)
def test_memory_is_bounded_by_a_few_rows(tmp_path):
    x = np.random.default_rng(SEED).standard_normal((1 << 11, 1 << 9), np.float32)
    path = tmp_path / "m.gguf"
    gq.save(path, {f"t{i}.weight": x for i in range(16)}, byteorder="big")
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), path, tmp_path / "q.gguf", tmp_path / "b.gguf"]
    threads = os.environ | {"OMP_NUM_THREADS": "2"}  # memory grows with them
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=threads).stdout
    assert int(found) < 5 * (x.nbytes >> 20), f"{found} MiB for tensors of {x.nbytes >> 20} MiB, 16 of them"
