"""Charts and colours of pages: text can be read, axes are right, and ``show --plot`` draws."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from test_pages import HOSTILE

import ggmlq as gq
from ggmlq import pages
from ggmlq.cli import main
from ggmlq.errors import PageError
from ggmlq.pages import charts
from ggmlq.pages.blocks import STEPS

# --- colours --------------------------------------------------------------------------------


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def themes(name):
    """The colours of a stylesheet by name: light, and dark over it."""
    text = (Path(pages.__file__).parent / name).read_text()
    light, _, dark = text.partition("prefers-color-scheme: dark")
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in (light, dark.split("\n}")[0])]
    return [found[0], found[0] | found[1]]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_all_text_has_contrast(theme):
    colours = themes("page.css")[theme]
    for name in ("text", "quiet", "link", "good", "bad", "note"):
        for ground in ("paper", "panel"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for hue in "ab":
        shades = [colours[f"{hue}{i}"] for i in range(STEPS)]
        for i, shade in enumerate(shades):
            assert contrast(shade, colours["on-low" if i < 6 else "on-high"]) >= 4.5, (hue, i)
        steps = [luminance(shade) for shade in shades]
        assert steps == sorted(steps, reverse=theme == 0), "stronger is always darker (or, on black, lighter)"
    for name, colour in themes("chart.css")[theme].items():
        if re.fullmatch(r"s\d", name):
            assert contrast(colour, colours["paper"]) >= 3, name


# --- charts ---------------------------------------------------------------------------------


def test_shades():
    levels, legend = pages.shades([1, 10, None, math.nan, math.inf, 0, 1e9], log=True)
    assert levels == [0, 1, None, 8, 8, 0, 8]
    assert (legend[0], legend[-1], len(legend)) == ("1.0e+00", "1.0e+09", STEPS + 1)
    assert pages.shades([4.5, 4.5])[0] == [0, 0]
    assert pages.shades([None, math.nan]) == ([None, 8], [])
    assert pages.shades([]) == ([], [])
    assert pages.shades([0, 0], log=True)[0] == [0, 0]
    assert pages.shades([0.0, 4.5, 9.0])[0] == [0, 4, 8]
    assert pages.shades([1e-5, 0.1, 1, 50, math.nan], log=True, span=(0.01, 1))[0] == [0, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-4, 4, [-4, -2, 0, 2, 4]),
        (0, 12, [0, 2, 4, 6, 8, 10, 12]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low, high, marks):
    found = [mark for mark, _ in charts.linear_ticks(low, high, 6 if high == 12 else 5)]
    assert found == pytest.approx(marks)


def test_ticks_of_any_range(fresh):
    for _ in range(200):
        low = float(fresh.standard_normal() * 10 ** fresh.uniform(-9, 9))
        high = low + float(10 ** fresh.uniform(-2, 9)) * max(1e-9, abs(low))
        found = [mark for mark, _ in charts.linear_ticks(low, high)]
        assert 2 <= len(found) <= 8
        slack = 1e-6 * (high - low)
        assert low - slack <= min(found) <= max(found) <= high + slack


@pytest.mark.parametrize("unit", [5e-324, 1e-310, 1e-45, 1e150, 1.7e308])
def test_numbers_at_the_ends_of_floats(unit):
    points = [(0, unit), (1, unit / 2), (2, 0.0), (3, 1.0)]
    for log in (False, True):
        for series in (points, points[:2]):
            drawn(pages.Lines("t", "x", "y", [pages.Series("a", series)], log=log))
        levels, _ = pages.shades([y for _, y in points], log)
        assert all(0 <= level < STEPS for level in levels)
    drawn(pages.Bars("t", "x", [-unit, 0.0, unit], [1, 2]))
    pages.text(pages.Bars("t", "x", [-unit, 0.0, unit], [1, 2]))


def test_amounts():
    assert charts.amount(999_999) == "1 M"
    assert charts.amount(999_499) == "999 k"
    assert [charts.amount(n) for n in (0, 999, 1000, 8_030_261_248, 2e12)] == [
        "0",
        "999",
        "1 k",
        "8.03 G",
        "2 T",
    ]
    assert charts.power(2, -12) == "2⁻¹²"


def drawn(chart):
    return ElementTree.fromstring(pages.svg(chart))


SVG = "{http://www.w3.org/2000/svg}"


def test_bars_say_what_they_are(fresh):
    counts = fresh.integers(0, 1000, 20).tolist()
    chart = pages.Bars(HOSTILE[0], "x", np.linspace(-1, 1, 21).tolist(), counts, note=HOSTILE[1])
    root = drawn(chart)
    bars = root.findall(f"{SVG}rect")
    assert len(bars) == np.count_nonzero(counts)
    assert bars[0].find(f"{SVG}title").text.startswith("-1 to -0.9: ")
    tallest = max(bars, key=lambda bar: float(bar.get("height")))
    assert tallest.find(f"{SVG}title").text.endswith(f": {max(counts)}")
    assert root.get("role") == "img"
    assert HOSTILE[0] in root.get("aria-label")
    assert root.find(f"{SVG}title").text == HOSTILE[0]


def test_lines_leave_out_what_has_no_place():
    points = [(0, 1e-3), (1, math.nan), (2, math.inf), (3, 0.0), (4, 1e-1), (5, -1.0)]
    lines = pages.Lines(
        "t", "x", "y", [pages.Series("a", points), pages.Series("b", [(0, math.nan)])], log=True
    )
    root = drawn(lines)
    assert len(root.findall(f"{SVG}g")) == 2  # one line, and its name in the key
    marks = root.find(f"{SVG}g").findall(f"{SVG}circle")
    assert [mark.find(f"{SVG}title").text for mark in marks] == ["a, 0: 0.001", "a, 3: 0", "a, 4: 0.1"]
    heights = [float(mark.get("cy")) for mark in marks]
    assert heights[1] >= heights[0] > heights[2], "an error of 0 lies on the lower edge"
    for series in ([], [pages.Series("a", [(1, 5.0)])], [pages.Series("a", [(1, 0.0), (2, 0.0)])]):
        for log in (False, True):
            drawn(pages.Lines("t", "x", "y", series, log=log, limit=1e-6))


def test_depth_and_layers(fresh):
    items = [pages.Item("blk", layer, role, 10.0**-layer, "t") for layer in (2, 0, 1) for role in ("a", "b")]
    items += [pages.Item("v", 0, "a", None, "none"), pages.Item("blk", 7, "c", math.nan, "nan")]
    grids = pages.layer_grids(items, "caption", log=True)
    assert [grid.caption for grid in grids] == ["caption (blk)", "caption (v)"]
    assert [name for name, _ in grids[0].rows] == ["blk.0", "blk.1", "blk.2", "blk.7"]
    assert [shade and shade.level for shade in grids[0].rows[0][1]] == [8, 8, None]
    lines = pages.depth_lines(items, "title", "y")
    assert [[x for x, _ in series.points] for series in lines.series] == [[0, 1, 2]] * 2
    assert pages.depth_lines(items[:2], "title", "y") is None
    assert pages.depth_lines([], "title", "y") is None


def test_pictures(fresh, tmp_path):
    chart = pages.Bars("$a_b$ <x>", "x", [0.0, 1.0, 2.0], [3, 5])
    whole = ElementTree.parse(pages.draw([chart, chart], tmp_path / "a.svg")).getroot()
    inner = whole.findall(f"{SVG}svg")
    assert [float(part.get("y")) for part in inner] == [0, float(inner[0].get("height"))]
    assert float(whole.get("height")) == 2 * float(inner[0].get("height"))
    assert "prefers-color-scheme" in whole.find(f"{SVG}style").text
    with pytest.raises(PageError, match=r"\.svg or \.png"):
        pages.draw([chart], tmp_path / "a.gif")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra plot)")
    assert (tmp_path / "a.png") == Path(pages.draw([chart, chart], tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("columns", [30, 80])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", None])
def test_on_a_terminal(columns, encoding):
    counts = [0, 1, 1000, 500]
    said = pages.text(pages.Bars("a\x1b[2Jb", "x", [0.0, 1, 2, 3, 4], counts), columns, encoding)
    head, *lines = said.splitlines()
    assert "\x1b" not in head
    assert all(len(line) <= columns for line in lines)
    assert [int(line.split()[3]) for line in lines] == counts
    bars = [[*line.split(), ""][4] for line in lines]
    assert bars[0] == ""
    assert bars[1]
    assert len(bars[2]) == max(map(len, bars)) > 1
    if encoding != "utf-8":
        assert said.isascii()


def test_fine_bars_are_put_together():
    chart = pages.Bars("t", "codes", [n - 0.5 for n in range(257)], [1] * 256, whole=True)
    lines = pages.text(chart).splitlines()[1:]
    assert len(lines) <= 36
    assert sum(int(line.split()[3]) for line in lines) == 256
    assert lines[0].split()[:3] == ["0", "to", "7"]


# --- show --plot ----------------------------------------------------------------------------


def test_show_draws(fresh, tmp_path, capsys):
    x = fresh.standard_normal((8, 64), np.float32)
    content = {"q": gq.quantize(x, "q4_0"), "f": x, "nan": np.full((2, 4), np.nan, np.float32)}
    gq.save(tmp_path / "m.gguf", content)
    file = str(tmp_path / "m.gguf")
    assert main(["show", file, "q", "--plot"]) == 0
    out = capsys.readouterr().out
    for words in ("q: values", "q: scales", "q: codes", "█"):
        assert words in out
    assert main(["show", file, "f", "--plot", str(tmp_path / "f.svg"), "--rows", "2:4"]) == 0
    assert capsys.readouterr().out.endswith("f.svg\n")
    counted = [title.text for title in ElementTree.parse(tmp_path / "f.svg").iter(f"{SVG}title")]
    assert sum(int(text.rpartition(": ")[2]) for text in counted if " to " in text) <= 2 * 64
    assert main(["show", file, "nan", "--plot"]) == 0
    assert "nothing to draw" in capsys.readouterr().out
    assert main(["show", file, "q", "--json", "--plot", str(tmp_path / "q.svg")]) == 0
    json.loads(capsys.readouterr().out)
    for wrong in (["--plot", str(tmp_path / "x.gif")], ["--plot", "--json"], ["--plot", "--block", "0"],
                  ["--plot", str(tmp_path / "no" / "x.svg")]):  # fmt: skip
        assert main(["show", file, "q", *wrong]) == 2
        assert "--plot" in capsys.readouterr().err
