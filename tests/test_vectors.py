"""Vectors: the same bytes each time; the readers in docs/vectors accept them and refuse mutants."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.check import vectors
from ggmlq.cli import main
from ggmlq.faults import CATALOGUE

READERS = Path(__file__).parent.parent / "docs" / "vectors"
CASES = ("all_codes", "hostile_scales", "scales_not_finite", "one_block", "odd_numbers_of_blocks", "mutants")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    place = tmp_path_factory.mktemp("vectors") / "out"
    assert main(["vectors", str(place), "--formats", "q4_0,q6_K"]) == 0
    return place


def test_the_index_names_every_file(written):
    index = json.loads((written / "index.json").read_text())
    assert index["ggmlq vectors"] == vectors.VERSION
    files = [entry for case in index["cases"] for entry in case["files"].values()]
    assert sorted(entry["file"] for entry in files) == sorted(
        str(path.relative_to(written)) for path in written.rglob("*.*") if path.name != "index.json"
    )
    for entry in files:
        data = (written / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert set(index["faults"]) <= set(CATALOGUE)
    assert {case["kind"] for case in index["cases"]} == {"decode", "encode", "product", "mutant"}


def test_the_same_bytes_again(written, tmp_path):
    vectors.write(tmp_path / "again", [gq.formats["q4_0"]])
    for path in (tmp_path / "again" / "q4_0").iterdir():
        assert path.read_bytes() == (written / "q4_0" / path.name).read_bytes()


def test_a_folder_with_files_is_refused(written, capsys):
    assert main(["vectors", str(written)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_products_hold_for_our_own(written):
    index = json.loads((written / "index.json").read_text())
    for case in index["cases"]:
        if case["kind"] != "product" or case["arithmetic"] != "f32":
            continue
        read = lambda role, case=case: np.fromfile(
            written / case["files"][role]["file"], vectors.DTYPES[role]
        ).reshape(case["files"][role]["shape"])
        q = gq.QuantArray.from_bytes(read("blocks"), case["type"], (case["n"], case["k"]))
        y = read("x") @ q.dequantize().T
        assert (np.abs(y - read("y")) <= read("y_bounds")).all()


def test_every_row_of_every_grid_is_there():
    from ggmlq.check.cover import covers
    from ggmlq.faults.blocks.books import grid_of, row_numbers

    for name in ("iq1_s", "iq2_s", "iq3_s", "iq2_xxs"):
        fmt = gq.formats[name]
        blocks = covers(fmt)[0].raw.view(fmt.dtype)
        codes = fmt.unpack(blocks).codes.astype(float).reshape(-1, fmt.block_size)
        assert len(np.unique(row_numbers(grid_of(fmt), codes))) == len(grid_of(fmt).rows), name


# --- the readers ------------------------------------------------------------------------------------


def code(language):
    return (READERS / f"reader.{language}").read_text()


def built(tmp_path, language, compiler, *options):
    program = shutil.which(compiler)
    if program is None:
        pytest.skip(f"there is no {compiler}")
    source = tmp_path / f"reader.{language}"
    source.write_text(code(language))
    subprocess.run(
        [
            program,
            *options,
            str(source),
            "-o",
            str(tmp_path / "reader"),
            *(["-lm"] if language == "c" else []),
        ],
        check=True,
    )
    return tmp_path / "reader"


def ran(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("language", "compiler", "options"), [
    ("c", "gcc", ("-std=gnu17", "-O1", "-Wall", "-Werror")),
    ("rs", "rustc", ("--edition", "2021", "-C", "opt-level=0")),
])  # fmt: skip
def test_compiled_readers(written, tmp_path, language, compiler, options):
    reader = built(tmp_path, language, compiler, *options)
    done = ran(reader, written / "q4_0", *CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 0 of ") == len(CASES)
    folder = tmp_path / "mutant"
    folder.mkdir()
    for role, source in (
        ("blocks", "mutants.blocks"),
        ("bounds", "mutants.bounds"),
        ("values", "mutant_offset-missing_0.values"),
    ):
        shutil.copy(written / "q4_0" / source, folder / f"case.{role}")
    assert ran(reader, folder, "case").returncode == 1


def test_the_reader_in_javascript(written, tmp_path):
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    (tmp_path / "reader.js").write_text(code("js"))
    done = ran("node", tmp_path / "reader.js", written)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("q4_0") == len(CASES)


def test_readers_are_short():
    for language in ("c", "js", "rs"):
        assert code(language).count("\n") <= 68
