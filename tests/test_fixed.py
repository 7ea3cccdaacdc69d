"""Fixed point: shifts, formats, observers, tables."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ggmlq.fixed import QFormat, format_of, rounding_shift, shifted, shifted_array, table_of
from ggmlq.fixed.observers import Observed
from ggmlq.fixed.shift import amounts
from ggmlq.fixed.tables import sigmoid, tanh


def exactly(v, n):
    """Round half away from zero, in rationals."""
    x = Fraction(v) / Fraction(2) ** n
    size = abs(x) + Fraction(1, 2)
    whole = size.numerator // size.denominator
    return -whole if x < 0 else whole


@pytest.mark.parametrize("n", range(-8, 41))
def test_shifts_round_half_away_from_zero(n, fresh):
    near = [i * 2 ** max(n - 1, 0) + d for i in range(-5, 6) for d in (-1, 0, 1)]
    values = np.array([*near, *fresh.integers(-(2**29), 2**29, 50)], np.int64)
    wanted = [exactly(int(v), n) for v in values]
    assert [rounding_shift(int(v), n) for v in values] == wanted
    assert shifted_array(values, n).tolist() == wanted
    kinds = [(np.int64, 63)] + ([(np.int32, 31)] if n >= 0 else [])
    for kind, top in kinds:
        left, half, negative, right = (int(part) for part in amounts(n, top))
        for v in values[np.abs(values) < 2**30].astype(kind).tolist():
            assert shifted(v, left, half, negative, right) == exactly(v, n)


def test_shifts_by_more_bits_than_there_are():
    assert shifted_array(np.array([2**60, -(2**60), 1]), [63, 100, 200]).tolist() == [0, 0, 0]
    assert shifted(2**29, *amounts(40, 31)) == 0
    assert rounding_shift(0, 500) == rounding_shift(1, 31) == 0
    assert shifted_array(0, -200) == 0


@pytest.mark.parametrize(
    ("low", "high", "bits", "signed", "exponent", "zero"),
    [
        (-1, 1, 8, True, 6, -64),
        (0, 1, 8, False, 7, 0),
        (0, 255 / 256, 8, False, 8, 0),
        (0, 0, 8, True, 23, -128),
        (0.095, 0.146, 8, True, 10, -128),
        (-1, 1, 16, True, 14, -16384),
        (0, 65535 / 65536, 16, False, 16, 0),
    ],
)
def test_formats_of_ranges(low, high, bits, signed, exponent, zero):
    assert format_of(low, high, bits, signed) == QFormat(exponent, zero, bits, signed)


def test_formats_of_rows_are_symmetric():
    found = format_of(np.array([-1.0, 0, -0.5]), np.array([127 / 128, 0, 1]), 8, True, True)
    assert found.exponent.tolist() == [7, 23, 6]
    assert found.zero == 0


def test_ranges_always_fit_their_format(fresh):
    for _ in range(200):
        low, high = np.sort(fresh.standard_normal(2) * 2.0 ** fresh.integers(-20, 20))
        bits, signed = int(fresh.integers(2, 17)), bool(fresh.integers(2))
        f = format_of(low, high, bits, signed)
        assert f.low <= f.zero <= f.high
        assert f.decode(f.encode(np.zeros(1))) == 0
        free = f.unclipped(np.array([low, high]))
        assert (free >= f.low - 1).all()
        assert (free <= f.high + 1).all()


def test_codes_round_before_the_zero_point_is_added():
    f = QFormat(0, 3, 8, True)
    assert f.encode([-0.5, 0.5, 1.5, -200]).tolist() == [2, 4, 5, -128]
    assert f.encode([-0.5, 0.5, 1.5, np.inf], "half_even").tolist() == [3, 3, 5, 127]


def test_the_average_follows_the_steps_in_order():
    seen = Observed()
    for batch in ([[1, -1], [3, 0], [2, -2]], [[0, -4], [10, 1]]):
        values = np.array(batch, float)
        seen.see(values)
        for step in values:
            seen.step(step)
    low, high = -1.0, 1.0
    for step in ((0, 3), (-2, 2), (-4, 0), (1, 10)):
        low, high = 0.9 * low + 0.1 * step[0], 0.9 * high + 0.1 * step[1]
    assert seen.range("ema") == pytest.approx((low, high), abs=1e-12)
    assert seen.range("minmax") == (-4, 10)


def test_percentile_and_least_error_leave_outliers_out(fresh):
    seen = Observed()
    x = fresh.standard_normal(100_000)
    for part in np.split(x, 10):
        seen.see(part)
    seen.see(np.array([300.0, -200.0]))
    low, high = seen.range("percentile")
    assert -6 < low < -3.5
    assert 3.5 < high < 6
    errors = {}
    for observer in ("minmax", "percentile", "sqnr"):
        f = seen.format(observer, 8, True, False)
        errors[observer] = float(((f.decode(f.encode(x), np.float64) - x) ** 2).mean())
    assert errors["percentile"] < errors["minmax"] / 100
    assert errors["sqnr"] <= errors["minmax"] * 1.01


def test_the_least_error_may_be_that_of_a_finer_scale(fresh):
    """A range just past a power of two wastes half of the codes."""
    seen = Observed()
    x = np.append(fresh.uniform(-1, 1, 10_000), 1.02)
    seen.see(x)
    covers, found = (seen.format(observer, 8, True, True) for observer in ("minmax", "sqnr"))
    assert found.exponent == covers.exponent + 1


def test_histograms_keep_every_value(fresh):
    seen = Observed()
    seen.see(np.zeros(7))
    for scale in (1e-3, 1, 1e9, 1e-9):
        seen.see(fresh.standard_normal(100) * scale)
    assert seen._bins.sum() == seen.count == 407


@pytest.mark.parametrize("function", ["sigmoid", "tanh"])
@pytest.mark.parametrize("bits", [8, 16])
def test_tables_over_every_code(function, bits):
    exact = {"sigmoid": sigmoid, "tanh": tanh}[function]
    source = QFormat(bits - 4, 3, bits, True)
    target = QFormat(bits, 0, bits, False) if function == "sigmoid" else QFormat(bits - 1, 0, bits, True)
    x = (np.arange(source.low, source.high + 1) - source.zero) * 2.0**-source.exponent
    worst = {}
    for how in ("direct", "pwl16", "interpolated"):
        table = table_of(function, how, source, target)
        assert table.dtype == target.dtype
        assert len(table) == 1 << bits
        real = target.decode(table, np.float64)
        worst[how] = np.abs(real - np.clip(exact(x), target.decode([target.low], float), 1)).max()
        if how != "pwl16":
            assert (np.diff(table.astype(int)) >= 0).all()
    code = 2.0**-target.exponent
    assert worst["direct"] <= code
    assert worst["interpolated"] <= 1.5 * code
    assert worst["pwl16"] <= {8: 1.7e-2, 16: 1.3e-2}[bits]


def test_the_document_s_sigmoid_and_tanh_do_not_overflow():
    with np.errstate(all="raise"):
        assert sigmoid(np.array([-700.0, 0, 700])).tolist() == [pytest.approx(0, abs=1e-300), 0.5, 1]
