"""tools/release: what it refuses, the bill of materials and the sums."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile

import pytest
from scripts import ROOT, load

import ggmlq

release = load("tools", "release")
PACK = b"code"


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a module and a pack."""
    path = tmp_path / "ggmlq-9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as files:
        files.writestr("ggmlq/__init__.py", "")
        files.writestr("ggmlq/cpu/prebuilt/avx2/linear.pack", PACK)
    return path


def package(name, requires=(), **more):
    return {"metadata": {"name": name, "version": "9", "requires_dist": [*requires], **more}}


def test_the_bill_of_materials(wheel):
    """Each package that is installed, what it needs, its licence wherever that stands; digests of packs."""
    mit = {"license_expression": "MIT"}
    installed = {
        "installed": [
            package("ggmlq", ["Numba>=0.61", "numpy>=2.0", 'CuPy_x>=14; extra == "cuda"'], **mit),
            package("numba", ["llvm_lite<1", "numpy>=1"], classifier=["License :: OSI Approved :: BSD"]),
            package("llvm-lite", license="BSD"),
            package("NumPy", license="Copyright\nand more"),
            package("CuPy.x", **mit),
            package("pip"),
        ]
    }  # fmt: skip
    bill = json.loads(json.dumps(release.materials(installed, wheel, 86400)))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch("urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert bill["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
    ours = bill["metadata"]["component"]
    assert ours["purl"] == "pkg:generic/ggmlq@9"  # the name on an index is another project's
    assert ours["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    *packages, pack = bill["components"]
    assert {entry["name"]: entry.get("licenses") for entry in packages} == {
        "cupy-x": [{"expression": "MIT"}],
        "llvm-lite": [{"license": {"name": "BSD"}}],
        "numba": [{"license": {"name": "BSD"}}],
        "numpy": None,
    }
    assert pack["type"] == "file"
    assert pack["hashes"][0]["content"] == hashlib.sha256(PACK).hexdigest()
    edges = {edge["ref"]: edge["dependsOn"] for edge in bill["dependencies"]}
    assert edges[ours["bom-ref"]] == ["pkg:pypi/numba@9", "pkg:pypi/numpy@9"]
    assert edges["pkg:pypi/numba@9"] == ["pkg:pypi/llvm-lite@9", "pkg:pypi/numpy@9"]
    refs = [ours["bom-ref"], *(entry["bom-ref"] for entry in packages)]
    assert sorted(edges) == sorted(refs)
    assert len({*refs}) == len(refs)


def test_the_sums_are_what_sha256sum_checks(tmp_path):
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(release.sums(tmp_path))
    assert [line.split("  ")[1] for line in release.sums(tmp_path).splitlines()] == ["a.tar.gz", "b.whl"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)


@pytest.fixture
def tree(tmp_path):
    """A checkout that could be released."""
    root = tmp_path / "tree"
    (root / "ggmlq").mkdir(parents=True)
    (root / "ggmlq/__init__.py").write_text('"""Head."""\n__version__ = "9.1"\n')
    (root / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 9.1\n")
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 9.1 – today\n\n- New.\n\n## 9.0\n")
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


def test_a_tree_that_can_be_released(tree, tmp_path):
    assert release.version_of(tree) == "9.1"
    assert release.refusals(tree, tmp_path / "new", "9.1") == []
    assert release.notes(tree, "9.1") == "## 9.1 – today\n\n- New.\n"


def test_each_refusal_says_the_way_out(tree, tmp_path):
    (tree / "CITATION.cff").write_text("version: 9.0\n")
    changed, cited = release.refusals(tree, tmp_path / "new", "9.1")
    assert "1 files differ from HEAD (CITATION.cff)" in changed
    assert "says version 9.1, CITATION.cff 9.0; make them equal" in cited
    assert "no section '## 9.2'" in release.refusals(tree, tmp_path / "new", "9.2")[-1]
    for out in (tree, tree / "CITATION.cff"):
        assert "no empty folder" in release.refusals(tree, out, "9.1")[-1]
    (tmp_path / "bare").mkdir()
    (tree / ".git").rename(tmp_path / "bare" / ".git")
    assert "git answers" in release.refusals(tree, tmp_path / "new", "9.1")[0]


def test_a_dry_run_makes_nothing(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "tools/release", "--dry-run", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not out.exists()
    assert done.stdout.count(" install ") == 7
    assert "twine check --strict" in done.stdout
    assert done.returncode == 0 or done.stderr.startswith("a release would be refused:\n  ")
    assert release.version_of(ROOT) == ggmlq.__version__


def test_a_failed_command_ends_it(tmp_path):
    made = release.Release("9.1", tmp_path / "out", tmp_path, False)
    with pytest.raises(SystemExit, match=r"(?s)No module named nobody.*no release: twine ended with 1"):
        made.call("twine", sys.executable, "-m", "nobody")


@pytest.mark.slow
def test_a_release_of_this_tree(tmp_path):
    """All of it, a quarter of an hour: the files, what they say they are, and the list of what is in them."""
    if os.environ.get("GGMLQ_PLAIN") != "all":
        pytest.skip("a whole release: only with --plain")
    tree, out, version = tmp_path / "tree", tmp_path / "out", ggmlq.__version__
    subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
    command = [sys.executable, tree / "tools" / "release", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("all products are right") == 3
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out, check=True)
    pure, linux = sorted(out.glob("*.whl"), key=lambda path: path.stat().st_size)
    assert pure.name == f"ggmlq-{version}-py3-none-any.whl"
    assert "manylinux" in linux.name
    bill = json.loads((out / f"ggmlq-{version}.cdx.json").read_text())
    names = {entry["name"] for entry in bill["components"]}
    assert {"numpy", "numba", "llvmlite", "tqdm"} <= names
    with zipfile.ZipFile(pure) as files:
        assert not any(name.endswith(".pack") for name in files.namelist())
    with zipfile.ZipFile(linux) as files:
        assert {name for name in files.namelist() if name.endswith(".pack")} <= names
