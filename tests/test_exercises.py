"""The exercises of ggmlq ladder: each can be solved, mistakes are named, and the command writes the files."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ggmlq import cli
from ggmlq.demo import exercises


def decode(blocks):
    q = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32) - 8
    return (q * blocks["d"].astype(np.float32)[..., None]).reshape(len(blocks), -1)


def codes(x):
    runs = x.reshape(len(x), -1, 32)
    most = np.abs(runs).max(axis=-1)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    return np.rint(runs * inverse[..., None]).astype(np.int32), most / np.float32(127)


def run_sums(a, q):
    return np.einsum("mki,nki->mnk", a, q) - 8 * a.sum(axis=-1)[:, None]


def reuse(module):
    def linear(x, blocks):
        y, k = np.zeros((len(x), len(blocks)), np.float32), x.shape[1]
        for n, row in enumerate(blocks):
            for first in range(0, k, module["STRETCH"]):
                stop = min(first + module["STRETCH"], k)
                y[:, n] += x[:, first:stop] @ module["stretch"](row, first, stop)
        return y

    return linear


def panels(values):
    n, k = values.shape
    whole = np.zeros((-(-n // 16) * 16, k), np.float32)
    whole[:n] = values
    return whole.reshape(-1, 16, k).transpose(0, 2, 1)


SOLUTIONS = {
    1: ("decode", decode),
    2: ("codes", codes),
    3: ("run_sums", run_sums),
    4: ("linear", reuse),
    5: ("panels", panels),
    6: ("bounds", lambda blocks, parts: [blocks * p // parts for p in range(parts + 1)]),
}
MISTAKES = {  # the hole filled wrongly, and the doctor's word
    1: (lambda b: (np.stack([b["qs"] & 15, b["qs"] >> 4], -1).reshape(len(b), -1).astype(np.float32) - 8)
        * np.repeat(b["d"].astype(np.float32), 32, axis=-1), "nibble-order"),
    2: (lambda x: (codes(x)[0], np.float32(2) * codes(x)[1]), "scale"),
    3: (lambda a, q: np.einsum("mki,nki->mnk", a, q), "offset-missing"),
    5: (lambda values: panels(values)[::-1], "columns 0 to 15, 32"),
    6: (lambda blocks, parts: [0, blocks // 3, blocks // 3, blocks // 3 * 2], ""),
}  # fmt: skip


def module_of(number):
    """The names of an exercise's file, as Python has them after an import."""
    names = {"__name__": f"exercise_{number}"}
    exec(compile(exercises.source(number), f"exercise_{number}.py", "exec"), names)
    return names


def filled(number, name, hole):
    names = module_of(number)
    names[name] = hole(names) if hole is reuse else hole
    return names


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(exercises, "TIMED", (1, 16, 64))


@pytest.mark.slow
@pytest.mark.parametrize("number", SOLUTIONS)
def test_each_can_be_solved(number, capsys):
    filled(number, *SOLUTIONS[number])["test_linear"]()
    said = capsys.readouterr().out
    assert said.startswith("right, in the arithmetic ")
    assert "cpu:naive" in said


@pytest.mark.parametrize("number", MISTAKES)
def test_a_mistake_is_named(number):
    hole, word = MISTAKES[number]
    with pytest.raises(AssertionError, match=r"rows of x, .* of weights, .* columns:") as error:
        filled(number, SOLUTIONS[number][0], hole)["test_linear"]()
    assert word in str(error.value)


@pytest.mark.parametrize("number", SOLUTIONS)
def test_the_hole_says_what_is_missing(number):
    with pytest.raises(NotImplementedError, match=SOLUTIONS[number][0]):
        module_of(number)["test_linear"]()


def test_a_result_of_another_shape():
    with pytest.raises(AssertionError, match=r"the result is \(16, 1\); it has to be \(1, 16\)"):
        exercises.check(lambda x, blocks: decode(blocks) @ x.T, "f32")


def test_the_command_writes_what_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ladder", "exercise"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in listed] == list(SOLUTIONS)
    assert cli.main(["ladder", "exercise", "3"]) == 0
    assert "python exercise_3.py" in capsys.readouterr().out
    ran = subprocess.run([sys.executable, "exercise_3.py"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "not written yet: run_sums\n")
    (tmp_path / "exercise_3.py").write_text("a solution")
    assert cli.main(["ladder", "exercise", "3"]) == 2
    assert "is there, and may hold your solution" in capsys.readouterr().err
    assert (tmp_path / "exercise_3.py").read_text() == "a solution"
    assert cli.main(["ladder", "exercise", "3", "--out", "mine.py"]) == 0
    assert (tmp_path / "mine.py").read_text() == exercises.source(3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("exercise 9", "there are exercises 1 to 6"),
        ("exercise one", "lists the exercises, and with a number it writes one"),
        ("exercise 1 2", "lists the exercises"),
        ("climb", "lists the exercises"),
        ("exercise 1 --out none/such.py", "cannot be written"),
    ],
)
def test_wrong_words(words, told, capsys):
    assert cli.main(["ladder", *words.split()]) == 2
    assert told in capsys.readouterr().err
