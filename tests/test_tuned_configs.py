"""Tables of tuned configurations: found, chosen by the nearest M, checked, obeyed, measured and written."""

from __future__ import annotations

import json
import logging
import os
import sys

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import functions as f
from ggmlq.base import notices
from ggmlq.errors import ConfigError
from ggmlq.functions import configs

BLOCK = (128, 128)
GOOD = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4}
GOOD |= {"num_stages": 3}
PUBLIC = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CONFIGS_DIR", str(tmp_path))
    monkeypatch.setattr(notices, "_logged", set())
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


def test_without_a_table_the_fastest_kernel_and_one_line_in_the_log(folder, caplog, fresh):
    A, B, As, Bs = operands(fresh, 3, 64, 256)
    with caplog.at_level(logging.WARNING, "ggmlq"):
        for _ in range(3):
            y = f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, np.float32)
            assert f.get_w8a8_block_fp8_configs(64, 256, 128, 128, device="cpu") is None
    (said,) = (record.getMessage() for record in caplog.records)
    assert "N=64,K=256" in said
    assert "gq.functions.tune(64, 256)" in said
    assert configs.chosen(3, 64, 256, (128, 128), "cpu") is None
    default = configs.default((64, 128))
    assert default == {
        "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4,
        "num_stages": 3,
    }  # fmt: skip
    obeyed = f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, np.float32, config=default)
    assert np.allclose(y, obeyed, rtol=1e-4, atol=1e-4 * np.abs(y).mean())


def test_tables_of_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("GGMLQ_CONFIGS_DIR", raising=False)
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path))
    (tmp_path / "configs").mkdir(mode=0o777)
    (tmp_path / "configs").chmod(0o777)
    put(tmp_path / "configs", 64, 128, {"4": GOOD})
    if hasattr(os, "geteuid"):  # whoever may write there chose the table
        assert f.get_w8a8_block_fp8_configs(64, 128, 128, 128, device="cpu") is None
        with pytest.raises(ConfigError, match=r"configs can be written to by others"):
            f.tune(64, 128, Ms=[1], device="cpu")
    (tmp_path / "configs").chmod(0o700)
    assert f.get_w8a8_block_fp8_configs(64, 128, 128, 128, device="cpu") == {4: GOOD}
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "off")
    assert f.get_w8a8_block_fp8_configs(64, 128, 128, 128, device="cpu") is None
    with pytest.raises(ConfigError, match=r"no folder for tables.*save=False"):
        f.tune(64, 128, Ms=[1], device="cpu")


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


# --- obeyed -------------------------------------------------------------------------------------------------


def test_every_configuration_gives_the_product(fresh, rounds):
    for _ in rounds(2):
        m, n, k = (int(v) for v in fresh.integers(1, 200, 3))
        block = tuple(int(2 ** fresh.integers(4, 8)) for _ in range(2))
        config = {f"BLOCK_SIZE_{axis}": int(2 ** fresh.integers(4, 8)) for axis in "MN"}
        config |= {"BLOCK_SIZE_K": int(2 ** fresh.integers(4, np.log2(block[1]) + 1))}
        config |= {"GROUP_SIZE_M": int(fresh.integers(1, 9))}
        A, B, As, Bs = operands(fresh, m, n, k, block)
        y = f.w8a8_block_fp8_matmul(A, B, As, Bs, block, np.float32, config=config)
        exact, sizes = (
            gq.reference.scaled_linear(
                gq.ScaledArray(a, As, "e4m3", (1, block[1])), gq.ScaledArray(b, Bs, "e4m3", block)
            )
            for a, b in ((A, B), (A & 0x7F, B & 0x7F))
        )
        # Sums of k products in float32, beside the sum of their sizes: few results may all but cancel.
        assert (np.abs(y - exact) <= (k + 4) * 2.0**-24 * sizes).all(), (m, n, k, block, config)


def test_the_configuration_reaches_the_kernel(folder, fresh, monkeypatch):
    """As given, or as the table has it for so many rows."""
    from ggmlq.cpu.scaled_linear import tuned

    seen, launch = [], tuned.launch
    monkeypatch.setattr(tuned, "launch", lambda *a: (seen.append(a[-1]), launch(*a)))
    A, B, As, Bs = operands(fresh, 20, 64, 256)
    put(folder, 64, 256, {"16": named(3), "24": named(4), "32": named(5)})
    for config in (None, GOOD | {"BLOCK_SIZE_M": 16}):
        f.w8a8_block_fp8_matmul(A, B, As, Bs, BLOCK, config=config)
    assert seen == [named(3), GOOD | {"BLOCK_SIZE_M": 16}]


@pytest.mark.parametrize(
    ("down", "across", "group"), [(4, 4, 2), (5, 3, 2), (1, 7, 4), (7, 1, 3), (3, 4, 32)]
)
def test_tiles_come_in_groups(down, across, group):
    """The order that GROUP_SIZE_M says, seen in which tiles the first ones are."""
    from ggmlq.cpu.scaled_linear import tuned

    m, n = 16 * down, 16 * across
    a, b = (gq.quantize_scaled(np.ones((rows, 16), np.float32), "e4m3", (1, None)) for rows in (m, n))
    seen = []
    for tile in range(down * across):
        out = np.full((m, n), np.nan, np.float32)
        walk, parts = tuned.kernel(), (*tuned._parts(a.matrix()), *tuned._parts(b.matrix()))
        walk(*parts, out, (16, 16, 16, group), tile, tile + 1)
        (place,) = np.argwhere(np.isfinite(out[::16, ::16])).tolist()
        seen.append(tuple(place))
    want = [
        (i, j)
        for top in range(0, down, group)
        for j in range(across)
        for i in range(top, min(top + group, down))
    ]
    assert seen == want


# --- measured -----------------------------------------------------------------------------------------------

TRIED = [GOOD | {"BLOCK_SIZE_M": 16}, GOOD | {"BLOCK_SIZE_K": 64}]


def test_tune_writes_what_is_found(folder):
    table = f.tune(96, 256, Ms=(8, 1), device="cpu", tried=TRIED, seconds=0.0)
    assert list(table) == [1, 8]
    assert all(config in TRIED for config in table.values())
    assert f.get_w8a8_block_fp8_configs(96, 256, 128, 128, device="cpu") == table
    (path,) = folder.iterdir()  # and nothing half-written
    assert list(json.loads(path.read_text())) == ["1", "8"]
    more = f.tune(96, 256, Ms=[4], device="cpu", tried=TRIED[:1], seconds=0.0)
    assert (
        more
        == {1: table[1], 4: TRIED[0], 8: table[8]}
        == f.get_w8a8_block_fp8_configs(96, 256, 128, 128, device="cpu")
    )


def test_tune_that_shall_write_nothing(folder):
    assert set(f.tune(32, 64, 32, 32, Ms=[2], device="cpu", seconds=0.0, save=False, tried=[
        {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32}])) == {2}  # fmt: skip
    assert not list(folder.iterdir())


def test_tune_leaves_a_table_that_it_cannot_replace(folder, monkeypatch):
    path = put(folder, 96, 256, {"1": GOOD})
    before = path.read_text()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ConfigError, match=r"No space left on device.*GGMLQ_CONFIGS_DIR"):
        f.tune(96, 256, Ms=[4], device="cpu", tried=TRIED[:1], seconds=0.0)
    assert [file.read_text() for file in folder.iterdir()] == [before]


def test_tune_keeps_what_is_measured_before_an_interrupt(folder, monkeypatch):
    module, calls = sys.modules["ggmlq.functions.tune"], []
    fastest = module._fastest

    def then_stop(*args):
        calls.append(args)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return fastest(*args)

    monkeypatch.setattr(module, "_fastest", then_stop)
    with pytest.raises(KeyboardInterrupt):
        f.tune(96, 256, Ms=(1, 8), device="cpu", tried=TRIED[:1], seconds=0.0)
    assert f.get_w8a8_block_fp8_configs(96, 256, 128, 128, device="cpu") == {1: TRIED[0]}


def test_tune_tells_of_a_damaged_table_before_it_measures(folder, monkeypatch):
    put(folder, 96, 256, "{")
    with pytest.raises(ConfigError, match="cannot be read"):
        f.tune(96, 256, Ms=[1], device="cpu", tried=TRIED, seconds=1e9)


def test_tune_refuses(folder):
    for call, words in (
        (lambda: f.tune(0, 256), "N=0"),
        (lambda: f.tune(64, 256, Ms=[0], device="cpu"), "Ms=0"),
        (lambda: f.tune(64, 256, device="tpu"), "device='tpu'"),
        (lambda: f.tune(64, 256, 128, 100, device="cpu"), "nothing to compare"),
        (lambda: f.tune(64, 256, tried=[GOOD | {"BLOCK_SIZE_K": 256}], device="cpu"), "divides"),
    ):
        with pytest.raises(gq.GGMLQError, match=words):
            call()
