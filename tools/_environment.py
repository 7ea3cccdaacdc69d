"""The virtual environment of tools/demo, tools/docs and tools/test: made once, used while it fits.

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
    stamp, *installed = STAMP.read_text().split() if STAMP.exists() else [""]
    if stamp != _fingerprint():
        _make()
        installed = []
    for group, required in [(extras, True), *(([extra], False) for extra in optional)]:
        if installed and {*group} <= {*installed}:
            continue
        names = sorted({*installed, *group} - {"core"})
        if _pip_install(names):
            installed = ["core", *names]
            STAMP.write_text(" ".join([_fingerprint(), *installed]))
        elif required:
            sys.exit("pip failed, its reason stands above; it needs a reachable package index")
        else:
            print(f"could not install {group[0]} (the reason stands above); going on", flush=True)
    return str(PYTHON)


def check_version():
    """Exit with a message where this Python is too old."""
    if sys.version_info < LEAST:
        sys.exit(
            f"this is Python {sys.version_info[0]}.{sys.version_info[1]}; ggmlq needs {LEAST[0]}.{LEAST[1]} "
            f"or newer, for example: python3.12 {os.path.relpath(sys.argv[0])}"
        )


def _fingerprint():
    """A digest of all that decides which packages belong in: the two project files and this Python."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("setup.cfg", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:16]


def _make():
    """Make a new environment, unless there is one of this Python."""
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
    # gcc 12 drops stores that kernels need, in a native build on a CPU with AMX (docs/check.md).
    flags = {name: f"{os.environ.get(name, '')} -fno-tree-dse -fno-dse" for name in ("CFLAGS", "CXXFLAGS")}
    env = {**os.environ, **(flags if "llama" in extras else {})}
    options = ["--quiet", "--disable-pip-version-check"]
    if wheels := os.environ.get("GGMLQ_WHEELS"):  # wheels that were built are there the next time
        options += ["--find-links", wheels]
        if needs := [need for extra in extras for need in _source_only(extra)]:
            build = [*pip, "wheel", *options, "--wheel-dir", wheels, "--no-deps"]
            subprocess.run([*build, *needs], check=False, env=env)  # pip says why not
    install = [*pip, "install", *options, "-e", f"{ROOT}{chosen}"]
    return subprocess.run(install, check=False, env=env).returncode == 0


def browser():
    """Begin to install Chromium where there is none, as root on Debian or Ubuntu; the process, or None.

    Tests open pages in it. Where it cannot be installed they say so.
    """
    program = os.environ.get("GGMLQ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program or not shutil.which("apt-get") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    wait = "-o DPkg::Lock::Timeout=60"
    get = f"timeout 300 apt-get -qq {wait}"
    line = f"{get} update && {get} install -y --no-install-recommends chromium fonts-dejavu-core"
    line = f"({line}) >/dev/null"
    return subprocess.Popen(
        ["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip


def _source_only(extra):
    """The packages of an extra that its index has as source only."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needs = setup["options.extras_require"][extra].split("\n")
    return [need for need in needs if need.startswith("llama-cpp-python")]
