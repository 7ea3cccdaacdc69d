"""The tools that work on figures of the default path: tables, goals, a picture, and what auto takes."""

from __future__ import annotations

import json

import pytest
from scripts import load

from ggmlq.formats import FORMATS
from ggmlq.testing import engine as results

table, keeping = load("tools", "table"), load("tools", "keep")
engine, cuda_choice = load("tools", "tables.engine"), load("tools", "tables.cuda_choice")
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
    lines = engine.short(made_up()).splitlines()
    assert lines[0] == "| M | q4_0 | q8_0 |"
    theirs = engine.llama("q4_0", 8, 4096, 14336)
    roof = 4096 * 14336 * 18 / 32 / 4400e3
    assert lines[3].startswith(f"| 8 | 22.0 / {theirs:.1f} = {theirs / 22:.1f}×, {roof / 22:.0%} |")
    assert [line.split(" | ")[0] for line in lines[2:-2]] == [f"| {m}" for m in ROWS]
    assert "4400 GB/s read, 700.0 TFLOP/s of cuBLAS on halves (commit abc)" in lines[-1]


def test_the_table_of_the_first_page():
    """Figures of auto alone, the newest of each problem."""
    figures = made_up()
    figures["runs"].append({**figures["runs"][0], "date": "2000-01-02"})
    for row in [r for r in figures["rows"] if (r["asked"], r["M"]) == ("auto", 4096)]:
        figures["rows"].insert(0, {**row, "run": 1, "kernel": "cuda:mma_magic"})
    lines = engine.first(figures).splitlines()
    assert lines[0] == "| M | q4_0 | q8_0 | kernel |"
    theirs = engine.llama("q4_0", 8, 4096, 14336)
    assert lines[3].startswith(f"| 8 | 22.0 µs, {theirs / 22:.1f}× | ")
    assert [line.split(" | ")[-1] for line in lines[2:-2]] == [
        "streamk |", "streamk |", "streamk |", "streamk |", "mma_magic |",
    ]  # fmt: skip
    assert lines[-1] == "NVIDIA H200, 2000-01-02."


def test_the_full_table():
    text = engine.full(made_up(("q8_0", "q4_0")))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    at = next(cells for cells in lines if cells[:3] == ["q8_0", "14336", "1"])
    assert at[3:7] == ["streamk", f"{20.25:.1f}", "50.0", "45.0"]
    assert at[-2:] == ["", "abc"]
    at = next(cells for cells in lines if cells[:3] == ["q4_0", "4096", "4096"])
    us, flops = 20 + 4096 / 4, 2 * 4096**3 / 700e6  # that of auto, though another kernel was faster
    assert at[3] == "streamk"
    assert at[-3:] == [f"{flops / us:.0%}", f"{(10 + 4096 / 6) / us:.0%}", "abc"]
    names = [cells[0] for cells in lines if cells and cells[0].startswith("q")]
    assert names == sorted(names, key=list(FORMATS).index)


def test_other_cards_are_not_compared_with_the_reference():
    assert "/ –, " in engine.short(made_up(device="NVIDIA H100 PCIe"))


def test_goals():
    said = engine.goals(made_up())
    assert "| q4_0 | 14336 | 1 | cuda:streamk | 20.2 | 10.8 | 9.4 | 37% | missed |" in said
    for f in engine.figures(made_up()):
        assert engine.goal(f, True) <= engine.goal(f, False)
    fast = made_up()
    for row in fast["rows"]:
        if row.get("us") and row["asked"] == "auto":
            row["us"] = 0.01
    assert engine.goals(fast) == "20 of 20 figures reach their aim"


def test_a_page(tmp_path, monkeypatch, capsys):
    page, readme, figures = tmp_path / "docs" / "engine.md", tmp_path / "README.md", tmp_path / "card.json"
    begin = [f"<!-- table: tools/tables/engine.py{part} -->" for part in (" short", " full", "", " humming")]
    end = "<!-- end of table -->"
    page.parent.mkdir()
    page.write_text(f"a\n{begin[0]}\nold\n{end}\n{begin[3]}\n{end}\nb\n{begin[1]}\n\nold\n\n{end}\nc\n")
    readme.write_text(f"{begin[2]}\n{end}\n")
    results.save(figures, made_up())
    monkeypatch.setattr(table, "ROOT", tmp_path)
    words = ["engine", "--results", str(figures)]
    assert table.main([*words, "--check"]) == 1
    assert "engine.md is stale" in capsys.readouterr().out
    assert table.main(words) == 0
    assert table.main([*words, "--check"]) == 0
    assert "| M | q4_0 | q8_0 | kernel |" in readme.read_text()
    assert page.read_text().startswith(f"a\n{begin[0]}\n| M | q4_0 | q8_0 |")
    assert f"b\n{begin[1]}\n\n![time against rows" in page.read_text()
    assert page.read_text().endswith(f"\n\n{end}\nc\n")
    assert f"{begin[3]}\n| type, N × K | M=1 |" in page.read_text()


def test_no_figures_break_nothing(tmp_path, capsys):
    for option in ([], ["--picture"], ["--goals"]):
        assert table.main(["engine", "--results", str(tmp_path / "x"), *option]) == 0
        assert "x: no figures of auto yet" in capsys.readouterr().out


def test_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "RESULTS", tmp_path)
    raw, first = tmp_path / "raw.json", made_up(("q4_0",))
    first["runs"][0]["commit"] = ""
    for figures, words in ((first, ["--commit", "xyz"]), (made_up(("q8_0",)), [])):
        results.save(raw, figures)
        keeping.main([str(raw), "card", *words])
    merged = results.load(tmp_path / "card.json")
    assert [run["commit"] for run in merged["runs"]] == ["xyz", "abc"]
    assert {f.name for f in engine.figures(merged)} == {"q4_0", "q8_0"}
    results.save(raw, made_up(device="another"))
    with pytest.raises(SystemExit, match="holds results of NVIDIA H200"):
        keeping.main([str(raw), "card"])


def test_the_picture():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra plot)")
    assert "llama.cpp" in engine.picture(made_up())


def test_the_table_of_choices():
    card = cuda_choice.entry(made_up(), None, None)
    assert (card["card"], card["capability"], card["multiprocessors"]) == ("NVIDIA H200", [9, 0], 132)
    assert [(row["format"], row["K"]) for row in card["linear"]] == [
        (name, k) for name in ("q4_0", "q8_0") for k in (4096, 14336)
    ]
    streamk, magic, bf16 = "cuda:streamk", "cuda:mma_magic", "cuda:dequant_bf16"
    assert card["linear"][0]["up to"] == [
        (22, [streamk, magic]), (1448, [streamk, magic, bf16]), (None, [bf16, magic, streamk]),
    ]  # fmt: skip
    text = cuda_choice.lines([card, {**card, "card": "another"}], cuda_choice.WHAT, "cards")
    assert [entry["card"] for entry in json.loads(text)["cards"]] == ["NVIDIA H200", "another"]
    assert json.loads(text)["cards"][0]["linear"][0]["up to"] == [
        list(span) for span in card["linear"][0]["up to"]
    ]


def test_choices_compare_kernels():
    """A cell of one kernel decides nothing, nor does a shape that was measured with few numbers of rows."""
    rows = made_up(("q4_0",))["rows"]
    alone = [row for row in rows if row["asked"] == "cuda:streamk"]
    assert cuda_choice.cells(alone) == {}
    few = [row for row in rows if row["K"] == 4096 or row["M"] == 64]
    assert [key[2] for key in cuda_choice.cells(few)] == [4096]
