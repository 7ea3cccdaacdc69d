"""The table of number formats, held against those who have them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from scripts import load

from ggmlq.codes import CODES

NUMBERS = load("tools", "tables._numbers").NUMBERS

BY_NAME = {number.name: number for number in NUMBERS}
FLOATS = {
    "FP32": np.float32, "FP16": np.float16, "BF16": ml_dtypes.bfloat16,
    "E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
OURS = {"E4M3": "e4m3", "E5M2": "e5m2", "INT8": "int8"}


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    number, facts = BY_NAME[name], ml_dtypes.finfo(FLOATS[name])
    assert (number.bits, number.mantissa) == (facts.bits, facts.nmant)
    assert number.sign + number.exponent + number.mantissa == number.bits
    assert number.max == float(facts.max) == -number.lowest
    assert number.smallest_normal == float(facts.smallest_normal)
    assert number.smallest == float(facts.smallest_subnormal)
    assert number.eps == float(facts.eps)


@pytest.mark.parametrize("name", OURS)
def test_codes(name):
    number, code = BY_NAME[name], CODES[OURS[name]]
    assert (number.bits, number.lowest, number.max) == (code.bits, code.min, code.max)


@pytest.mark.parametrize("name", ["E4M3", "E5M2"])
def test_nan_and_infinities(name):
    number, values = BY_NAME[name], CODES[OURS[name]].table
    assert bool(np.isinf(values).any()) == number.infinities
    ends = [int(end, 16) for part in number.nans.split(", ") for end in part.split(" … ")]
    nans = np.flatnonzero(np.isnan(values))
    assert set(ends) <= set(nans.tolist())
    assert number.smallest == values[values > 0].min()


def test_the_others():
    scales = CODES["e8m0"].decode(np.arange(255, dtype=np.uint8)).astype(float)
    assert (BY_NAME["E8M0"].max, BY_NAME["E8M0"].smallest) == (scales.max(), scales.min())
    assert BY_NAME["TF32"].max == 3.4011621342146535e38
    assert BY_NAME["TF32"].eps == 2.0**-10
    assert len(BY_NAME) == len(NUMBERS)


def test_55_of_the_integers_up_to_448_are_e4m3():
    assert len({value for value in CODES["e4m3"].table.tolist() if 0 <= value == int(value)}) == 55
