"""ggmlq ladder: roofs, verdicts, words about what pays, options, pictures, and what an interrupt leaves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import cli
from ggmlq.demo import climb, measure
from ggmlq.roofs import floors

RATES = {"f32": 1e11, "q8": 5e11, "bf16": 2e12}


@pytest.fixture(autouse=True)
def quick(monkeypatch, request):
    """No more runs than it takes to have run, and roofs that need no compiler."""
    for name, value in {"SECONDS": 0, "RUNS": 1, "PATIENCE": 0.001}.items():
        monkeypatch.setattr(measure, name, value)
    floors._of_cpu.cache_clear(), floors._rate.cache_clear()
    if "roof" not in request.node.name:
        monkeypatch.setattr(floors, "product_rate", RATES.__getitem__)
        monkeypatch.setattr(floors, "read_rate", lambda nbytes: 1e10)
        monkeypatch.setattr(floors, "copy_rate", lambda nbytes: 2e10)


def run(*words):
    return cli.main(["ladder", "--shape", "48x512", *words])


@pytest.mark.slow
def test_the_roofs_of_this_cpu(monkeypatch):
    """Nothing reads or multiplies faster: each rate is positive, and integers are no slower than floats."""
    monkeypatch.setattr(floors, "ROUNDS", 500)
    assert floors.read_rate(1 << 20) > 1e8
    assert floors.copy_rate(1 << 20) > 1e8
    rates = {name: floors.product_rate(name) for name in RATES}
    assert min(rates.values()) > 1e8
    assert rates["q8"] > 0.7 * rates["f32"], rates


@pytest.mark.slow
def test_every_rung_is_right_and_timed(capsys, fresh):
    name = str(fresh.choice(["q4_0", "q8_0", "q4_K", "q6_K", "f16"]))
    rows = sorted(fresh.integers(1, 20, 2).tolist())
    status = run("--format", name, "--rows", ",".join(map(str, rows)), "--json")
    result = json.loads(capsys.readouterr().out)
    assert status == 0, [step for step in result["steps"] if not step["right"] and not step["reason"]]
    assert result["roofs"]["products"] == RATES
    steps = [step for step in result["steps"] if not step["reason"]]
    able = {
        rung.name
        for rung in gq.kernels(format=name, device="cpu")
        if rung.refuses(climb.Linear.here(gq.formats[name], rows[0], 48, 512, device="cpu")) is None
    }
    assert {step["kernel"] for step in steps} == able
    for step in steps:
        nbytes = gq.formats[name].row_bytes(512) * 48 + 4 * step["rows"] * (512 + 48)
        assert step["bytes"] == nbytes
        assert step["operations"] == 2 * step["rows"] * 48 * 512
        assert step["floors"]["memory"] == pytest.approx(nbytes / 1e10)
        assert step["share"] == pytest.approx(max(step["floors"].values()) / step["seconds"])


def test_lines_and_words(capsys):
    assert run("--rows", "1,5", "--kernel", "naive", "--kernel", "cpu:vectorized", "--kernel", "floats") == 0
    said = capsys.readouterr().out
    assert (
        "read at 10 GB/s, memory is copied at 20; products: f32 100 GFLOP/s · q8 500 GFLOP/s · bf16 2 TFLOP/s"
        in said
    )
    assert "\n1 row " in said
    assert "\n5 rows " in said
    assert said.count("cpu:floats             it reads floats") == 2
    assert "\ncpu:vectorized: Multiply 8-bit codes" in said
    assert said.endswith("all products are right\n")


def steps_of(*seconds, memory=1e-5, arithmetic=1e-6):
    """Steps of one row on the rungs from the lowest on."""
    steps = [
        climb.Step(rung, 1, "", 0.0, True, time, memory, arithmetic, 1e6, 1e5)
        for rung, time in zip(gq.kernels(device="cpu"), seconds, strict=False)
    ]
    return steps


def test_where_a_rung_does_not_pay_the_words_say_why():
    texts = climb.lessons(steps_of(1e-3, 1e-4, 3e-4, 3e-4))
    assert texts[1].endswith("Here it is 10 times as fast as cpu:naive with 1 row.")
    assert "With 1 row it does not pay: it is 3 times slower than cpu:blocked." in texts[2]
    assert "Reading the weights takes 10 µs at least, and the products only 1 µs" in texts[2]
    assert "it is no faster than cpu:dequant" in texts[3]
    near = climb.lessons(steps_of(1.2e-5, 2e-5))
    assert near[1].endswith("cpu:naive is near its roof: the memory alone takes 10 µs.")
    many = climb.lessons(steps_of(1e-3, 2e-3, memory=1e-6, arithmetic=5e-4))
    assert "Its products take 500 µs at least, of 2000" in many[1]
    assert not any("does not pay" in text for text in climb.lessons(steps_of(3e-3, 2e-3, 1e-3)))


def test_a_wrong_product_is_called_wrong(capsys, monkeypatch):
    multiply = climb.linear

    def wrong(x, q, *, kernel):
        y = multiply(x, q, kernel=kernel)
        if kernel == "cpu:tiles":
            y[-1, 7] += 1e-2
        return y

    monkeypatch.setattr(climb, "linear", wrong)
    assert run("--rows", "3", "--kernel", "tiles", "--kernel", "naive") == 1
    said = capsys.readouterr().out
    assert "cpu:tiles              WRONG: its worst row is off by" in said
    assert said.endswith("WRONG PRODUCTS: cpu:tiles\n")


def test_a_slow_rung_is_left_out_with_many_rows(monkeypatch):
    monkeypatch.setattr(climb, "MOST", 1e-9)
    roof = climb.Roofs(1e10, RATES)
    q = climb.weights("q4_0", 32, 256, "cpu")
    one, two = climb.climb(q, (1, 2), ["cpu:naive"], roof, str)
    assert one.seconds
    assert "by its time with fewer rows" in two.reason


def test_an_interrupt_keeps_what_was_measured(capsys, monkeypatch):
    measured = climb._measured

    def interrupted(rung, *operands):
        if rung.level == 2:
            raise KeyboardInterrupt
        return measured(rung, *operands)

    monkeypatch.setattr(climb, "_measured", interrupted)
    assert run("--rows", "1") == 130
    said = capsys.readouterr().out
    assert "interrupted: what follows is of the rungs above" in said
    assert "\ncpu:blocked: " in said
    assert run("--rows", "1", "--json") == 130
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 2


def test_beside_an_earlier_run(capsys, tmp_path):
    run("--rows", "1", "--kernel", "naive", "--json")
    facts = json.loads(capsys.readouterr().out)
    facts["steps"][0]["seconds"] = 3600.0
    earlier = tmp_path / "then.json"
    earlier.write_text(json.dumps(facts))
    assert run("--rows", "1", "--kernel", "naive", "--kernel", "panels", "--against", str(earlier)) == 0
    naive = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("cpu:naive  "))
    assert float(naive.split()[-1]) > 1e3
    earlier.write_text('{"steps": 5}')
    assert run("--against", str(earlier)) == 2
    assert "no result of `ggmlq ladder --json`" in capsys.readouterr().err


def test_pictures(capsys, tmp_path):
    target = tmp_path / "roofline.svg"
    assert run("--rows", "1,2", "--kernel", "naive", "--kernel", "panels", "--plot", str(target)) == 0
    text = target.read_text("utf-8")
    assert "operations for a byte" in text
    assert "cpu:panels" in text
    assert "the roofs" in text


def test_positions_over_decades():
    chart = climb.roofline(steps_of(1e-3, 1e-4), climb.Roofs(1e10, RATES), "title")
    assert chart.decades
    xs = [x for series in chart.shown() for x, _ in series.points]
    assert min(xs) > 0
    none = replace(chart, series=[type(chart.series[0])("zero", [(0.0, 1.0), (1.0, 1.0)])])
    assert none.shown()[0].points == [(1.0, 1.0)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--shape 48", "columns in blocks of 32"),
        ("--shape 48x100", "columns in blocks of 32"),
        ("--shape 0x32", "columns in blocks of 32"),
        ("--shape 999999x4096", "the ladder takes up to"),
        ("--rows 99999999", "the ladder takes up to"),
        ("--kernel fastest", "no such rung on cpu; they are cpu:naive, "),
        ("--device gpu", "no such device; write cpu, cuda or cuda:1"),
        ("--format q9_9", "q9_9"),
        ("--plot roofline.gif", "the name's ending says the kind of picture"),
        ("--plot none/such/x.svg", "there is no such folder"),
        ("--against none.json", "no result of"),
    ],
)
def test_a_wrong_option_is_one_line(capsys, words, told):
    assert cli.main(["ladder", *words.split()]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert told in said.err
    assert said.err.count("\n") == 1


def test_an_earlier_run_of_brackets_or_without_end(capsys, tmp_path):
    step = '{"kernel": "a", "rows": Infinity, "seconds": 1}'
    for text in ("[" * 100_000, f'{{"shape": [1], "steps": [{step}]}}'):
        (tmp_path / "run.json").write_text(text)
        assert cli.main(["ladder", "--rows", "1", "--against", str(tmp_path / "run.json")]) == 2
        assert "no result of" in capsys.readouterr().err


def test_weights_that_are_wider_than_what_is_drawn():
    q = climb.weights("q4_K", 3, 8448, "cpu")
    assert q.shape == (3, 8448)
    assert np.isfinite(q.dequantize()).all()


def test_figures_have_three_digits():
    (step,) = steps_of(1.23456e-2)
    assert climb.line(step, None).split()[:5] == ["cpu:naive", "12.3", "0.0081", "0.081", "GFLOP/s"]
    slow = replace(step, seconds=1234.56e-3, operations=4.56789e15, nbytes=5.6789e12)
    words = climb.line(slow, replace(step, seconds=2.0)).split()
    assert words[:5] == ["cpu:naive", "1230", "4600", "3700", "TFLOP/s"]
    assert words[-1] == "1.62"


def test_without_a_gpu_a_sentence_says_why(capsys, monkeypatch):
    monkeypatch.setattr(climb, "absent", lambda op, device: "CUDA: CuPy is not installed")
    assert run("--rows", "1", "--kernel", "naive") == 0
    assert "\nno GPU's ladder here: CUDA: CuPy is not installed\n" in capsys.readouterr().out
    monkeypatch.setattr(climb, "absent", lambda op, device: None)
    monkeypatch.setattr(climb, "current_card", lambda device: None)
    assert climb.other_ladder("cpu") == "no GPU's ladder here: CuPy is not installed, or finds no GPU"
    monkeypatch.setattr(climb, "current_card", lambda device: "a card")
    assert climb.other_ladder("cpu") == "`--device cuda` climbs the GPU's ladder"
    assert not climb.other_ladder("cuda:1")
