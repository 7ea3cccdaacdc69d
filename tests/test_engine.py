"""The benchmark of the default path and its tools, without a GPU: order, budget, judgement, files."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.formats import FORMATS
from ggmlq.ladder import choose, rungs
from ggmlq.testing import engine, results
from ggmlq.testing.timing import Time

ROOT = Path(__file__).parents[1]


def load(folder, name):
    """A module that is run as a script."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / folder))
    return module


bench = load("bench", "bench_engine")
engine_table, choice_table = load("tools", "engine_table"), load("tools", "choice_table")


# --- the benchmark ----------------------------------------------------------------------------


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
    kinds = [cell.asked if cell.asked in ("auto", results.ROOF) else "rung" for cell in order]
    assert kinds == sorted(kinds, key=[results.ROOF, "auto", "rung"].index)
    assert all(cell.k == 512 for cell in order[: kinds.index("auto") // 2])
    assert {cell.asked for cell in cells(wanted=["auto"])} == {"auto", results.ROOF}
    assert {cell.asked for cell in cells(wanted=["cuda:dp4a"])} == {"auto", results.ROOF, "cuda:dp4a"}
    taken = {choose(cell.problem).name for cell in order if cell.asked == "auto"}
    asked = {cell.asked for cell in cells(wanted=["all"])}
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
    tasks = list(ahead.kernels_of({"ggmlq.cuda.linear.r9_streamk"}, {"q4_0"}))
    names = {name.removeprefix("ggmlq.cuda.") for name, _ in tasks}
    assert {"linear.r9_streamk.kernel", "linear.r9_streamk.adder", "planes.weight_kernel"} <= names
    assert "linear.r7_mma.kernel" not in names
    assert len([name for name, _ in tasks if name.endswith("planes.weight_kernel")]) == 1


def test_without_a_gpu_it_says_so(tmp_path):
    pytest.importorskip("ggmlq.cuda.device")
    from ggmlq.cuda import device

    if device.capability() is not None:
        pytest.skip("there is a GPU")
    command = [sys.executable, str(ROOT / "bench" / "bench_engine.py"), "--json", str(tmp_path / "x.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("CUDA: ")
    assert not (tmp_path / "x.json").exists()


# --- the tools --------------------------------------------------------------------------------

KERNELS = {"cuda:streamk": lambda m: 20 + m / 4, "cuda:mma_magic": lambda m: 60 + m / 5,
           "cuda:dequant_bf16": lambda m: 90 + m / 7, "cuda:dequant_cublas": lambda m: 1.0}  # fmt: skip
ROWS = (1, 8, 64, 512, 4096)


def made_up(formats=("q4_0", "q8_0"), lengths=(4096, 14336), device="NVIDIA H200"):
    """Figures of nothing: kernels whose order changes with the rows of activations."""
    run = {
        "device": device, "compute_capability": "9.0", "multiprocessors": 132, "driver": "1.2",
        "commit": "abc", "date": "2000-01-01", "read_GBps": 4400, "cublas_f16_TFLOPS": 700.0,
    }  # fmt: skip
    rows = []

    def add(name, k, m, asked, kernel, us, way="graph", **more):
        shape = {"format": name, "N": 4096, "K": k, "M": m, "asked": asked, "way": way, "kernel": kernel}
        rates = {"us": us, "TFLOPS": 2e-6 * m * 4096 * k / us, "weight_GBps": 1.0}
        rows.append({"run": 0, **shape, **rates, **more})

    for k in lengths:
        for m in ROWS:
            if m >= 64:
                add("f16", k, m, results.ROOF, results.ROOF, 10 + m / 6)
            for name in formats:
                for kernel, time_of in KERNELS.items():
                    add(name, k, m, kernel, kernel, time_of(m))
                add(name, k, m, "auto", "cuda:streamk", KERNELS["cuda:streamk"](m))
                if m <= 4:
                    add(name, k, m, "auto", "cuda:streamk", 50.0, "plain", host_us=45.0)
    rows.append({**rows[0], "format": "q4_0", "asked": "cuda:mma", "failed": "WrongError"})
    del rows[-1]["us"]
    return {"what": "", "runs": [run], "rows": rows}


def test_the_short_table():
    lines = engine_table.short(made_up()).splitlines()
    assert lines[0] == "| M | q4_0 | q8_0 |"
    theirs = engine_table.llama("q4_0", 8, 4096, 14336)
    roof = 4096 * 14336 * 18 / 32 / 4400e3
    assert lines[3].startswith(f"| 8 | 22.0 / {theirs:.1f} = {theirs / 22:.1f}×, {roof / 22:.0%} |")
    assert [line.split(" | ")[0] for line in lines[2:-2]] == [f"| {m}" for m in ROWS]
    assert "4400 GB/s read, 700.0 TFLOP/s of cuBLAS on halves (commit abc)" in lines[-1]


def test_the_full_table():
    text = engine_table.full(made_up(("q8_0", "q4_0")))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    at = next(cells for cells in lines if cells[:3] == ["q8_0", "14336", "1"])
    assert at[3:7] == ["streamk", f"{20.25:.1f}", "50.0", "45.0"]
    assert at[-2:] == ["", "abc"]
    at = next(cells for cells in lines if cells[:3] == ["q4_0", "4096", "4096"])
    flops = 2 * 4096**3 / 700e6
    assert at[-3:] == [f"{flops / 1044:.0%}", f"{(10 + 4096 / 6) / 1044:.0%}", "abc"]
    names = [cells[0] for cells in lines if cells and cells[0].startswith("q")]
    assert names == sorted(names, key=list(FORMATS).index)


def test_other_cards_are_not_compared_with_the_reference():
    assert "/ –, " in engine_table.short(made_up(device="NVIDIA H100 PCIe"))


def test_goals():
    said = engine_table.goals(made_up())
    assert "| q4_0 | 14336 | 1 | cuda:streamk | 20.2 | 10.8 | 9.4 | 37% | missed |" in said
    fast = made_up()
    for row in fast["rows"]:
        if row.get("us") and row["asked"] == "auto":
            row["us"] = 0.01
    assert engine_table.goals(fast) == "20 of 20 figures reach their aim"


def test_a_page(tmp_path, monkeypatch, capsys):
    page, readme = tmp_path / "engine.md", tmp_path / "README.md"
    begin = [engine_table.BEGIN.format(word) for word in ("full", "short")]
    page.write_text(f"a\n{begin[0]}\nold\n<!-- end of table -->\nb\n")
    readme.write_text("no place\n")
    monkeypatch.setattr(engine_table, "PAGE", page)
    monkeypatch.setattr(engine_table, "README", readme)
    assert engine_table.page(made_up(), check=True) == 1
    assert engine_table.page(made_up(), check=False) == 0
    assert engine_table.page(made_up(), check=True) == 0
    assert "README.md has no place for the short table" in capsys.readouterr().out
    readme.write_text(f"{begin[1]}\n<!-- end of table -->\n")
    assert engine_table.page(made_up(), check=False) == 0
    assert "| M | q4_0 | q8_0 |" in readme.read_text()
    assert page.read_text().startswith(f"a\n{begin[0]}\n| format | K | M |")


def test_no_figures_break_nothing(tmp_path):
    for what in ("page", "picture", "goals"):
        command = [
            sys.executable,
            str(ROOT / "tools" / "engine_table.py"),
            what,
            "--results",
            str(tmp_path / "x"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "x: no figures of auto yet" in done.stdout


def test_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_table, "RESULTS", tmp_path)
    first = made_up(("q4_0",))
    first["runs"][0]["commit"] = ""
    for found, commit in ((first, "xyz"), (made_up(("q8_0",)), None)):
        results.save(tmp_path / "raw.json", found)
        engine_table.keep(tmp_path / "raw.json", "card", commit)
    kept = results.load(tmp_path / "card.json")
    assert [run["commit"] for run in kept["runs"]] == ["xyz", "abc"]
    assert {f.about[0] for f in engine_table.figures(kept)} == {"q4_0", "q8_0"}
    results.save(tmp_path / "raw.json", made_up(device="another"))
    with pytest.raises(SystemExit, match="holds results of NVIDIA H200"):
        engine_table.keep(tmp_path / "raw.json", "card", None)


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra plot)")
    engine_table.picture(made_up(), tmp_path / "x.svg")
    assert "llama.cpp" in (tmp_path / "x.svg").read_text()


def test_the_table_of_choices():
    card = choice_table.entry(made_up(), None, None)
    assert (card["card"], card["capability"], card["multiprocessors"]) == ("NVIDIA H200", [9, 0], 132)
    assert [(row["format"], row["K"]) for row in card["linear"]] == [
        (name, k) for name in ("q4_0", "q8_0") for k in (4096, 14336)
    ]
    streamk, magic, bf16 = "cuda:streamk", "cuda:mma_magic", "cuda:dequant_bf16"
    assert card["linear"][0]["up to"] == [
        (22, [streamk, magic]), (1448, [streamk, magic, bf16]), (None, [bf16, magic, streamk]),
    ]  # fmt: skip
    text = choice_table.written([card, {**card, "card": "another"}])
    assert [entry["card"] for entry in json.loads(text)["cards"]] == ["NVIDIA H200", "another"]
    assert json.loads(text)["cards"][0]["linear"][0]["up to"] == [
        list(span) for span in card["linear"][0]["up to"]
    ]


def test_choices_compare_kernels():
    """A cell of one kernel decides nothing, nor does a shape that was measured with few numbers of rows."""
    rows = made_up(("q4_0",))["rows"]
    alone = [row for row in rows if row["asked"] == "cuda:streamk"]
    assert choice_table.cells(alone) == {}
    few = [row for row in rows if row["K"] == 4096 or row["M"] == 64]
    assert [key[2] for key in choice_table.cells(few)] == [4096]
