"""Tables of tile sizes: found, chosen by the nearest M, checked, and without effect on a product."""

from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import functions as f
from ggmlq.base import progress
from ggmlq.errors import ConfigError
from ggmlq.functions import configs

BLOCK = (128, 128)
GOOD = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4}
GOOD |= {"num_stages": 3}
PUBLIC = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CONFIGS_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "_logged", set())
    return tmp_path


def put(folder, n, k, table, block=BLOCK):
    path = folder / configs.file_name(n, k, block, configs.device_name("cpu"))
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return path


def named(m):
    """A configuration that tells which entry it is of."""
    return GOOD | {"GROUP_SIZE_M": m}


def operands(rng, m, n, k, block=BLOCK):
    scales = [(m, -(-k // block[1])), (-(-n // block[0]), -(-k // block[1]))]
    codes = [rng.integers(0, 127, shape).astype(np.uint8) for shape in ((m, k), (n, k))]
    return *codes, *(rng.uniform(0.1, 1, shape).astype(np.float32) for shape in scales)


# --- which entry --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "key"), [(3, 2), (12, 8), (20, 16), (1, 1), (5, 4), (7, 8), (9999, 4096), (0, 1)]
)
def test_the_nearest_entry_and_the_first_of_two(folder, m, key):
    put(folder, 512, 256, {str(rows): named(rows) for rows in PUBLIC})
    config = configs.chosen(m, 512, 256, BLOCK, "cpu")
    assert config["GROUP_SIZE_M"] == key


def test_the_first_is_that_of_the_file(folder):
    put(folder, 512, 256, {str(rows): named(rows) for rows in reversed(PUBLIC)})
    assert configs.chosen(3, 512, 256, BLOCK, "cpu")["GROUP_SIZE_M"] == 4


def test_the_table_as_a_whole(folder):
    path = put(folder, 64, 384, {"1": GOOD, "16": {k: v for k, v in GOOD.items() if k.startswith("B")}})
    assert (
        path.name
        == f"N=64,K=384,device_name={configs.device_name('cpu')},dtype=fp8_w8a8,block_shape=[128, 128].json"
    )
    assert " " not in configs.device_name("cpu")
    assert f.get_w8a8_block_fp8_configs(64, 384, 128, 128, device="cpu") == {1: GOOD, 16: GOOD}
    put(folder, 64, 384, {"7": named(9)})  # a file that has changed is read again
    assert f.get_w8a8_block_fp8_configs(64, 384, 128, 128, device="cpu") == {7: named(9)}


def test_tables_of_the_cache_folder(monkeypatch, tmp_path, caplog):
    monkeypatch.delenv("GGMLQ_CONFIGS_DIR", raising=False)
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "_logged", set())
    (tmp_path / "configs").mkdir(mode=0o777)
    (tmp_path / "configs").chmod(0o777)
    put(tmp_path / "configs", 64, 128, {"4": GOOD})
    if hasattr(os, "geteuid"):  # whoever may write there chose the table
        assert f.get_w8a8_block_fp8_configs(64, 128, 128, 128, device="cpu") is None
        assert "configs can be written to by others" in caplog.text
    (tmp_path / "configs").chmod(0o700)
    assert f.get_w8a8_block_fp8_configs(64, 128, 128, 128, device="cpu") == {4: GOOD}
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "off")
    assert f.get_w8a8_block_fp8_configs(64, 128, 128, 128, device="cpu") is None


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GOOD | {"BLOCK_SIZE_K": 256}, r"BLOCK_SIZE_K=256 with block_size\[1\]=128; .*divides"),
        (GOOD | {"BLOCK_SIZE_K": 96}, "BLOCK_SIZE_K=96; sizes of tiles are powers of two of 16"),
        (GOOD | {"BLOCK_SIZE_M": 8}, "BLOCK_SIZE_M=8"),
        (GOOD | {"BLOCK_SIZE_N": 128.0}, "BLOCK_SIZE_N=128.0"),
        (GOOD | {"BLOCK_SIZE_N": True}, "BLOCK_SIZE_N=True"),
        (GOOD | {"GROUP_SIZE_M": 0}, "GROUP_SIZE_M=0; it is an integer of 1"),
        (GOOD | {"num_stages": "3"}, "num_stages='3'"),
        (GOOD | {"num_warps": 64}, "num_warps=64"),
        (GOOD | {"BLOCKSIZE_M": 64}, "'BLOCKSIZE_M' .*did you mean BLOCK_SIZE_M"),
        ({"BLOCK_SIZE_M": 64}, "lacks BLOCK_SIZE_N, BLOCK_SIZE_K"),
        ([64, 64, 64], "is a list; it maps names"),
    ],
)
def test_a_configuration_that_says_nonsense(folder, fresh, config, words):
    operands_ = operands(fresh, 3, 64, 256)
    with pytest.raises(gq.GGMLQError, match=words) as caught:
        f.w8a8_block_fp8_matmul(*operands_, BLOCK, config=config)
    assert isinstance(caught.value, ValueError)
    path = put(folder, 64, 256, {"1": GOOD, "8": config})
    with pytest.raises(ConfigError, match="M=8: ") as caught:
        f.w8a8_block_fp8_matmul(*operands_, BLOCK)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"), ("{", "cannot be read"), ("[" * 100_000, "cannot be read"),
        ("\ud800", "cannot be read"), ("[]", "maps numbers of rows"), ("{}", "maps numbers"),
        ("3", "maps numbers"),
        ('{"a": {}}', "the key 'a'"), ('{"0": {}}', "the key '0'"), ('{"-1": {}}', "the key"),
        ('{"²": {}}', "the key"), ('{"1": 3}', "is a int"), ('{"1": {}}', "lacks BLOCK_SIZE_M"),
    ],
)  # fmt: skip
def test_a_file_that_says_nonsense(folder, text, words):
    path = folder / configs.file_name(64, 256, BLOCK, configs.device_name("cpu"))
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match=words):
        f.get_w8a8_block_fp8_configs(64, 256, 128, 128, device="cpu")


def test_files_of_others_may_say_more(folder):
    put(folder, 64, 256, {"1": GOOD | {"waves_per_eu": 2, "kpack": 1}})
    assert f.get_w8a8_block_fp8_configs(64, 256, 128, 128, device="cpu") == {1: GOOD}


# --- without effect -----------------------------------------------------------------------------------------


def test_results_do_not_depend_on_configurations(folder, fresh, caplog):
    """The bits of ``gq.scaled_linear``: with a configuration, with a table, with neither."""
    A, B, As, Bs = operands(fresh, 20, 64, 256)
    x, w = gq.ScaledArray(A, As, "e4m3", (1, 128)), gq.ScaledArray(B, Bs, "e4m3", BLOCK)
    want = gq.scaled_linear(x, w)
    with caplog.at_level(logging.INFO, "ggmlq"):
        assert np.array_equal(f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, np.float32), want)
        for config in (GOOD, GOOD | {"BLOCK_SIZE_M": 16}, configs.default(BLOCK)):
            y = f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, np.float32, config=config)
            assert np.array_equal(y, want)
        put(folder, 64, 256, {"16": named(3), "24": named(4)})
        assert np.array_equal(f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, np.float32), want)
    assert not caplog.records
