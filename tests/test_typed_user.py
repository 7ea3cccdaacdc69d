"""Type checkers over a user's small project: what they say of results is what comes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = '''
"""A user's program."""

from collections.abc import Iterator
from typing import Any, TypeAlias, assert_type

import ggmlq as gq
import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]


def layer(path: str, x: F32, wide: F64) -> F32:
    with gq.open(path) as f:
        q = f["blk.0.ffn_up.weight"]
    assert_type(q, gq.QuantArray)
    assert_type(q[1:, 32:64].reshape(-1, 32), gq.QuantArray)
    assert_type(gq.concatenate([q, q]), gq.QuantArray)
    assert_type(gq.stack([q, q], axis=1), gq.QuantArray)
    assert_type(gq.equal(q, q), bool)
    assert_type(gq.formats.q4_K, gq.Format)
    assert_type(gq.linear(x, q), F32)
    assert_type(gq.linear(wide, q), F32)
    assert_type(gq.linear(x, q, dtype=np.float16), NDArray[np.float16])
    assert_type(gq.linear(x, q, out=wide), F64)
    assert_type(x @ q.T, F32)
    assert_type(wide @ q.T, F32)
    assert_type(q.dequantize(), F32)
    assert_type(q.dequantize(np.float64), F64)
    assert_type(gq.dequantize(q, np.float16), NDArray[np.float16])
    assert_type(gq.dequantize(q, out=wide), F64)
    assert_type(gq.nmse(x, wide), float)
    assert_type(gq.nmse(x, wide, axis=-1), F64)
    assert_type((q.size, q.shape, q.dtype), tuple[int, tuple[int, ...], np.dtype[np.float32]])
    return x @ q.T


def scaled(x: F32) -> F32:
    s = gq.quantize_scaled(x, "e4m3", (1, 128))
    assert_type(s, gq.ScaledArray)
    assert_type(gq.concatenate([s, s]), gq.ScaledArray)
    assert_type(gq.scaled_linear(x, s), F32)
    assert_type(gq.scaled_linear(s, s, dtype=np.float64), F64)
    assert_type(gq.scaled_linear(x, s, requantize=("int8", 0.1)), gq.ScaledArray)
    assert_type(s.dequantize(np.float64), F64)
    return x @ s.T


def written(path: str) -> Iterator[int]:
    m = gq.model.load(path)
    assert_type(m, gq.model.Model)
    assert_type(m.tokenizer, gq.model.Tokenizer)
    gq.torch.load_(None, path).left
    return m.generate([1], 3)


def on_a_gpu(x: Any, q: gq.QuantArray) -> Any:
    return gq.linear(x, q)
'''
WRONG = """
import ggmlq as gq

q = gq.quantize([1.0], "f32")
gq.linear([1.0], "no weights")
gq.nmse([1.0], [2.0]).shape
gq.concatenate([1.0])
q.reshaped(1)
gq.no_such_thing
gq.model.lode("x")
gq.torch.load("x")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "program.py").write_text(PROJECT)
    (folder / "wrong.py").write_text(WRONG)
    return folder


@pytest.mark.slow
def test_mypy_knows_what_comes(project):
    pytest.importorskip("mypy", reason="mypy is not installed (extra lint)")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--python-executable",
        sys.executable,
    ]
    quiet = ["--follow-imports=silent", f"--cache-dir={project / 'cache'}", "program.py", "wrong.py"]
    env = {"MYPYPATH": str(ROOT), "PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *quiet], cwd=project, env=env, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in said if not line.startswith("wrong.py")] == []
    assert sorted({int(line.split(":")[1]) for line in said}) == [*range(5, 12)], done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_knows_what_comes(project):
    if importlib.util.find_spec("pyright") is None or shutil.which("node") is None:
        pytest.skip("pyright needs its package and node, and they are not both here: pip install pyright")
    settings = {
        "extraPaths": [str(ROOT)],
        "include": ["program.py", "wrong.py"],
        "typeCheckingMode": "standard",
    }
    (project / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright could not be started: {(done.stderr or done.stdout).strip()[-200:]}")
    said = [found for found in json.loads(done.stdout)["generalDiagnostics"] if found["severity"] == "error"]
    assert [found for found in said if not found["file"].endswith("wrong.py")] == []
    assert {found["range"]["start"]["line"] + 1 for found in said} >= {*range(5, 12)}
