"""The site is built from its sources without a warning, and no link in it leads nowhere."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import ggmlq
from ggmlq.arrays.protocols import public
from ggmlq.cli import command_line

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CLASSES = {
    ggmlq.QuantArray: "ggmlq.QuantArray",
    ggmlq.ScaledArray: "ggmlq.ScaledArray",
    ggmlq.gguf.GGUFFile: "ggmlq.gguf.GGUFFile",
    ggmlq.safetensors.SafetensorsFile: "ggmlq.safetensors.SafetensorsFile",
    ggmlq.FixedGRU: "ggmlq.FixedGRU",
}
NEEDED = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
EXTENSIONS = "myst_parser,sphinx.ext.autodoc,sphinx.ext.autosummary,sphinx.ext.napoleon,without_search"
WITHOUT_SEARCH = """
import gc
from sphinx.builders.html import StandaloneHTMLBuilder
def setup(app):
    gc.set_threshold(100_000, 50, 20)
    StandaloneHTMLBuilder.search = False
"""


class Page(HTMLParser):
    """What a page points to, and what may be pointed to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.loaded = [], {""}, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        if (tag in ("script", "img", "iframe") and "src" in found) or (tag == "link" and "href" in found):
            self.loaded.append(found.get("src") or found["href"])


@pytest.mark.slow
@pytest.mark.skipif(
    bool(NEEDED), reason=f"the site is not built: {', '.join(NEEDED)} not installed (extra docs)"
)
def test_the_site(tmp_path):
    """As tools/docs makes it, but for what takes most of its time: scripts of the gallery are not run
    (test_gallery.py runs them), pages are in a plain theme, there is no index of words and no page of a
    source. One test, for processes share tests out.
    """
    pages, site = tmp_path / "pages", tmp_path / "site"
    site.mkdir()
    (tmp_path / "without_search.py").write_text(WITHOUT_SEARCH)
    lay_out = [ROOT / "tools" / "site_pages.py", pages, "--quick"]
    build = ["-m", "sphinx", "-b", "html", "-E", "-q", "-W", "--keep-going", "-D", "html_theme=basic"]
    build += ["-D", f"extensions={EXTENSIONS}"]
    for command in (lay_out, [*build, "-c", ROOT / "docs", pages, site]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=site, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}
    links_lead_somewhere(found, site)
    nothing_is_loaded_from_elsewhere(found)
    every_page_command_and_name_is_there(found, site)
    for path in (site / "reference").glob("*.html"):
        words = re.sub(r"<pre>.*?</pre>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "&gt;&gt;&gt;" not in words, f"{path.name}: an example is taken for a part of a section"


def links_lead_somewhere(pages, folder):
    for name, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme:
                continue
            target = (
                os.path.normpath(os.path.join(os.path.dirname(name), unquote(url.path))) if url.path else name
            )
            assert (folder / target).is_file(), f"{name}: {link}"
            if target in pages and url.fragment:
                assert unquote(url.fragment) in pages[target].anchors, f"{name}: {link}"


def nothing_is_loaded_from_elsewhere(pages):
    assert not {link for page in pages.values() for link in page.loaded if urlsplit(link).netloc}


def every_page_command_and_name_is_there(pages, folder):
    of_tree = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert {f"{name}.html" for name in of_tree | {"index", "pages", "changelog", "security"}} <= pages.keys()
    assert {f"gallery/{path.stem}.html" for path in (ROOT / "docs" / "gallery").glob("*.py")} <= pages.keys()
    for name, command in command_line().commands.choices.items():
        text = (folder / "commands" / f"{name}.html").read_text(encoding="utf-8")
        inner = [a for a in command._actions if isinstance(a, argparse._SubParsersAction)]
        for parser in (command, *(each for action in inner for each in action.choices.values())):
            assert parser.prog in text
            for option, action in parser._option_string_actions.items():
                assert option in text or action.help == argparse.SUPPRESS, (parser.prog, option)
    modules = {name for name in ggmlq.__all__ if f"reference/ggmlq.{name}.html" in pages}
    assert {"gguf", "convert", "reference", "formats", "codes", "model"} <= modules
    text = (folder / "reference" / "ggmlq.torch.html").read_text(encoding="utf-8")
    assert "packed" in text
    described = {anchor for page in pages.values() for anchor in page.anchors if anchor.startswith("ggmlq.")}
    for name in {*ggmlq.__all__} - modules:
        assert {f"ggmlq.{name}", f"ggmlq.errors.{name}", f"ggmlq.formats.{name}"} & described, name
    for kind, home in CLASSES.items():
        assert {f"{home}.{name}" for name in public(kind)} <= described
        assert not {name for name in described if name.startswith(f"{home}.")} - {
            f"{home}.{name}" for name in public(kind)
        }, "inner members are left out"
    often = ("dequantize", "raw", "T", "mT", "device", "dtype", "nbytes", "ndim", "size", "drop_raw")
    assert {f"ggmlq.QuantArray.{name}" for name in often} <= described
    assert {"ggmlq.model.Model.generate", "ggmlq.torch.Linear.dequantize", "ggmlq.torch.load_"} <= described
    often = ("close", "path", "keys", "items", "get", "byteorder", "version", "alignment", "select")
    assert {f"ggmlq.gguf.GGUFFile.{name}" for name in often} <= described
