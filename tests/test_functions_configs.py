"""Tables of tile sizes: read as they are, errors in words, and without effect on a product."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import functions as f
from ggmlq.errors import ConfigError
from ggmlq.functions import configs

BLOCK = (128, 128)
GOOD = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4}


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The file of the table for [64, 256]."""
    monkeypatch.setenv("GGMLQ_CONFIGS_DIR", str(tmp_path))
    return tmp_path / configs.file_name(64, 256, BLOCK, "cpu")


def table():
    return f.get_w8a8_block_fp8_configs(64, 256, 128, 128, device="cpu")


def test_the_table_of_a_shape(path, monkeypatch):
    assert table() is None
    path.write_text(json.dumps({"16": GOOD, "1": GOOD | {"kpack": 1}}))
    assert table() == {16: GOOD, 1: GOOD | {"kpack": 1}}
    name = path.name
    assert name.startswith("N=64,K=256,device_name=")
    assert name.endswith(",dtype=fp8_w8a8,block_shape=[128, 128].json")
    assert name.count(" ") == 1
    monkeypatch.delenv("GGMLQ_CONFIGS_DIR")
    assert table() is None


@pytest.mark.parametrize(("m", "rows"), [(3, 2), (12, 8), (20, 16), (1, 1), (7, 8), (9999, 64), (0, 1)])
def test_the_nearest_entry_and_the_first_of_two(path, m, rows):
    path.write_text(json.dumps({str(n): GOOD | {"GROUP_SIZE_M": n} for n in (1, 2, 4, 8, 16, 24, 64)}))
    assert configs.nearest(table(), m)["GROUP_SIZE_M"] == rows


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\ud800", "[]", "3", '{"a": {}}', '{"1": 3}'])
def test_a_file_that_says_nonsense(path, text):
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match="a table maps numbers of rows to configurations") as caught:
        table()
    assert str(path) in str(caught.value)


def test_results_do_not_depend_on_configurations(path, fresh):
    """The bits of ``gq.scaled_linear``: with a configuration, with a table, with neither."""
    A, B = (fresh.integers(0, 127, shape).astype(np.uint8) for shape in ((20, 256), (64, 256)))
    As, Bs = (fresh.uniform(0.1, 1, shape).astype(np.float32) for shape in ((20, 2), (1, 2)))
    want = gq.scaled_linear(gq.ScaledArray(A, As, "e4m3", (1, 128)), gq.ScaledArray(B, Bs, "e4m3", BLOCK))
    path.write_text(json.dumps({"16": GOOD}))
    for config in (None, GOOD, {"BLOCK_SIZE_M": 16}):
        y = f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, np.float32, config=config)
        assert np.array_equal(y, want)
