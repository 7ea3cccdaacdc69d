"""The wheel in a fresh environment: no numba-cuda, libggml, torch or matplotlib, other versions of Python.

One more version than this suite's own, the newest that is found; with GGMLQ_PLAIN=all
(tools/test --plain) every one. pip brings NumPy, Numba and tqdm, from its cache after the first time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
KNOWN = ("3.14", "3.13", "3.12", "3.11")  # newest first
ALL = os.environ.get("GGMLQ_PLAIN") == "all"
ABSENT = ("numba_cuda", "cupy", "llama_cpp", "gguf", "torch", "matplotlib", "ml_dtypes")

README = """
import doctest, re, sys
text = open(sys.argv[1], encoding="utf-8").read()
blocks = re.findall(r"```python\\n(.*?)```", text, flags=re.DOTALL)
test = doctest.DocTestParser().get_doctest("\\n".join(blocks), {}, "README.md", "README.md", 0)
sys.exit(doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed)
"""
FIRST = """
import importlib.util, os, sys, tempfile
import numpy as np
import ggmlq as gq
assert "site-packages" in gq.__file__, gq.__file__
assert not [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
path = os.path.join(tempfile.mkdtemp(), "first.gguf")
gq.save(path, {"w": gq.quantize(np.eye(4, 256, dtype=np.float32), "q4_K")})
print(gq.open(path), np.ones((1, 256), np.float32) @ gq.open(path)["w"].T)
"""
HELPS = """
import contextlib, sys
from ggmlq.cli import main
for command in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
"""


def interpreters():
    """Version and path of each Python that ggmlq runs on and that is found here."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path(os.environ.get("HOME", "/")) / ".pyenv") / "versions"
    for version in KNOWN:
        for path in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))):
            if path and version_of(path) == version:
                yield version, str(path)
                break


def version_of(path):
    """Of an interpreter that can make environments; a shim of pyenv's may stand for none."""
    code = "import venv, ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([path, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


FOUND = dict(interpreters())
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


def chosen(version):
    """Which are tried in this run."""
    return ALL or version == next((found for found in FOUND if found != OWN), OWN)


@pytest.fixture(scope="module", params=KNOWN)
def plain(request, wheel_file, tmp_path_factory):
    """``plain(*arguments)`` runs the environment's Python, away from this tree."""
    version = request.param
    if version not in FOUND:
        pytest.skip(f"a plain install on Python {version}: none is found")
    if not chosen(version):
        pytest.skip(f"a plain install on Python {version}: only with --plain")
    folder = tmp_path_factory.mktemp("plain")
    subprocess.run([FOUND[version], "-m", "venv", "--without-pip", folder / "env"], check=True)
    scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    # Only modules that are imported are compiled, and pip is this environment's.
    install = [sys.executable, "-m", "pip", "--python", scripts / "python", "install", "-q", "--no-compile"]
    install += [wheel_file]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(
            f"a plain install on Python {version}: pip has no packages for it ({done.stderr[-200:]!r})"
        )

    def run(program, *arguments):
        env = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GGMLQ_LIBGGML")
        }
        done = subprocess.run(
            [scripts / program, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "Warning" not in done.stderr
        return done.stdout

    return run


STRICT = ("-W", "error::DeprecationWarning")


@pytest.mark.slow
def test_open_multiply_print(plain):
    assert "first.gguf" in plain("python", *STRICT, "-c", FIRST, *ABSENT)


def test_the_readme(plain):
    plain("python", *STRICT, "-c", README, str(ROOT / "README.md"))


def test_the_command(plain):
    """Its help and that of each of its commands, as the command itself lists them."""
    said = plain("ggmlq", "--help")
    commands = re.findall(r"^  ([a-z][a-z-]*)  ", said, flags=re.MULTILINE)
    assert {"info", "doctor", "quantize"} <= {*commands}
    helps = plain("python", *STRICT, "-c", HELPS, *commands)
    for command in commands:
        assert f"ggmlq {command}" in helps
    assert "no problems found" in plain("ggmlq", "doctor")
