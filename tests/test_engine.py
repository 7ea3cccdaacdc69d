"""The benchmark of the default path, without a GPU: order, budget, judgement, files."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
from scripts import load

import ggmlq as gq
from ggmlq.dispatch.ladder import choose

bench = load("bench", "bench_engine")
engine, Time = bench.engine, bench.Time


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
    old = engine.load(path)
    facts = {"device": "NVIDIA H200", "commit": commit, "read_GBps": 4400}
    failed = bench.measure(bench.Bench(card, 64, 1), cells, time.monotonic() + seconds, path, old, facts)
    return failed, json.loads(path.read_text())


def cells(formats=("q4_0", "q6_K"), wanted=(), lengths=(512, 256)):
    return list(bench.plan(formats, (1, 4, 64), list(wanted), lengths))


def test_a_run(card, tmp_path):
    failed, found = run(card, tmp_path / "x.json", cells())
    assert not failed
    assert found["runs"][0] | {"left_out": [], "read_GBps": 4400} == found["runs"][0]
    rows = {engine.key(row): row for row in found["rows"]}
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
    assert {row["asked"] for row in found["rows"] if "us" in row} == {engine.ROOF}


def test_an_oracle_that_decodes_wrongly_is_no_oracle(card, tmp_path, monkeypatch):
    right = gq.QuantArray.dequantize
    monkeypatch.setattr(gq.QuantArray, "dequantize", lambda self: right(self) * np.float32(1.01))
    failed, found = run(card, tmp_path / "x.json", cells(("q8_0",), ["auto"], [256]))
    assert failed == 5
    assert all("no good" in row["failed"] for row in found["rows"] if row["asked"] != engine.ROOF)
