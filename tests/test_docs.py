"""README and docs: their examples run, their generated tables are fresh, their files exist."""

from __future__ import annotations

import doctest
import re
from contextlib import redirect_stdout
from io import StringIO

import pytest
from scripts import ROOT, load
from stale import skip_if_stale

from ggmlq.cpu.amx import permission
from ggmlq.cuda.driver import served

PACKED = ("device.md",)  # pages that say which kernels come with the package
WANTED = {"torch.md": "torch"}  # page: what its examples import, which the tests do without
table = load("tools", "table")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTES = sorted((ROOT / "bench" / "notes").glob("*.md"))


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # torch.compile on Python 3.13.0
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    """All Python examples of a page, in order, in one session, in an empty folder."""
    if page.name in WANTED:
        pytest.importorskip(WANTED[page.name], reason=f"{WANTED[page.name]} is not installed: {page.name}")
    if page.name in PACKED:
        skip_if_stale(served.STORE)
    monkeypatch.chdir(tmp_path)
    run_examples(page)


@pytest.mark.slow
@pytest.mark.skipif(permission.refused() is not None, reason="there is no matrix unit to be without")
@pytest.mark.parametrize("name", ["README.md", "docs/tour.md", "docs/cpu.md"])
def test_examples_run_without_a_matrix_unit(name, tmp_path, monkeypatch, matrix_unit):
    """Pages about products say what holds on CPUs with one and on others."""
    monkeypatch.chdir(tmp_path)
    matrix_unit(False)
    run_examples(ROOT / name)


def run_examples(page):
    """Doctests, and blocks of ``py``, which have no prompts, so that they can be pasted."""
    found = re.findall(r"```(python|py)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    blocks = [code if kind == "python" else f">>> pasted({code!r}, globals())\n" for kind, code in found]
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {"pasted": pasted}, page.name, str(page), 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


def pasted(code, names):
    """Run a block; each line that it prints stands in a comment of it."""
    with redirect_stdout(StringIO()) as said:
        exec(code, names)
    comments = " ".join(re.findall(r"#(.*)", code))
    for line in said.getvalue().splitlines():
        assert line in comments, line


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:ggmlq|tests|tools|docs|bench)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path


def test_pages_fit_in_a_head():
    """Pages and scripts of docs/ have at most 45,000 words, the first page 110 lines, a path three pages."""
    texts = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "gallery").glob("*.py")]
    assert sum(len(path.read_text().split()) for path in texts) <= 45_000
    assert (ROOT / "README.md").read_text().count("\n") <= 110
    ways, _, _ = (ROOT / "docs" / "README.md").read_text().partition("\n## Reference")
    for way in ways.split("\n## ")[1:]:
        assert len(re.findall(r"^\| \[", way, flags=re.MULTILINE)) <= 3, way
    assert not [path.name for path in NOTES if path.read_text().count("\n") > 150]


def test_the_index_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    linked = set(re.findall(r"^\| \[(\w+\.md)\]\(\1\) \|", index, flags=re.MULTILINE))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_the_notes_have_an_index():
    index = (ROOT / "bench" / "notes" / "README.md").read_text()
    linked = re.findall(r"^\| \[(\w+\.md)\]\(\1\) \|", index, flags=re.MULTILINE)
    assert sorted(linked) == [page.name for page in NOTES if page.name != "README.md"]


def test_all_environment_variables_are_on_one_page():
    """Names in the tree are the names in the table; a name that ends in _ stands for all that begin so."""
    listed = set(
        re.findall(r"^\| `(GGMLQ_\w+)` \|", (ROOT / "docs" / "environment.md").read_text(), re.MULTILINE)
    )
    files = (
        path for room in ("ggmlq", "tests", "tools", "bench", "docs") for path in (ROOT / room).rglob("*")
    )
    texts = [path.read_text() for path in files if path.suffix in (".py", ".md", "") and path.is_file()]
    used = {name for text in texts for name in re.findall(r"\bGGMLQ_[A-Z0-9_]*[A-Z0-9]_?\b", text)}
    used -= {name for name in used if name.endswith("_") and any(each.startswith(name) for each in listed)}
    assert used == listed


def test_commands_of_the_pages_exist():
    files = (ROOT / "ggmlq" / "commands").glob("[a-z]*.py")
    known = {path.stem.replace("_", "-") for path in files}
    for page in PAGES:
        for command in re.findall(r"(?:`|    )ggmlq ([a-z]+(?:-[a-z]+)*)\b", page.read_text()):
            assert command in known, (page.name, command)


QUICK = ["arithmetic", "attention", "cpu", "engine", "formats", "ladder", "scaled"]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", QUICK)
def test_generated_tables_are_fresh(name, capsys):
    assert table.main([name, "--check"]) == 0, capsys.readouterr().out


def test_comments_of_tables_name_their_files():
    comments = [re.findall(r"<!-- table: (\S+)", page.read_text()) for page in [*PAGES, *NOTES]]
    assert {ROOT / path for paths in comments for path in paths} <= {*table.TABLES.values()}


def test_a_table_needs_its_place(tmp_path, monkeypatch):
    """A page without the table's two comments is an error that names them; nothing is written."""
    monkeypatch.setattr(table, "ROOT", tmp_path)
    page = tmp_path / "bench" / "notes" / "agreement.md"
    page.parent.mkdir(parents=True)
    page.write_text("no place\n")
    with pytest.raises(
        SystemExit, match=r"bench/notes/agreement.md has no place.*<!-- table: tools/tables/arithmetic.py -->"
    ):
        table.main(["arithmetic"])
    assert page.read_text() == "no place\n"


def test_claims_count_right():
    """Those with numbers follow the code."""
    from test_decode import IN_GGUF_PY
    from test_encode import ENCODED
    from test_reference import ON_CPU, ON_CUDA

    from ggmlq.arrays.rows import KINDS
    from ggmlq.faults import CATALOGUE
    from ggmlq.formats import FORMATS, BlockFormat

    readme = (ROOT / "README.md").read_text()
    assert f"All {sum(isinstance(fmt, BlockFormat) for fmt in FORMATS.values())} block types" in readme
    mistakes = CATALOGUE.keys() - {"correct", "unknown"}
    assert f"which of {len(mistakes)} mistakes" in " ".join(readme.split())
    text = (ROOT / "docs" / "exactness.md").read_text()
    assert f"gguf-py on random bytes, {len(IN_GGUF_PY)} types" in text
    assert f"{len(ENCODED)} types encode byte for byte" in text
    assert f"on {len(KINDS)} kinds of rows" in text
    assert f"{len(ON_CPU)} types multiply as llama.cpp does on a CPU, {len(ON_CUDA)} on CUDA" in text
