"""``gq.error_table``: the document's tables digit for digit, and true floats beside its simulation."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import ggmlq as gq
from ggmlq import cli
from ggmlq.codes import CODES

VALUES = [0.001, 0.123, 1.234, 127.9, 255.5, -300.0, 448.0, -448.0]
MORE = [0.001, 0.123, 1.234, 17, 33, 127.9, 255.5, -300.0, 448.0, -448.0]
DOCUMENT = """\
原始值	INT8量化值	INT8反量化值	INT8误差
0.00100	0	0.00000	0.00100
0.12300	1	0.10000	0.02300
1.23400	12	1.20000	0.03400
127.90000	127	12.70000	115.20000
255.50000	127	12.70000	242.80000
-300.00000	-128	-12.80000	287.20000
448.00000	127	12.70000	435.30000
-448.00000	-128	-12.80000	435.20000

原始值	FP8 (E4M3)量化值	FP8 (E4M3)反量化值	FP8 (E4M3)误差
0.00100	0.0	0.00000	0.00100
0.12300	1.0	0.10000	0.02300
1.23400	12.0	1.20000	0.03400
127.90000	448.0	44.80000	83.10000
255.50000	448.0	44.80000	210.70000
-300.00000	-448.0	-44.80000	255.20000
448.00000	448.0	44.80000	403.20000
-448.00000	-448.0	-44.80000	403.20000"""


def test_the_document_digit_for_digit(capsys):
    assert str(gq.error_table(VALUES)) == DOCUMENT
    assert str(gq.error_table(np.array(VALUES, np.float32))) == DOCUMENT
    assert cli.main(["error-table", "--language", "zh"]) == 0
    assert capsys.readouterr().out == DOCUMENT + "\n"
    assert "INT8量化值" not in str(gq.error_table(VALUES[:-1]))
    assert str(gq.error_table(VALUES, 0.1, ["int8_full"])).startswith("format")
    assert gq.error_table(VALUES[:1]).as_document().splitlines()[1] == DOCUMENT.splitlines()[1]


def column(name, values, **how):
    return gq.error_table(values, formats=[name], **how)


def close(rows, errors, within=1e-4):
    """Errors as they are printed in a table."""
    assert len(rows) == len(errors)
    for row, error in zip(rows, errors, strict=True):
        assert abs(row.error - error) <= within * max(error, 1e-3) + 5e-7, row


def test_true_floats_at_the_documents_scale():
    rows = column("e4m3", VALUES)
    assert [row.code for row in rows] == [0x05, 0x3A, 0x54, 0x7E, 0x7E, 0xFE, 0x7E, 0xFE]
    assert [row.quantized for row in rows] == [0.009765625, 1.25, 12, 448, 448, -448, 448, -448]
    close(rows, [2.34375e-5, 0.002, 0.034, 83.1, 210.7, 255.2, 403.2, 403.2])
    assert [row.saturated for row in rows] == [False] * 3 + [True] * 5
    rows = column("e5m2", VALUES)
    assert [row.quantized for row in rows] == [0.009765625, 1.25, 12, 1280, 2560, -3072, 4096, -4096]
    close(rows, [2.34375e-5, 0.002, 0.034, 0.1, 0.5, 7.2, 38.4, 38.4])
    assert [np.isnan(row.dequantized) for row in column("e4m3_nosat", VALUES)] == [False] * 3 + [True] * 5


@pytest.mark.parametrize(
    ("name", "quantized", "errors"),
    [
        ("int8_full", [0, 0, 1, 17, 33, 127, 127, -128, 127, -128],
         [0.001, 0.123, 0.234, 0, 0, 0.9, 128.5, 172, 321, 320]),
        ("fp8_naive", [0, 0, 1, 17, 33, 128, 256, -300, 448, -448],
         [0.001, 0.123, 0.234, 0, 0, 0.1, 0.5, 0, 0, 0]),
        ("e4m3", [0.001953125, 0.125, 1.25, 16, 32, 128, 256, -288, 448, -448],
         [0.000953125, 0.002, 0.016, 1, 1, 0.1, 0.5, 12, 0, 0]),
        ("e5m2", [0.0009765625, 0.125, 1.25, 16, 32, 128, 256, -320, 448, -448],
         [2.34375e-5, 0.002, 0.016, 1, 1, 0.1, 0.5, 20, 0, 0]),
    ],
)  # fmt: skip
def test_scale_1(name, quantized, errors):
    rows = column(name, MORE, scale=1.0)
    assert [row.quantized for row in rows] == quantized
    close(rows, errors)


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("int8", [0.001, 0.123, 1.234, 0.907874, 1.515748, 0.157480, 0, 0]),
        ("int8_asym", [0.001, 0.123, 1.234, 1.405882, 1.001961, 1.333333, 1.756863, 1.756863]),
        ("e4m3", [0.000953125, 0.002, 0.016, 0.1, 0.5, 12, 0, 0]),
        ("e5m2", [2.34375e-5, 0.002, 0.016, 0.1, 0.5, 20, 0, 0]),
        ("bf16", [5.493e-7, 4.6875e-5, 3.75e-4, 0.1, 0.5, 0, 0, 0]),
        ("f16", [4.04e-7, 1.416e-5, 3.75e-4, 0.025, 0, 0, 0, 0]),
    ],
)
def test_calibrated(name, errors):
    table = column(name, VALUES, calibrate="amax")
    close(table, errors)
    if name == "int8":
        assert [row.code for row in table] == [0, 0, 0, 36, 72, -85, 127, -127]
        assert table.scales == {"int8": 448 / 127}
    if name == "int8_asym":
        assert [row.code for row in table] == [0, 0, 0, 36, 73, -85, 127, -128]


def test_floats_are_those_of_ml_dtypes(fresh):
    x = fresh.standard_normal(2000) * 10.0 ** fresh.integers(-6, 6, 2000)
    scale = float(2.0 ** fresh.integers(-5, 5))
    with np.errstate(all="ignore"):
        for name, dtype in (("e4m3_nosat", ml_dtypes.float8_e4m3fn), ("e5m2_nosat", ml_dtypes.float8_e5m2)):
            want = (x / scale).astype(np.float32).astype(dtype).astype(float)
            rows = column(name, x, scale=scale)
            assert np.array_equal([row.quantized for row in rows], want, equal_nan=True)
            assert np.array_equal([row.saturated for row in rows], ~np.isfinite(want))
        for name, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
            kept = x[np.abs(x) < 6e4]
            want = kept.astype(np.float32).astype(dtype).astype(float)
            assert np.array_equal([row.dequantized for row in column(name, kept)], want)


def test_every_code_and_every_type(fresh):
    x = np.abs(fresh.standard_normal(40))  # e8m0 has no sign
    quick = [name for name, fmt in gq.formats.items() if fmt.can_quantize and not hasattr(fmt, "search")]
    names = [*CODES, *quick, "q4_0", "q8_0", "Q4_K", "mxfp4"]  # of the others some compile for long
    table = gq.error_table(x, 0.01, names)
    for name in names:
        rows = table.of(name)
        assert len(rows) == 40
        assert [row.value for row in rows] == x.tolist()
        for row in rows:
            assert row.error == abs(row.value - row.dequantized)
            assert row.relative == row.error / abs(row.value)
    padded = np.zeros(256, np.float32)
    padded[:40] = x
    q = gq.quantize(padded, "q4_K")
    assert [row.dequantized for row in table.of("Q4_K")] == q.dequantize()[:40].tolist()
    assert len(str(table).splitlines()) == len(table) + 1


def test_numbers_that_are_none(fresh):
    table = gq.error_table([np.nan, np.inf, -np.inf, 0.0], 1.0, ("int8", "e4m3", "e5m2_nosat", "fp8_naive"))
    assert [row.code for row in table.of("int8")] == [0, 127, -127, 0]
    assert [row.saturated for row in table.of("int8")] == [False, True, True, False]
    assert [row.dequantized for row in table.of("e4m3")[1:]] == [448, -448, 0]
    assert [row.error for row in table.of("e5m2_nosat")[1:]] == [0, 0, 0]
    assert not any(row.saturated for row in table.of("e5m2_nosat"))
    assert table.of("e4m3")[3].relative == 0
    assert len(gq.error_table([], 1.0, "e4m3")) == 0
    assert len(gq.error_table([], 1.0, "e4m3", calibrate="amax")) == 0
    assert len(gq.error_table(np.zeros(3), formats="int8", calibrate="amax")) == 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gq.error_table(["a"]), "no numbers"),
        (lambda: gq.error_table([1.0], 0.0), r"scale=0.0.*positive"),
        (lambda: gq.error_table([1.0], float("nan")), "scale=nan"),
        (lambda: gq.error_table([1.0], "x"), "scale='x'"),
        (lambda: gq.error_table([1.0], 1.0, ["e3m4"]), r"no format 'e3m4'; formats are e4m3.*fp8_naive"),
        (lambda: gq.error_table([1.0], 1.0, ["int8_nosat"]), "no format 'int8_nosat'"),
        (lambda: gq.error_table([1.0], 1.0, ["q4_0"], calibrate="max"), r"calibrate='max'.*amax"),
        (lambda: gq.error_table([np.nan], 1.0, ["q4_0"]), "nan"),
    ],
)
def test_errors_in_words(call, words):
    with pytest.raises(gq.GGMLQError, match=words):
        call()


def test_the_command(capsys, tmp_path):
    assert (
        cli.main(["error-table", "17", "-300", "--scale", "1", "--formats", "fp8_naive, e4m3", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [row["error"] for row in found["rows"]] == [0, 0, 1, 12]
    assert set(found["rows"][0]) == {
        "format", "value", "code", "quantized", "dequantized", "error", "relative", "saturated",
    }  # fmt: skip
    assert found["scales"] == {"fp8_naive": 1, "e4m3": 1}
    assert cli.main(["error-table", "1", "--formats", "e9"]) == 2
    assert "no format 'e9'" in capsys.readouterr().err


def test_the_command_is_english(capsys):
    assert cli.main(["error-table"]) == 0
    said = capsys.readouterr().out
    assert said.isascii()
    table, reading = said.split("\n\n")
    assert table == gq.error_table(VALUES).as_text()
    assert "how far a format reaches" in reading
    assert cli.main(["error-table", "17", "--language", "zh", "--formats", "e4m3"]) == 0
    assert capsys.readouterr().out.startswith("原始值\te4m3量化值")


def test_the_plot(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra plot)")
    path = tmp_path / "errors.svg"
    assert cli.main(["error-table", "--plot", str(path)]) == 0
    assert "<svg" in path.read_text()
    gq.error_table([0.0, np.nan], formats="e4m3").plot(tmp_path / "nothing.png")
    for bad in (tmp_path / "none" / "e.svg", tmp_path / "e.unknown"):
        assert cli.main(["error-table", "--plot", str(bad)]) == 2
        assert "cannot be written" in capsys.readouterr().err
