"""Pages: what files say stays text, and they show what was found."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import ggmlq as gq
import ggmlq.report.page
from ggmlq import pages, report
from ggmlq.check.judge import Judgement
from ggmlq.errors import MissingDependencyError
from ggmlq.trace import page as trace_page
from ggmlq.trace.product import Product

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style></title><b>", "' onclick='x",
    "{{ 7 * 7 }}{% raw %}", "&lt;i&gt;", "]]><svg onload=x>", "\x1b[2J\x00\x07", "a\u202eb\u2066c", "--><!--",
]  # fmt: skip
NO_JINJA = "Jinja2 is not installed (extra report)"


class Tags(HTMLParser):
    """What a browser makes of a page: its elements, their attributes, its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.text += data


def harmless(text):
    """The elements of our template and no others, no handler, nothing from elsewhere."""
    seen = Tags(text)
    assert seen.tags.count("script") == 1
    assert not {"img", "b", "iframe", "object", "base", "form"} & {*seen.tags}
    for tag, name, value in seen.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "src", "action"):
            assert value.startswith("#") or value == "data:,", value
    assert not re.search(r"@import|url\((?!data:)", text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    return seen


@pytest.fixture
def html():
    pytest.importorskip("jinja2", reason=NO_JINJA)
    return pages.html


def test_nothing_in_a_file_becomes_markup(html, fresh, tmp_path):
    x = fresh.standard_normal((4, 64), np.float32)
    names = [name.replace("\x00", "") for name in HOSTILE]
    content = {name: gq.quantize(x, "q8_0") for name in names}
    content |= {f"blk.{i}.{name}.weight": gq.quantize(x, "q4_0") for i in range(2) for name in names}
    content |= {f"{names[0]}.0.w": gq.quantize(x, "q4_0")}
    metadata = {f"k{name}": name for name in names} | {
        "general.architecture": names[1],
        "general.name": names[0],
    }
    folder = tmp_path / names[0].replace("/", "")
    folder.mkdir()
    path = folder / f"{names[2].replace('/', '')}.gguf"
    gq.save(path, content, metadata)
    other = tmp_path / "b.gguf"
    gq.save(other, dict.fromkeys(content, x), {key: value + "!" for key, value in metadata.items()})
    seen = harmless(html(report.page.page(report.examine(path, other))))
    for name in names[:6]:
        assert name in seen.text


def products():
    worst = {"part": "head 1", "row": 2, "column": 3, "got": 1.5, "wanted": 1.0, "error": 0.5, "limit": 0.1}
    fine = worst | {"error": 1e-4}
    common = {"buffer": "CPU_REPACK", "computed_in": "CPU", "m": 4, "n": 64, "k": 256}
    judged = Judgement("ggml-cpu", 1e-13, 1e-4, 0)
    for step in (0, 1):
        for layer in range(3):
            name = f"blk.{layer}.ffn_up.weight"
            yield Product(
                f"ffn_up-{layer}", "MUL_MAT", step, name, "q4_K", judgement=judged, worst=fine, **common
            )
            yield Product(f"node_{layer}", "FLASH_ATTN_EXT", step, f"cache_k_l{layer} (view)", "f16",
                          verdict="not judged", text="an odd mask", **common)  # fmt: skip
    yield Product("ffn_down-1", "MUL_MAT", 1, "blk.1.ffn_down.weight", "q6_K", worst=worst, verdict="wrong",
                  judgement=Judgement("ggml-cpu", 0.2, 0.2, 9), fault=HOSTILE[0], text=f"{HOSTILE[1]}\ntwo",
                  saved="a b.npz", **common)  # fmt: skip


def test_a_page_of_a_run(html):
    found = list(products())
    seen = harmless(html(trace_page.page(found, f"m{HOSTILE[0]}.gguf", "lib.so", [HOSTILE[5]])))
    for words in (
        "1 of 13 nodes are wrong; the first is ffn_down-1.", "WRONG 5.0e+00", HOSTILE[1], "head 1",
        "ggmlq diagnose 'a b.npz'", "FLASH_ATTN_EXT", "an odd mask", "generated tokens",
    ):  # fmt: skip
        assert words in seen.text, words
    shades = re.findall(r'class="(g\d)" title="([^"]*)"', html(trace_page.page(found, "m", "l", [])))
    strong = {shade for shade, about in shades if "ffn_down" in about}
    assert strong == {"g8"}
    assert {shade for shade, about in shades if "ffn_up" in about and "to" not in about[:9]} == {"g0"}
    assert "Every node that was judged is right." in html(trace_page.page(found[:2], "m", "l", []))
    told = html(trace_page.page(found[:2], "m", "l", [], "", {"RMS_NORM": 5, "ROPE": 7}, 40))
    assert "not judged: 12 of 40 nodes: ROPE 7, RMS_NORM 5" in told
    assert "died before the end" in html(trace_page.page([], "m", "l", [], "SIGSEGV at ffn_up-3"))


def test_long_tables_are_cut_and_say_so(html, fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(report.page, "MOST_ROWS", 3)
    monkeypatch.setattr(pages.blocks, "MOST_LAYERS", 2)
    x = fresh.standard_normal((2, 32), np.float32)
    gq.save(tmp_path / "m.gguf", {f"blk.{i}.w.weight": gq.quantize(x, "q8_0") for i in range(9)})
    text = Tags(html(report.page.page(report.examine(tmp_path / "m.gguf")))).text
    assert "The 6 smallest are left out; --json has all." in text
    assert "Not shown: 7 more layers; --json has all." in text
    assert "blk.8.w.weight" not in text


def test_without_jinja_the_error_says_what_to_install(monkeypatch):
    pages.render._template.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "jinja2>='):
        pages.html(pages.Page("t", "", []))
