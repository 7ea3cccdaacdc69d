"""A check of a library out of an archive leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ggmlq.errors import GGMLQError
from ggmlq.llama.files import locate

pytestmark = pytest.mark.llama


def test_a_check_of_an_archive(tmp_path):
    try:
        build = locate()
    except GGMLQError as error:
        pytest.skip(str(error))
    archive = tmp_path / "llama-b1-bin-x64.tar"
    with tarfile.open(archive, "w") as file:
        for path in sorted(build.folder.iterdir()):
            if path.name.startswith(("libggml", "ggml")):
                file.add(path, f"build/bin/{path.name}")
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]; from ggmlq.cli import main; "
        "sys.exit(main(['check', '--lib', sys.argv[2], '--ops', 'SCALE', '--threads', '1']))"
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    words = [sys.executable, "-c", code, str(folder), str(archive)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(folder) in done.stdout
    assert not list(Path(folder).glob("ggmlq-libraries-*"))
