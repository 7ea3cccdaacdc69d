"""``ggmlq quantize --kl``: a recipe by the distance of shares of tokens, judged on text held back."""

from __future__ import annotations

import json
import re

import pytest
from families import Sizes, family_model
from vocabularies import HARD, pairs_vocabulary

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.commands import _quality
from ggmlq.model import quality

SIZES = Sizes(layers=1, width=64, head=32, hidden=64, context=128)
TYPES = ("--types", "q4_0,q5_0,q8_0", "--allow-requantize", "--stretch", "32", "--json")


@pytest.fixture
def original(fresh, tmp_path):
    vocabulary = pairs_vocabulary("gpt-2", 20)
    (tmp_path / "text.txt").write_text(HARD.replace("\0", "") * 3)
    return family_model(
        tmp_path / "m.gguf", "llama", int(fresh.integers(1 << 30)), ("f32",), SIZES, vocabulary
    )


@pytest.mark.slow
def test_the_limit_holds_on_text_held_back(original, fresh, tmp_path, capsys):
    text, out, limit = tmp_path / "text.txt", tmp_path / "out.gguf", float(10 ** fresh.uniform(-2.7, -1.3))
    words = ["quantize", str(original), str(out), "--kl", str(limit), "--text", str(text), *TYPES]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    (note,) = [note for note in facts["notes"] if note.startswith("KL ")]
    small, large = gq.model.load(out), gq.model.load(original)
    pieces = quality.stretches(large, text.read_text(), 32)
    held_back = quality.measured(small, large, pieces[1::2], False)["kl"]
    assert held_back <= limit
    assert float(re.match(r"KL (\S+) ", note)[1]) == pytest.approx(held_back, abs=2e-5)
    assert facts["bytes_after"] < 0.5 * original.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out.gguf", "text.txt"]


class Smooth:
    """A search whose distance falls by a factor with each bit, on the text held back by another one."""

    def __init__(self, rate, apart):
        self.count, self.rate, self.apart, self.bits = 0, rate, apart, 0.0

    def bounds(self):
        return 2.0, 8.6

    def attempt(self, bits, pieces):
        self.count, self.bits = self.count + 1, bits
        return _quality.Trial(None, bits, self.measure([[]]))

    def measure(self, pieces):
        return {"kl": 2.0 ** (-self.rate * self.bits) * (1 if pieces == [[]] else self.apart)}


def test_the_search_comes_near_the_limit(fresh):
    """Of a file that loses half of the distance, or 19 of 20 parts, with each bit."""
    for rate, apart in zip(fresh.uniform(1, 4.3, 40), fresh.uniform(0.9, 1.2, 40), strict=True):
        search, limit = Smooth(rate, apart), 2.0 ** (-rate * fresh.uniform(2.3, 8))
        best, held_back = _quality._smallest(search, limit, [[]], [], lambda count: None)
        assert 0.75 * limit <= held_back["kl"] <= limit
        assert best.kl <= 0.95 * limit
        assert search.count <= _quality.TRIES + 5


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (["--kl", "0.1"], "pass --text FILE"),
        (["--kl", "x", "--text", "t"], "a number above 0"),
        (["--kl", "1e-9", "--text", "text.txt"], "give a larger limit"),
        (["--kl", "0.1", "--text", "short.txt"], "pass a longer text"),
    ],
)
def test_what_cannot_be_searched(original, tmp_path, capsys, monkeypatch, words, way):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("some words")
    try:
        status = main(["quantize", str(original), "out.gguf", *words, *TYPES])
    except SystemExit as error:  # argparse
        status = error.code
    assert status == 2
    assert way in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()
