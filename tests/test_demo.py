"""tools/demo: right at every option, errors of its options, its bars, and what it leaves behind."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from scripts import ROOT, load

import ggmlq as gq
from ggmlq.errors import MissingDependencyError

sys.path.insert(0, str(ROOT / "tools"))  # the demo's own modules
demo = load("tools", "demo_layer")
chart, options = sys.modules["_chart"], sys.modules["_demo_options"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No llama.cpp, and no more runs than it takes to have run."""
    monkeypatch.setattr(demo, "Bridge", nobody)
    monkeypatch.setattr(demo, "SECONDS", 0)
    monkeypatch.setattr(demo, "RUNS", 1)


def nobody():
    raise MissingDependencyError("no libggml in this test")


def run(tmp_path, *words):
    return demo.main([*words, "--save", str(tmp_path / "demo.gguf")])


@pytest.mark.parametrize(
    "shape", [(1, 1, 256), (1, 300, 512), (2, 1, 4096), (3, 17, 256), (9, 5, 768)], ids=str
)
def test_right_products_are_called_right(tmp_path, capsys, shape):
    """One token and one row too, where a single element may lie near 0."""
    tokens, rows, columns = map(str, shape)
    status = run(tmp_path, "--tokens", tokens, "--rows", rows, "--columns", columns)
    said = capsys.readouterr().out
    assert status == 0, said
    assert said.endswith("all products are right\n")
    assert said.count("  right  ") == len(demo.FORMATS)


def test_long_rows_are_called_right():
    """Roundings of sums in float32 grow with their length."""
    rng = np.random.default_rng(1)
    w, x = (rng.standard_normal((n, 1 << 18), np.float32) for n in (8, 1))
    q = gq.quantize(w, "q4_0")
    assert demo.measured(q, w, x, None, str).judgement.right


def test_right_at_any_option(tmp_path, capsys, fresh, rounds, monkeypatch):
    """Shapes and data that no list has."""
    for _ in rounds(1.5):
        rng = np.random.default_rng(fresh.integers(1 << 32))
        monkeypatch.setattr(np.random, "default_rng", lambda seed, rng=rng: rng)
        asked = {"--tokens": fresh.integers(1, 40), "--rows": fresh.integers(1, 70)}
        asked["--columns"] = 256 * fresh.integers(1, 12)
        words = [word for pair in asked.items() for word in map(str, pair)]
        assert run(tmp_path, *words) == 0, (words, capsys.readouterr().out)


@pytest.mark.parametrize("tokens", ["1", "64"])
def test_a_wrong_product_is_called_wrong(tmp_path, capsys, monkeypatch, tokens):
    """One row of weights, off by a thousandth of what it is multiplied with."""
    judge = demo.judged

    def judged(y, x, q):
        y = y.copy()
        y[:, 3] += 1e-3 * float(np.abs(np.asarray(q[3])).mean()) * np.abs(x).mean()
        return judge(y, x, q)

    monkeypatch.setattr(demo, "judged", judged)
    assert run(tmp_path, "--tokens", tokens, "--rows", "8", "--columns", "256") == 1
    said = capsys.readouterr().out
    assert said.count("WRONG  ") == len(demo.FORMATS)
    assert f"WRONG PRODUCTS: {', '.join(demo.FORMATS)}" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--columns 320", "take a multiple, such as 512"),
        ("--columns 0", "such as 256"),
        ("--columns -256", "such as 256"),
        ("--rows 0", "take 1 or more"),
        ("--tokens -3", "take 1 or more"),
        ("--tokens many", "'many' is no whole number"),
        ("--tokens " + "9" * 5000, "is no whole number"),
        ("--rows 99999999", "the demo takes up to"),
        ("--rows 9999 --tokens 999999", "the demo takes up to"),
        ("--save .", "name a file"),
        ("--save none/such/x.gguf", "name a file"),
        ("--frobnicate", "unrecognized arguments"),
    ],
    ids=lambda text: text[:30],
)
def test_a_wrong_option_is_one_line(capsys, words, told):
    with pytest.raises(SystemExit) as left:
        options.parse(words.split())
    said = capsys.readouterr()
    assert left.value.code == 2
    assert not said.out
    assert told in said.err
    assert said.err.count("\n") == 1


def test_wrong_options_and_help_need_no_environment(tmp_path):
    """They are told by the script itself: the system's Python has none of our packages."""
    for words, status in ((["--columns", "320"], 2), (["--help"], 0)):
        command = [sys.executable, "-S", str(ROOT / "tools" / "demo"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, capsys, monkeypatch):
    def full(*args):
        raise gq.GGUFError("save('x'): the disk is full; name another")

    monkeypatch.setattr(gq, "save", full)
    assert run(tmp_path, "--rows", "1", "--columns", "256") == 2
    assert capsys.readouterr().err == "tools/demo: save('x'): the disk is full; name another\n"


@pytest.mark.parametrize("made", ["a model", "no GGUF"])
def test_a_file_of_the_users_is_not_replaced(tmp_path, capsys, made):
    """--save may be mistaken for a file to open."""
    path = tmp_path / "demo.gguf"
    if made == "a model":
        gq.save(path, {"w": np.ones(32, np.float32)}, {"general.name": made})
    else:
        path.write_text(made)
    before = path.read_bytes()
    assert run(tmp_path, "--rows", "1", "--columns", "256") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "name another" in said
    assert path.read_bytes() == before


def test_what_it_says_to_try_next_works(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, "--tokens", "2", "--rows", "8", "--columns", "256") == 0
    lines = capsys.readouterr().out.partition("try next:\n")[2].splitlines()
    commands = [line.split() for line in lines if line.startswith("  ")]
    assert [words[-1] for words in commands] == ["demo.gguf", "0", "doctor"]
    for words in commands[:2]:  # a doctor looks at the whole machine, and has tests of its own
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "q4_K" in done.stdout


# --- times and bars ---------------------------------------------------------------------------


def test_times_settle(monkeypatch):
    """The fastest of many counts, and a slow one is not run for ever."""
    now = [0.0]
    monkeypatch.setattr(demo, "RUNS", 7)
    monkeypatch.setattr(demo, "SECONDS", 0.3)
    monkeypatch.setattr(demo.time, "perf_counter", lambda: now[0])
    jumps = iter([0.7, 0.009, 0.1, 0.3, 0.02, 0.009, 0.3, 99.0])

    def jumping():
        now[0] += next(jumps)

    def slow():
        now[0] += 5

    assert demo.settled(jumping) == pytest.approx(0.009)
    assert next(jumps) == 99.0
    assert demo.settled(slow) == pytest.approx(5)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def rows():
    judgement = demo.judged(*product())
    rates = {"q8_0": (0.002, 0.004), "q4_K": (0.001, 0.0005), "q2_K": (0.5, None)}
    return [demo.Row(name, 4.5, 1e-3, judgement, 1.0, *pair) for name, pair in rates.items()]


def product():
    w = np.random.default_rng(0).standard_normal((2, 256), np.float32)
    q = gq.quantize(w, "q4_K")
    return w @ q.T, w, q


@pytest.mark.parametrize("columns", [20, 60, 72, 80, 100, 132, 400])
def test_bars_fit_the_terminal(monkeypatch, columns):
    found = rows()
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = demo.report(found, 1.0).splitlines()
    bars = [line for line in lines if "█" in line or "▏" in line]
    plain = max(len(line.partition(chart.MARK)[0].rstrip(" █▏▎▍▌▋▊▉")) for line in lines)
    assert bool(bars) == (columns > plain + 2 + chart.LEAST)
    if bars:
        assert max(map(len, lines)) < columns
        assert lines[2].count("█") > lines[1].count("█")
        assert lines[2].rstrip()[-1] == chart.MARK  # llama.cpp's is the fastest


def test_a_pipe_gets_no_bars(monkeypatch):
    found = rows()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert demo.report(found, 1.0).isascii()
    terminal = Terminal()
    terminal.encoding = "ascii"
    monkeypatch.setattr(sys, "stdout", terminal)
    assert demo.report(found, 1.0).isascii()


def test_a_bar():
    assert chart.bar(1, 1, 4) == "████"
    assert chart.bar(1, 2, 4) == "██"
    assert chart.bar(0.3, 1, 4) == "█▎"
    assert chart.bar(0.5, 1, 4, mark=1) == "██ │"
    assert chart.bar(1, 1, 4, mark=0.25) == "█│██"
    assert chart.bar(0, 1, 4, mark=0) == "│"
