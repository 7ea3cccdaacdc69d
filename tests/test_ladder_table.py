"""tools/keep.py keeps figures of the ladder under the device's name, never over another machine's."""

from __future__ import annotations

import json

import pytest
from scripts import load

keeping, ladder = load("tools", "keep"), load("tools", "tables.ladder")


def run_of(path, cpu="znver9", threads=4, gpu=None, rungs=("naive", "tiles"), us=1234567.0):
    """A file of pytest-benchmark."""
    side = "cuda" if gpu else "cpu"
    marks = [
        {"extra_info": {"kernel": f"{side}:{rung}", "asked": f"{side}:{rung}", "format": "q4_0", "M": 1,
                        "N": 64, "K": 64, "us": us, "TFLOPS": 2e-6 * 64 * 64 / us, "weight_GBps": 1.0}}
        for rung in rungs
    ]  # fmt: skip
    devices = [{"name": gpu or "NVIDIA H200", "driver_cuda": 13000}]  # without CuPy it is there too
    found = {"cpu": {"name": cpu, "threads": threads}, "gpu": {"devices": devices}, "packages": {"a": "1"}}
    run = {"ggmlq": found | {"commit": "abc"}, "datetime": "2000-01-01T00:00", "benchmarks": marks}
    path.write_text(json.dumps(run))
    return path


@pytest.fixture
def keep(tmp_path, monkeypatch):
    results = tmp_path / "results"
    monkeypatch.setattr(keeping, "RESULTS", results)

    def keep(*words, **how):
        raw = run_of(tmp_path / "raw.json", **how)
        keeping.main([str(raw), *words])
        return {path.stem: json.loads(path.read_text()) for path in sorted(results.iterdir())}

    return keep


def test_figures_are_named_after_their_device(keep):
    keep()
    found = keep(gpu="NVIDIA GeForce RTX 4090")
    assert list(found) == ["ladder_geforce_rtx_4090", "ladder_znver9"]
    assert (found["ladder_znver9"]["device"], found["ladder_znver9"]["threads"]) == ("znver9", 4)
    assert "host's clock" in found["ladder_znver9"]["what"]
    assert "GPU's clock" in found["ladder_geforce_rtx_4090"]["what"]
    assert keeping.file_name("NVIDIA H200") == "ladder_h200"
    assert list(keep("mine")) == ["ladder_geforce_rtx_4090", "ladder_znver9", "mine"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"gpu": "NVIDIA H200"}, "of znver9 with 4 threads, the run is of NVIDIA H200"),
        ({"cpu": "haswell"}, "the run is of haswell with 4 threads"),
        ({"threads": 64}, "the run is of znver9 with 64 threads"),
        ({"rungs": ("naive",)}, "holds 2 figures, the run lacks 1 of them, cpu:tiles q4_0 1 64 64 first"),
        ({"rungs": ()}, "no figures"),
    ],
)
def test_figures_of_others_stay(keep, how, says):
    before = keep("here")
    with pytest.raises(SystemExit, match=says):
        keep("here", **how)
    assert before == keep("here")  # the same machine again
    if how.get("rungs", True):
        assert keep("here", "--replace", **how) != before


def test_some_cases_take_the_places_of_old_ones(keep):
    keep("here")
    rows = keep("here", "--merge", "--commit", "def", rungs=("tiles", "panels"), us=2345678.0)["here"]["rows"]
    assert [(row["kernel"], row["us"], row.get("commit")) for row in rows] == [
        ("cpu:naive", 1234567.0, None), ("cpu:tiles", 2345678.0, "def"), ("cpu:panels", 2345678.0, "def"),
    ]  # fmt: skip
    for words in ((), ("--replace",)):
        with pytest.raises(SystemExit, match=r"the run is of haswell.* or --replace without --merge"):
            keep("here", "--merge", *words, cpu="haswell")
    assert keep("here", "--merge", "--replace", rungs=("tiles",))["here"]["device"] == "znver9"


def test_tracked_figures_say_their_device():
    for path in keeping.RESULTS.glob("ladder_*.json"):
        found = json.loads(path.read_text())
        assert path.stem == keeping.file_name(found["device"])
        on_gpu = found["rows"][0]["kernel"].startswith("cuda:")
        assert found["what"] == (keeping.ON_GPU if on_gpu else keeping.ON_CPU)
        for row in found["rows"]:
            rate = 2e-6 * row["M"] * row["N"] * row["K"] / row["us"]
            assert abs(row["TFLOPS"] - rate) <= max(6e-4 * rate, 6e-4 * on_gpu), row


def test_digits():
    values = (0.3571, 21.84, 1203.2, 999.7)
    assert [*map(ladder.digits, values)] == ["0.357", "21.8", "1203", "1000"]
