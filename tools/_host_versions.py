"""Hosts of torch at several versions, each in an environment of its own: tools/test --hosts --versions.

Every minor version of transformers from 5.0 to the newest on the index, and the last three of diffusers and
PEFT. An environment sees the packages of .venv behind its own, so that only the host and what it wants
otherwise are installed, about 100 MB that are removed after. A version takes half a minute on an idle core.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import _environment

TRANSFORMERS = ("test_transformers.py", "test_from_gguf.py", "test_tokenizer_files.py")
# The tests of each host, the lowest version of it, and how many minor versions count, the newest first.
HOSTS = {
    "transformers": (TRANSFORMERS, (5, 0), None),
    "diffusers": (("test_diffusers.py",), (0, 0), 3),
    "peft": (("test_transformers.py",), (0, 0), 3),
}
KEEPS = (
    "from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS\n"
    "print(', '.join(sorted(GGUF_ARCHS)))"
)


def run(python):
    """Try all versions; rows of a table as they come, and the exit status."""
    failed = []
    print("| host | stays packed by its own loader | tests |\n|---|---|---|", flush=True)
    for package, (tests, least, count) in HOSTS.items():
        for version in minors(python, package, least, count):
            row = tried(python, package, version, tests)
            print(f"| {package} {version} | {row[0]} | {row[1]} |", flush=True)
            failed += [] if row[2] else [f"{package} {version}"]
    print(f"versions: failed {', '.join(failed)}" if failed else "versions: ok", flush=True)
    return 1 if failed else 0


def minors(python, package, least, count):
    """The newest release of each minor version that the index has."""
    command = [python, "-m", "pip", "index", "versions", package]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = re.search(r"Available versions: (.*)", said.stdout)
    if listed is None:
        sys.exit(f"pip names no versions of {package}: {said.stderr[-300:]}; the index has to be reachable")
    newest = {}
    for version in listed[1].split(", "):  # the newest is first
        if re.fullmatch(r"\d+\.\d+(\.\d+)*", version):
            newest.setdefault(tuple(int(part) for part in version.split(".")[:2]), version)
    return [newest[minor] for minor in sorted(newest, reverse=True) if minor >= least][:count]


def tried(python, package, version, tests):
    """Architectures that stay packed, the verdict of the tests, and True where none failed."""
    with tempfile.TemporaryDirectory(prefix=f"ggmlq-{package}-{version}-") as folder:
        inner = environment(python, Path(folder))
        install = [
            inner,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            f"{package}=={version}",
        ]
        installed = subprocess.run(install, capture_output=True, text=True, check=False)
        if installed.returncode:
            return "", f"pip: {installed.stderr.strip().splitlines()[-1][:200]}", False
        keeps = subprocess.run([inner, "-c", KEEPS], capture_output=True, text=True, check=False)
        files = [str(_environment.ROOT / "tests" / "hosts" / name) for name in tests]
        command = [inner, "-m", "pytest", "-q", "-n", "0", "-m", "hosts", "-p", "no:cacheprovider", *files]
        done = subprocess.run(command, capture_output=True, text=True, cwd=_environment.ROOT, check=False)
        lines = done.stdout.strip().splitlines()
        wrong = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        verdict = "; ".join([*lines[-1:], *wrong]).replace("|", "/")
        own = keeps.stdout.strip() or "none"
        return own if package == "transformers" else "", verdict, done.returncode == 0


def environment(python, folder):
    """The interpreter of a new environment that sees the packages of another behind its own."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inner = folder / _environment.PYTHON.relative_to(_environment.FOLDER)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    outer, own = (
        subprocess.run([str(each), "-c", where], capture_output=True, text=True, check=True).stdout.strip()
        for each in (python, inner)
    )
    (Path(own) / "behind.pth").write_text(f"import site; site.addsitedir({outer!r})\n")
    return str(inner)
