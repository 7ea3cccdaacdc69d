"""Pages in a real browser: they load nothing, complain of nothing, sort, print, fit a telephone."""

from __future__ import annotations

import browser
import numpy as np
import pytest
from test_pages import products

import ggmlq as gq
from ggmlq import pages, report
from ggmlq.trace import page as trace_page

pytestmark = pytest.mark.slow

pytest.importorskip("jinja2", reason="Jinja2 is not installed (extra report)")
if browser.found() is None:
    pytest.skip(
        "there is no Chromium to open pages in; apt-get install chromium, or name one in GGMLQ_CHROMIUM",
        allow_module_level=True,
    )

HOSTILE = "<script>bad = 1</script><img src=//a.b/x onerror='bad = 2'>"
PAGES = ("report", "run")
ROWS = "Array.from(document.querySelector('{0} tbody').rows, row => row.cells[{1}].textContent)"


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    opened = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page of every kind, of a small model with hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng()
    content = {
        "token_embd.weight": rng.standard_normal((256, 64), np.float32),
        HOSTILE: np.eye(32, dtype="f4"),
    }
    for layer in range(6):
        for role in ("attn_q", "attn_k", "ffn_up", "ffn_down", "an_unusually_long_name_of_a_role"):
            x = rng.standard_t(4, (32, 64)).astype(np.float32)
            content[f"blk.{layer}.{role}.weight"] = x
    metadata = {
        "general.architecture": "llama",
        "general.name": HOSTILE,
        "llama.block_count": 6,
        "t": HOSTILE,
    }
    a, b = folder / "a.gguf", folder / "b.gguf"
    gq.save(a, content, metadata)
    kinds = {name: "q4_0" if "blk.2" in name else "q8_0" for name in content}
    gq.save(b, {name: gq.quantize(x, kinds[name]) for name, x in content.items()}, metadata)
    report.examine(b, a).write(folder / "report.html")
    pages.write(trace_page.page(list(products()), "m.gguf", "libllama.so", []), folder / "run.html")
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_alone_and_in_peace(window, made, name):
    window.open(made / f"{name}.html")
    assert window.complaints() == []
    assert window.requests() == []
    assert window.run("window.bad") is None
    assert window.run("document.images.length") == 0


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_no_wider_than_its_window(window, made, name):
    window.open(made / f"{name}.html", 320, 800)
    window.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for width in (320, 360, 768, 1280):
        window.resize(width)
        assert window.run("document.documentElement.scrollWidth") <= width, width


def test_tables_sort_by_keyboard(window, made):
    window.open(made / "report.html")
    last = "section:last-of-type table"
    head = f"{last} thead th:nth-child(6)"
    assert window.run(f"document.querySelector('{head}').textContent") == "NMSE"
    window.run(f"document.querySelector('{head} button').focus()")
    assert window.run("document.activeElement.tagName") == "BUTTON"
    for order, sign in (("descending", -1), ("ascending", 1)):
        for kind in ("keyDown", "keyUp"):
            window.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                        windowsVirtualKeyCode=13)  # fmt: skip
        assert window.run(f"document.querySelector('{head}').ariaSort") == order
        said = window.run("document.getElementById('said').textContent")
        assert said == f"Tensors: sorted by NMSE, {order}"
        found = [float(cell) for cell in window.run(ROWS.format(last, 5)) if cell != "–"]
        assert len(found) == 32
        assert found == sorted(found, key=lambda value: sign * value)
    sizes = f"{last} thead th:nth-child(4)"
    window.run(f"document.querySelector('{sizes} button').click()")
    assert window.run(f"document.querySelector('{head}').ariaSort") is None
    assert window.run(ROWS.format(last, 3))[0] == "17.0 KiB", "by bytes, not by letters"


def test_a_field_filters_rows(window, made):
    window.open(made / "report.html")
    assert window.names("searchbox") == ["Show rows with"]
    window.run("document.querySelector('input[type=search]').focus()")
    window.call("Input.insertText", text="ffn_UP")
    shown = window.run(
        "Array.from(document.querySelectorAll('section:last-of-type tbody tr'))"
        ".filter(row => row.offsetHeight).length"
    )
    assert shown == 6


def test_everything_has_a_name(window, made):
    window.open(made / "report.html")
    for role, least in (("table", 2), ("columnheader", 10), ("rowheader", 10), ("button", 5), ("region", 5),
                        ("image", 1), ("link", 2), ("heading", 3), ("navigation", 1)):  # fmt: skip
        names = window.names(role)
        assert len(names) >= least, role
        assert all(names), role
        assert not any("↕" in text for text in names), role
    assert window.run("document.documentElement.lang") == "en"
    levels = window.run("Array.from(document.querySelectorAll('h1, h2, h3'), h => h.tagName)")
    assert levels[0] == "H1"
    assert {*levels[1:]} == {"H2"}
    focusable = window.run("Array.from(document.querySelectorAll('.scroll'), one => one.tabIndex)")
    assert {*focusable} == {0}, "what scrolls is reached by keyboard"


def test_a_page_reads_without_its_script(window, made):
    window.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.open(made / "report.html")
        assert window.complaints() == []
        assert "NMSE" in window.names("columnheader")
        assert window.names("button") == []
    finally:
        window.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_page_prints(window, made):
    window.open(made / "report.html", scheme="dark")
    paper = window.pdf()
    assert paper.startswith(b"%PDF-")
    assert len(paper) > 10_000
    window.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert window.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert window.run("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
        assert window.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        window.call("Emulation.setEmulatedMedia", media="")
