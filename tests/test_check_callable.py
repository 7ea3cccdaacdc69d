"""`gq.check`: right functions are right in every way they may be written, wrong ones are named."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import planted
import pytest

import ggmlq as gq
from ggmlq.errors import UnsupportedError
from ggmlq.formats import BLOCK_FORMATS

F = np.float32


def decoded(blocks, format, shape):
    return gq.QuantArray.from_bytes(blocks, format, shape).dequantize()


def encoded(x, format):
    return gq.quantize(x, format).raw


def test_our_own_decoder_is_right_in_all_types():
    report = gq.check(decoded)
    assert report.ok, str(report)
    assert len(report.judged) == len(BLOCK_FORMATS) - 2  # q8_1 and q8_K are for activations
    assert not report.refused
    assert "25 of 25 types right" in str(report)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_results_of_other_types_have_their_own_rounding(dtype):
    def other(blocks, format, shape):
        with np.errstate(over="ignore"):
            return decoded(blocks, format, shape).astype(dtype)

    report = gq.check(other, formats=("q4_0", "q4_K", "iq2_xs"))
    assert report.ok, str(report)


def test_values_that_were_halves_on_the_way():
    def rounded(blocks, format, shape):
        with np.errstate(over="ignore"):
            return decoded(blocks, format, shape).astype(np.float16).astype(F)

    assert {fault.fault for fault in gq.check(rounded, formats="q6_K").faults} == {"value-rounding"}


def test_our_own_product_and_encoder_are_right():
    def product(x, blocks, format, shape):
        return x @ gq.QuantArray.from_bytes(blocks, format, shape).T

    assert gq.check(product, "linear", formats=("q4_0", "mxfp4")).ok
    report = gq.check(encoded, "quantize", formats=("q4_0", "q6_K"))
    assert report.ok, str(report)
    assert not report.notes


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_products_in_16_bits_are_right(kind):
    class Tensor:  # what is used of torch's
        def __init__(self, values):
            self.values = values
            self.dtype = f"torch.{kind}"

        detach = cpu = float = lambda self: self

        def numpy(self):
            if kind == "float16":
                return self.values.astype(np.float16)
            bits = np.ascontiguousarray(self.values, F).view(np.uint32)
            return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(F)

    def product(x, blocks, format, shape):
        return Tensor(x @ decoded(blocks, format, shape).T)

    report = gq.check(product, "linear", formats=("q4_0", "q6_K"))
    assert report.ok, str(report)


def test_another_encoder_is_right_where_it_is_as_near():
    def absmax(x, format):
        x = x.reshape(-1, 32)
        d = (np.abs(x).max(axis=1, keepdims=True) / 7).astype(np.float16)
        with np.errstate(all="ignore"):
            q = np.where(d > 0, np.clip(np.rint(x / d.astype(F)), -8, 7), 0).astype(np.int8) + 8
        return np.concatenate([d.view(np.uint8), (q[:, :16] | q[:, 16:] << 4).astype(np.uint8)], axis=1)

    report = gq.check(absmax, "quantize", formats="q4_0")
    assert report.ok, str(report)
    assert "not ggml's bytes" in report.notes["q4_0"]


def test_functions_get_the_arguments_that_they_take():
    assert gq.check(_q8_0, formats="q8_0").ok
    with pytest.raises(UnsupportedError, match="say formats="):
        gq.check(_q8_0)
    with pytest.raises(UnsupportedError, match="choose of dequantize, linear, quantize"):
        gq.check(decoded, "decode")
    with pytest.raises(UnsupportedError, match="block type"):
        gq.check(decoded, formats="f16")


def _q8_0(blocks):
    fields = blocks.reshape(-1, 34)
    return fields[:, 2:].view(np.int8) * fields[:, :2].copy().view(np.float16).astype(F)


def test_what_a_function_does_not_take_is_not_judged():
    def some(blocks, format):
        if format != "q8_0":
            raise NotImplementedError("not yet")
        return _q8_0(blocks)

    report = gq.check(some)
    assert report.ok
    assert report.judged == ("q8_0",)
    assert report.refused["q4_K"] == "NotImplementedError: not yet"
    asked = gq.check(some, formats=["q8_0", "q4_K"])
    assert [(fault.format, fault.fault) for fault in asked.faults] == [("q4_K", "raises")]
    nothing = gq.check(lambda blocks, format: 1 / 0)
    assert not nothing.ok
    assert "nothing was judged" in str(nothing)


def test_wrong_shapes_and_written_operands():
    assert gq.check(lambda blocks: _q8_0(blocks)[:-1], formats="q8_0").faults[0].fault == "shape"

    def scribbles(blocks):
        values = _q8_0(blocks)
        blocks[0, 0] ^= 1
        return values

    assert gq.check(scribbles, formats="q8_0").faults[0].fault == "out-of-bounds"


def test_what_a_decoder_does_with_infinite_scales():
    def clamped(blocks):
        return np.nan_to_num(_q8_0(blocks))

    (fault,) = gq.check(clamped, formats="q8_0").faults
    assert fault.cases == ("scales not finite",)


def test_gguf_py_is_right():
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    report = gq.check(lambda blocks, format: quants.dequantize(blocks, GGMLQuantizationType[format.upper()]))
    assert report.ok, str(report)
    assert len(report.judged) >= 20


def test_digits_that_are_lost_in_halves():
    """As mlx 0.32.4 decodes q8_0: codes without a sign times a half, less 128 times that half."""

    def affine(blocks):
        fields = blocks.reshape(-1, 34)
        d = fields[:, :2].copy().view(np.float16)
        with np.errstate(all="ignore"):
            return (fields[:, 2:] ^ 128).astype(np.float16) * d + np.float16(-128) * d

    assert gq.check(affine, formats="q8_0").faults[0].fault == "value-rounding"


@pytest.mark.slow
def test_a_scale_that_serves_two_groups():
    """As mlx 0.32.4 decodes q4_K: every second group has the scale of the one before."""

    def of_pairs(blocks, format, shape):
        parts = gq.formats[format].unpack(blocks.copy().view(gq.formats[format].dtype))
        scale, offset = (part[..., [0, 0, 2, 2, 4, 4, 6, 6], None] for part in parts[1:])
        codes = parts.codes.reshape(*parts.scale.shape, 32)
        with np.errstate(all="ignore"):
            return (codes * scale - offset).reshape(shape)

    assert gq.check(of_pairs, formats="q4_K").faults[0].fault == "sub-scale-order"


SOME = [("iq2_xxs", "odd parity"), ("nvfp4", "one too low")]


@pytest.mark.parametrize(("name", "which"), SOME)
def test_some_planted_mistakes(name, which):
    _planted(name, which)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "which"), [(name, which) for name, cases in planted.CASES.items() for which in cases]
)
def test_all_planted_mistakes(name, which):
    _planted(name, which)


def _planted(name, which):
    def wrong(blocks, format, shape):
        return planted.decoded(format, blocks, which).astype(F)

    faults = [fault.fault for fault in gq.check(wrong, formats=name).faults]
    assert faults[0] == planted.CASES[name][which][0], (which, faults)


def test_the_name_stays_a_function():
    from ggmlq.check import cases  # the folder stays behind the name

    assert cases.__name__ == "ggmlq.check.cases"
    assert callable(gq.check)


def test_the_fixture(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import numpy as np\n"
        "def q8_0(blocks):\n"
        "    f = blocks.reshape(-1, 34)\n"
        "    return f[:, 2:].view(np.int8) * f[:, :2].copy().view(np.float16).astype(np.float32)\n"
        "def test_right(ggmlq_check):\n"
        "    assert ggmlq_check(q8_0, formats='q8_0').ok\n"
        "def test_wrong(ggmlq_check):\n"
        "    ggmlq_check(lambda blocks: -q8_0(blocks), formats='q8_0')\n"
    )
    plugins = "-p", "no:ggmlq", "-p", "ggmlq.check.plugin", "-p", "no:cacheprovider"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-q", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "scaled: All of y is off by one constant factor." in done.stdout


def test_a_half_that_overflows_is_named(fresh):
    """A product that is scaled up and stored as a half: the large results are infinite, no small one is."""

    def in_halves(x, blocks, format, shape):
        weights = gq.QuantArray.from_bytes(blocks, format, shape).dequantize()
        with np.errstate(over="ignore"):
            return (4096 * (x @ weights.T)).astype(np.float16).astype(np.float32) / 4096

    report = gq.check(in_halves, "linear", formats="q8_0", seed=int(fresh.integers(1 << 20)))
    assert "scale-f16-overflow" in {fault.fault for fault in report.faults}
