"""What a conversion says where a user or a model surprises it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.convert import plan_quantize
from ggmlq.errors import ConvertError, FormatError

X = np.random.default_rng().standard_normal((6, 256), np.float32)


@pytest.fixture
def model(tmp_path):
    def save(x):
        gq.save(tmp_path / "in.gguf", {"a.weight": X, "b.weight": x})
        return tmp_path / "in.gguf"

    return save


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.gguf"


@pytest.mark.slow
def test_a_warning_of_the_encoder_is_a_note_and_the_bytes_are_written(model, out):
    """llama.cpp writes them too: a run of 32 zeros misplaces what follows in iq3_s."""
    x = X.copy()
    x[4, 32:64] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = gq.convert.quantize(model(x), out, "iq3_s")
    assert len(report.notes) == 1
    assert report.notes[0].startswith("tensor 'b.weight': quantize(x, 'iq3_s'): x has runs of 32 zeros")
    with pytest.warns(RuntimeWarning, match="runs of 32 zeros"):
        want = gq.quantize(x, "iq3_s")
    assert np.array_equal(gq.open(out)["b.weight"].raw, want.raw)


@pytest.mark.parametrize(
    ("fmt", "value", "said"),
    [
        ("q4_K", 1e30, "row 4, columns 0 to 255 have values up to 1e+30, and q4_K cannot hold their scale"),
        ("mxfp4", 1.5 * 2.0**-126, "row 4, columns 64 to 95 have values up to 1.76e-38, and mxfp4 cannot"),
        ("f16", -1e5, "row 4, columns 70 to 70 have values up to 1e+05, and f16 cannot"),
    ],
)
def test_the_place_of_a_scale_that_does_not_exist(model, out, fmt, value, said):
    x = X.copy()
    x[4, 64:96] = 0
    x[4, 70] = value
    with pytest.raises(ConvertError) as error:
        gq.convert.quantize(model(x), out, fmt)
    assert f"tensor 'b.weight' to {fmt}: {said}" in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("fmt", ["q4_K", "q8_0"])
def test_a_matrix_of_another_model(model, fmt):
    imatrix = {f"blk.{i}.weight": np.ones(256, np.float32) for i in range(4)}
    with gq.open(model(X)) as file:
        with pytest.raises(ConvertError, match=r"'blk.2.weight' and 1 more, and none of the 2 tensors has"):
            plan_quantize(file, fmt, imatrix=imatrix)
        plan_quantize(file, fmt, imatrix={})


@pytest.mark.parametrize(
    ("fmt", "said"),
    [
        ("q4_K_X", "did you mean .*q4_K_M"),
        ("iq2_xm", "did you mean .*iq2_m"),
        ("int4", "did you mean q4_0[?]"),
        ("12", "write the name"),
    ],
)
def test_names_that_are_near(model, fmt, said):
    with gq.open(model(X)) as file, pytest.raises(FormatError, match=said):
        plan_quantize(file, fmt)
