"""The benchmark of the default path, without a GPU: order, budget, judgement, files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scripts import ROOT, load

import ggmlq as gq
from ggmlq.dispatch.ladder import choose, rungs
from ggmlq.formats import FORMATS
from ggmlq.testing import engine, results
from ggmlq.testing.timing import Time

bench = load("bench", "bench_engine")


@pytest.fixture
def card(monkeypatch):
    """NumPy in place of CuPy: products are right, times are those of nothing."""
    rng = np.random.default_rng()
    card = SimpleNamespace(synchronize=int)
    xp = SimpleNamespace(
        empty=np.empty,
        matmul=np.matmul,
        cuda=SimpleNamespace(Device=lambda: card),
        random=SimpleNamespace(standard_normal=rng.standard_normal, seed=int),
    )

    def replayed(cupy, work, before, after):
        before()
        for each in work:
            each()
        after()
        return Time(10.0, 9.0, True, 5.0)

    def linear(x, q, kernel, out):
        out[...] = x @ q.dequantize().T

    monkeypatch.setattr(bench, "N", 48)
    monkeypatch.setattr(bench, "replayed", replayed)
    monkeypatch.setattr(bench, "called", lambda cupy, work: Time(20.0, 19.0, False, 18.0))
    monkeypatch.setattr(gq, "linear", linear)
    monkeypatch.setattr(gq.QuantArray, "to", lambda self, device: self)
    monkeypatch.setattr(engine, "ROTATED", 3e4)
    return xp


def run(card, path, cells, seconds=60.0, commit="abc"):
    old = results.load(path)
    facts = {"device": "NVIDIA H200", "commit": commit, "read_GBps": 4400}
    failed = bench.measure(bench.Bench(card, 64, 1), cells, time.monotonic() + seconds, path, old, facts)
    return failed, json.loads(path.read_text())


def cells(formats=("q4_0", "q6_K"), wanted=(), lengths=(512, 256)):
    return list(bench.plan(formats, (1, 4, 64), list(wanted), lengths))


def test_a_run(card, tmp_path):
    failed, found = run(card, tmp_path / "x.json", cells())
    assert not failed
    assert found["runs"][0] | {"left_out": [], "read_GBps": 4400} == found["runs"][0]
    rows = {results.key(row): row for row in found["rows"]}
    assert len(rows) == len(found["rows"])
    auto = rows["q4_0", 48, 512, 4, "auto", "graph"]
    assert auto["kernel"] == choose(bench.Cell("q4_0", 48, 512, 4, "auto").problem).name
    assert (auto["us"], auto["least"], auto["run"]) == (10, 9, 0)
    assert auto["nmse"] < 1e-10
    assert rows["q4_0", 48, 512, 4, auto["kernel"], "graph"]["us"] == 10
    assert (
        rows["q4_0", 48, 512, 4, "auto", "plain"] | {"us": 20, "host_us": 18}
        == rows["q4_0", 48, 512, 4, "auto", "plain"]
    )
    assert rows["f16", 48, 512, 64, "cublas_f16", "graph"]["TFLOPS"] == found["runs"][0]["cublas_f16_TFLOPS"]


def test_what_matters_comes_first(card):
    order = cells()
    assert order == list(dict.fromkeys(order))
    kinds = [cell.kernel if cell.kernel in ("auto", results.ROOF) else "rung" for cell in order]
    assert kinds == sorted(kinds, key=[results.ROOF, "auto", "rung"].index)
    assert all(cell.k == 512 for cell in order[: kinds.index("auto") // 2])
    assert {cell.kernel for cell in cells(wanted=["auto"])} == {"auto", results.ROOF}
    assert {cell.kernel for cell in cells(wanted=["cuda:dp4a"])} == {"auto", results.ROOF, "cuda:dp4a"}
    taken = {choose(cell.problem).name for cell in order if cell.kernel == "auto"}
    asked = {cell.kernel for cell in cells(wanted=["all"])}
    assert asked | taken >= {
        "cuda:naive",
        "cuda:registers",
        "cuda:mma",
        "cuda:dequant_cublas",
        "cuda:streamk",
    }
    with pytest.raises(gq.GGMLQError, match="cuda:faster: no such kernel"):
        cells(wanted=["cuda:faster"])


def test_the_budget_is_kept_and_the_rest_is_named(card, tmp_path):
    failed, found = run(card, tmp_path / "x.json", cells(("q4_0",), ["auto"]), seconds=-1)
    assert (failed, found["rows"]) == (0, [])
    assert "left out: q4_0 48x512 auto, M = 1, 4, 64" in found["runs"][0]["left_out"]
    assert "left out: q4_0 48x512 auto plain, M = 1, 4" in found["runs"][0]["left_out"]


def test_wrong_products_have_no_time(card, tmp_path, monkeypatch):
    right = gq.linear

    def wrong(x, q, kernel, out):
        right(x, q, kernel, out)
        if len(x) == 4:
            out[3, 7] += np.abs(out).max()  # one of 192
        if len(x) == 1 and q.format.name == "q6_K":
            out[0, 0] = np.nan

    monkeypatch.setattr(gq, "linear", wrong)
    failed, found = run(card, tmp_path / "x.json", cells(wanted=["auto"]))
    bad = [row for row in found["rows"] if "failed" in row]
    assert failed == len(bad) > 0
    assert all("us" not in row and "WrongError: wrong: NMSE" in row["failed"] for row in bad)
    assert {(row["format"], row["M"]) for row in bad} == {("q4_0", 4), ("q6_K", 4), ("q6_K", 1)}


def test_what_was_not_computed_is_poisoned(card, tmp_path, monkeypatch):
    monkeypatch.setattr(gq, "linear", lambda x, q, kernel, out: None)
    failed, found = run(card, tmp_path / "x.json", cells(("q8_0",), ["auto"], [256]))
    assert failed == 5
    assert {row["asked"] for row in found["rows"] if "us" in row} == {results.ROOF}


def test_an_oracle_that_decodes_wrongly_is_no_oracle(card, tmp_path, monkeypatch):
    right = gq.QuantArray.dequantize
    monkeypatch.setattr(gq.QuantArray, "dequantize", lambda self: right(self) * np.float32(1.01))
    failed, found = run(card, tmp_path / "x.json", cells(("q8_0",), ["auto"], [256]))
    assert failed == 5
    assert all("no good" in row["failed"] for row in found["rows"] if row["asked"] != results.ROOF)


def test_what_fails_leaves_the_rest(card, tmp_path, monkeypatch):
    right = gq.linear

    def fails(x, q, kernel, out):
        if len(x) == 4:
            raise MemoryError("no room")
        right(x, q, kernel, out)

    monkeypatch.setattr(gq, "linear", fails)
    failed, found = run(card, tmp_path / "x.json", cells(("q8_0",), ["auto"], [256]))
    assert failed == 2
    assert {row["M"]: row.get("failed") for row in found["rows"] if row["way"] == "plain"} == {
        1: None, 4: "MemoryError: no room",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "mxfp4", "q4_K", "q6_K", "iq2_xxs", "nvfp4", "q2_K"])
def test_all_blocks_matter(name):
    fmt = FORMATS[name]
    raw = engine.random_bytes(fmt, 16, 1024, 5)
    values = gq.QuantArray.from_bytes(raw, fmt, (16, 1024)).dequantize()
    largest = np.abs(values).reshape(-1, fmt.block_size).max(axis=1)
    assert largest.max() <= 64 * largest.min()


def test_a_later_run_leaves_what_it_did_not_measure(card, tmp_path):
    path = tmp_path / "x.json"
    run(card, path, cells(("q4_0", "q6_K"), ["auto"]))
    _, found = run(card, path, cells(("q6_K",), ["auto"], [256]), commit="def")
    assert [r["commit"] for r in found["runs"]] == ["abc", "def"]
    assert len({(*results.key(row), row["run"]) for row in found["rows"]}) == len(found["rows"])
    of = {(row["format"], row["K"]): found["runs"][row["run"]]["commit"] for row in found["rows"]}
    assert of["q4_0", 512] == of["q6_K", 512] == "abc"
    assert of["q6_K", 256] == "def"
    roofs = [row for row in found["rows"] if row["asked"] == results.ROOF]
    assert {row["run"] for row in roofs} == {0, 1}, "each run has roofs of its own"
    _, found = run(card, path, cells(("q4_0", "q6_K"), ["auto"]), commit="ghi")
    assert [r["commit"] for r in found["runs"]] == ["ghi"]


def test_kernels_are_compiled_ahead():
    from ggmlq.testing import ahead

    rungs("linear", "cuda")
    tasks = list(ahead.kernels_of({"ggmlq.cuda.linear.r10_streamk"}, {"q4_0"}))
    names = {name.removeprefix("ggmlq.cuda.") for name, _ in tasks}
    assert {
        "linear.r10_streamk.kernel",
        "linear.r10_streamk.adder",
        "packed.unpacked.weight_kernel",
    } <= names
    assert "linear.r8_mma.kernel" not in names
    assert len([name for name, _ in tasks if name.endswith("packed.unpacked.weight_kernel")]) == 1


def test_without_a_gpu_it_says_so(tmp_path):
    pytest.importorskip("ggmlq.cuda.machine.device")
    from ggmlq.cuda.machine import device

    if device.capability() is not None:
        pytest.skip("there is a GPU")
    command = [sys.executable, str(ROOT / "bench" / "bench_engine.py"), "--json", str(tmp_path / "x.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("CUDA: ")
    assert not (tmp_path / "x.json").exists()
