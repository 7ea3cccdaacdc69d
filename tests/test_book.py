"""The book of the ladder: a page for each rung, of its file, its counted loop and its figures."""

from __future__ import annotations

import json
import re

import pytest
from scripts import load

from ggmlq import cli
from ggmlq.demo import book

RUNGS = book.all_rungs()
make_book = load("tools", "make_book")


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_page_has_the_words_and_a_short_difference(rung):
    text = book.page(rung)
    assert text.startswith(f"# {rung.name}\n\n**{rung.teaches}**")
    for words in (
        f"`{book.place(rung)}`",
        "## What it changed",
        "## What limits it, by arithmetic",
        "## Figures",
    ):
        assert words in text
    assert (book.PACKAGE.parent / book.place(rung)).is_file()
    code = text.split("```")[1].splitlines()[1:]
    assert len(code) <= book.LINES + 1
    assert not [line for line in code if re.match(r"[+-]?(from|import) ", line)]
    lower = book.below(rung)
    assert lower is None or f"The difference to `{lower.name}`" in text


def test_bounds_by_arithmetic():
    """4.5 bits a weight: two operations for 9 / 16 of a byte; 132 × 4 × 32 instructions a clock."""
    text = book.page(book.rung_named("cuda:registers"))
    assert "3.56 · M operations for a byte" in text
    loop = book.facts()["rungs"]["cuda:registers"]["loop"]
    assert loop["products"] == 4 * 64
    assert loop["instructions"]["products and sums"] == 64
    total = sum(loop["instructions"].values())
    most = 2 * 132 * 128 * 1.98e9 * loop["products"] / total / 1e12
    assert f"allows {most:.3g} TFLOP/s at most" in text
    assert "the products are the library's" in book.page(book.rung_named("dequant_cublas"))


def test_no_figure_is_above_its_bound():
    """Rates that were measured on the card are below those that its instructions allow."""
    for rung in RUNGS:
        facts = book.facts()["rungs"][rung.name]
        if rung.device == "cuda" and facts["loop"]:
            each = sum(facts["loop"]["instructions"].values()) / facts["loop"]["products"]
            for row in facts["figures"].get("NVIDIA H200", []):
                rate = 2e6 * row["M"] * row["N"] * row["K"] / row["us"]
                assert rate <= 2 * 132 * 128 * 1.98e9 / each, (rung.name, row)


def test_every_rung_is_in_the_book_and_figures_are_fresh():
    rungs = book.facts()["rungs"]
    assert rungs.keys() == {rung.name for rung in RUNGS}
    figures = make_book.figures()
    assert {name: facts["figures"] for name, facts in rungs.items()} == {
        name: figures.get(name, {}) for name in rungs
    }


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "rung", [r for r in RUNGS if r.device == "cuda" and r.level < 13], ids=lambda r: r.name
)
def test_the_loop_is_that_of_the_kernel(rung):
    """As many products; instructions may differ a little from compiler to compiler."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
    loop, stored = make_book.loop_of(rung), book.facts()["rungs"][rung.name]["loop"]
    assert (loop is None) == (stored is None)
    if loop:
        assert (loop["kernel"], loop["products"]) == (stored["kernel"], stored["products"])
        ours, theirs = (sum(each["instructions"].values()) for each in (loop, stored))
        assert ours == pytest.approx(theirs, rel=0.3)


def test_the_command(capsys, tmp_path):
    assert cli.main(["ladder", "page"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RUNGS) + len(book.chapters())
    assert cli.main(["ladder", "page", "c4_multicast"]) == 0
    said = capsys.readouterr().out
    assert "**Clusters with multicast: two blocks need the same weights" in said
    assert said.count("def multicast_product(") == 1
    run = {"shape": [64, 128], "steps": [{"kernel": "cpu:lines", "rows": 3, "seconds": 5e-4}]}
    (tmp_path / "my_machine.json").write_text(json.dumps(run))
    assert cli.main(["ladder", "page", "lines", "--against", str(tmp_path / "my_machine.json")]) == 0
    assert "| my_machine | 3 | 64 × 128 | 500 | 0.0983 GFLOP/s |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("page naive", "two rungs have this name; write cpu:naive or cuda:naive"),
        ("page cuda:dp4", "no rung has this name; write cuda:dp4a"),
        ("page naive dp4a", "name one rung; `ggmlq ladder page` lists them"),
        ("page cuda:dp4a --against none.json", "this is no result of `ggmlq ladder --json`"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert cli.main(["ladder", *words.split()]) == 2
    assert message in capsys.readouterr().err
