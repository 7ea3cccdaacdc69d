"""The virtual environment behind tools/demo and tools/test: made once, kept while it fits.

Standard library only, for it runs before anything is installed.
"""

import configparser
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv"
PYTHON = FOLDER / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = FOLDER / "ggmlq.txt"  # what was installed: fingerprint, then the extras
LEAST = (3, 11)


def prepare(*extras, optional=()):
    """Return the interpreter of an environment that has ggmlq, editable, with these extras.

    An optional extra that cannot be installed is reported and left out.
    """
    check_version()
    known, *have = STAMP.read_text().split() if STAMP.exists() else [""]
    if known != _fingerprint():
        _make()
        have = []
    for wanted, required in [(extras, True), *(([extra], False) for extra in optional)]:
        if have and {*wanted} <= {*have}:
            continue
        names = sorted({*have, *wanted} - {"core"})
        if _pip_install(names):
            have = ["core", *names]
            STAMP.write_text(" ".join([_fingerprint(), *have]))
        elif required:
            sys.exit("pip failed, its reason stands above; it needs a reachable package index")
        else:
            print(f"could not install {wanted[0]} (the reason stands above); going on", flush=True)
    return str(PYTHON)


def check_version():
    """Leave with words where this Python is too old."""
    if sys.version_info < LEAST:
        sys.exit(
            f"this is Python {sys.version_info[0]}.{sys.version_info[1]}; ggmlq needs {LEAST[0]}.{LEAST[1]} "
            f"or newer, for example: python3.12 {os.path.relpath(sys.argv[0])}"
        )


def _fingerprint():
    """What decides which packages belong in: the two project files and this Python."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("setup.cfg", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:16]


def _make():
    """A new environment, or the same one if it was made by this Python."""
    config = FOLDER / "pyvenv.cfg"
    version = "version = " + ".".join(map(str, sys.version_info[:3]))
    if PYTHON.exists() and config.exists() and version in config.read_text():
        return
    print(f"making a virtual environment in {FOLDER.name} ...", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    if subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=False).returncode:
        sys.exit("python -m venv failed; on Debian and Ubuntu it comes with: apt install python3-venv")


def _pip_install(extras):
    chosen = f"[{','.join(extras)}]" if extras else ""
    print(f"installing ggmlq{chosen} into {FOLDER.name} ...", flush=True)
    pip = [str(PYTHON), "-m", "pip"]
    # Of a native build on a CPU with AMX gcc 12 drops stores that its kernels need (docs/check.md).
    flags = {name: f"{os.environ.get(name, '')} -fno-tree-dse -fno-dse" for name in ("CFLAGS", "CXXFLAGS")}
    env = {**os.environ, **(flags if "llama" in extras else {})}
    options = ["--quiet", "--disable-pip-version-check"]
    if wheels := os.environ.get("GGMLQ_WHEELS"):  # what had to be built is found there the next time
        options += ["--find-links", wheels]
        if needs := [need for extra in extras for need in _built(extra)]:
            build = [*pip, "wheel", *options, "--wheel-dir", wheels, "--no-deps"]
            subprocess.run([*build, *needs], check=False, env=env)  # pip says why not
    install = [*pip, "install", *options, "-e", f"{ROOT}{chosen}"]
    return subprocess.run(install, check=False, env=env).returncode == 0


def browser():
    """Begin to install Chromium where there is none, as root on Debian or Ubuntu; what to wait for, or None.

    Tests open pages in it. Where it cannot be had they say so.
    """
    found = os.environ.get("GGMLQ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found or not shutil.which("apt-get") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    wait = "-o DPkg::Lock::Timeout=60"
    get = f"timeout 300 apt-get -qq {wait}"
    line = f"{get} update && {get} install -y --no-install-recommends chromium fonts-dejavu-core"
    line = f"({line}) >/dev/null"
    return subprocess.Popen(
        ["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip


def _built(extra):
    """What an extra needs that its index has as source only."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needs = setup["options.extras_require"][extra].split("\n")
    return [need for need in needs if need.startswith("llama-cpp-python")]
