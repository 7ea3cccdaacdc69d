"""Encoding with an importance matrix: ggml's bytes, for every way importance may lie."""

from __future__ import annotations

import numpy as np
import pytest
from block_cases import assert_same_blocks
from test_encode import BLOCKS, by_name, ggml_encode
from test_encode import encode as encode_plain

import ggmlq as gq
from ggmlq.arrays.rows import KINDS, rows
from ggmlq.formats import FORMATS

WEIGHTED = [fmt for fmt in BLOCKS if fmt.imatrix != "ignored"]

# How importance may be spread over 1024 columns.
IMPORTANCE = {
    "ones": lambda rng: np.ones(1024),
    "even": lambda rng: rng.uniform(0.5, 2, 1024),
    "over decades": lambda rng: np.exp2(rng.uniform(-40, 10, 1024)),
    "a few columns": lambda rng: np.where(rng.random(1024) < 0.05, 100.0, 0.0),
    "half of it 0": lambda rng: rng.uniform(0, 1, 1024) * (np.arange(1024) % 512 < 200),
    "one column": lambda rng: np.eye(1, 1024, 77)[0],
    "tiny": lambda rng: rng.uniform(0, 1, 1024) * 1e-30,
    "huge": lambda rng: rng.uniform(0, 1, 1024) * 1e30,
}


@pytest.fixture
def fresh_seed():
    """Another one in each run; a failure shows it."""
    return int(np.random.default_rng().integers(1 << 31))


def importance(kind, seed):
    return IMPORTANCE[kind](np.random.default_rng(seed)).astype(np.float32)


def encode(x, fmt, weights):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return gq.quantize(x, fmt, imatrix=weights).blocks


@pytest.mark.parametrize("kind", ["uniform", "normal", "edges", "extremes", "steps"])
@pytest.mark.parametrize("fmt", WEIGHTED, ids=by_name)
def test_golden(fmt, kind, golden):
    inputs = golden("inputs")
    x = inputs[kind]
    want = golden(fmt.name)[f"{kind}/weighted"].view(fmt.dtype)
    assert_same_blocks(encode(x, fmt, inputs["importance"][: x.shape[1]]), want, fmt, x)


@pytest.mark.llama
@pytest.mark.parametrize("spread", IMPORTANCE)
@pytest.mark.parametrize("fmt", WEIGHTED, ids=by_name)
def test_libggml(fmt, spread, libggml, fresh_seed):
    """Rows of every kind at once; they are encoded one by one all the same."""
    x = np.concatenate([rows(kind, 2, 1024, fresh_seed) for kind in KINDS])
    weights = importance(spread, fresh_seed)
    want = libggml.quantize(x, fmt, weights).view(fmt.dtype)
    assert_same_blocks(encode(x, fmt, weights), want, fmt, x)


@pytest.mark.parametrize("fmt", WEIGHTED, ids=by_name)
def test_columns_that_count_come_out_nearer(fmt):
    x = rows("normal", 64, 1024, seed=5)
    weights = importance("over decades", 5)

    def weighted_error(blocks):
        values = gq.QuantArray.from_bytes(blocks, fmt, x.shape).dequantize()
        return (weights * (values - x) ** 2).sum()

    assert weighted_error(encode(x, fmt, weights)) < 0.8 * weighted_error(encode_plain(x, fmt))


def test_the_spread_of_the_whole_row_weighs_in_the_simple_formats():
    """In ggml their weights hold the mean square of the row, those of other types that of the block."""
    x = rows("normal", 1, 512, seed=2)
    louder = np.concatenate([x[:, :256], 1000 * x[:, 256:]], axis=1)
    weights = importance("over decades", 1)[:512]
    for name in ("q4_0", "q5_1", "q4_K", "iq4_nl"):
        here, there = (encode(rows_, name, weights).ravel() for rows_ in (x, louder))
        half = len(here) // 2
        same = here[:half].tobytes() == there[:half].tobytes()
        assert same is (FORMATS[name].block_size == 256 or name == "iq4_nl"), name


def test_importance_may_be_any_float_and_strided():
    x, weights = rows("normal", 3, 256), importance("even", 4)[:512]
    want = gq.quantize(x, "q4_K", imatrix=weights[::2].copy()).raw
    for given in (weights[::2], weights[::2].astype(np.float64), weights.reshape(256, 2)[:, 0]):
        assert np.array_equal(gq.quantize(x, "q4_K", imatrix=given).raw, want)


def test_ggml_takes_no_notice_where_the_format_says_so(libggml):
    x, weights = rows("normal", 4, 256), importance("over decades", 3)[:256]
    for fmt in BLOCKS:
        if fmt.imatrix == "ignored" and fmt.name not in ("q8_1", "q8_K"):
            plain = ggml_encode(libggml, x, fmt)
            assert libggml.quantize(x, fmt, weights).tobytes() == plain.tobytes()
