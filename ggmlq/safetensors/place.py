"""Finds the files of a safetensors model: one file, an index and the files that it names, or a folder.

An index maps tensors to names of files, and may be hostile: only files beside it, or below it, are opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..base.text import short
from ..errors import SafetensorsError, SafetensorsOSError
from . import jsons

INDEX = ".safetensors.index.json"
ENDING = ".safetensors"
OLD = (".bin", ".pt", ".pth", ".ckpt")
MOST_FILES = 10_000
SHOWN = 3


class Place(NamedTuple):
    """The files of a model, and their index."""

    folder: str
    files: tuple[str, ...]  # paths, in order
    weights: Mapping[str, str] | None  # tensor -> path, where there is an index
    absent: tuple[str, ...]  # files that the index names and that are not there


def find(path: str) -> Place:
    """The files behind a path; SafetensorsError where there are none, or more than one model."""
    if os.path.isdir(path):
        return _folder(path)
    if path.endswith(".json"):
        return _indexed(path)
    return Place(os.path.dirname(path) or ".", (path,), None, ())


def in_folder(path: str) -> bool:
    """True for a folder with a model of this kind, or with an old one, whose error names the way out."""
    try:
        return any(name.endswith((ENDING, INDEX, *OLD)) for name in os.listdir(path))
    except OSError:
        return False


def _folder(path: str) -> Place:
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise SafetensorsError(
            f"{path}: cannot be listed: {error.strerror}; check its permissions"
        ) from error
    indexes = [name for name in names if name.endswith(INDEX)]
    if "model" + INDEX in indexes:
        indexes = ["model" + INDEX]
    if len(indexes) > 1:
        raise SafetensorsError(
            f"{path}: it has {len(indexes)} indexes, {_listed(indexes)}; a model has one; name the one that "
            "is meant"
        )
    if indexes:
        return _indexed(os.path.join(path, indexes[0]))
    files = [name for name in names if name.endswith(ENDING)]
    parts = [name for name in files if re.fullmatch(r".*-\d+-of-\d+\.safetensors", name)]
    files = next(
        ([name] for name in ("model" + ENDING, "consolidated" + ENDING) if name in files), parts or files
    )
    if not files:
        raise SafetensorsOSError(f"{path}: is {_other(names)}")
    if len(files) > 1 and not parts:
        raise SafetensorsError(
            f"{path}: it has {len(files)} safetensors files, {_listed(files)}, and no index that joins them; "
            "name the one that is meant"
        )
    return Place(path, tuple(os.path.join(path, name) for name in files), None, ())


def _other(names: list[str]) -> str:
    """The contents of a folder without safetensors, and the way out, in words."""
    models = [name for name in names if name.endswith(".gguf")]
    if models:
        return (
            f"a folder with GGUF files and no safetensors; name the file that is meant, such as {models[0]}"
        )
    old = [name for name in names if name.endswith(OLD)]
    if old:
        return (
            f"a folder without safetensors; it has {_listed(old)}, checkpoints of PyTorch, which run code "
            "when they are read; save them as safetensors (safetensors.torch.save_file)"
        )
    return "a folder without safetensors and GGUF files; name the folder of the model"


def _indexed(path: str) -> Place:
    weights = names_in(path, jsons.load_object(path))
    folder = os.path.dirname(path) or "."
    names = dict.fromkeys(weights.values())
    files = {name: os.path.join(folder, name) for name in names}
    absent = tuple(file for file in files.values() if not os.path.exists(file))
    there = tuple(sorted(file for file in files.values() if file not in absent))
    if not there:
        raise SafetensorsError(
            f"{path}: of the {len(files)} files that it names, {_listed(list(files))}, none is there; fetch "
            "them into its folder"
        )
    return Place(folder, there, {tensor: files[name] for tensor, name in weights.items()}, absent)


def names_in(path: str, index: Mapping[str, Any]) -> dict[str, str]:
    """The file of each tensor, from the index at this path: names of files beside it or below."""
    weights = index.get("weight_map")
    if not isinstance(weights, dict):
        raise SafetensorsError(
            f"{path}: it has no weight_map, which says which file has which tensor; this is no index of "
            "safetensors, or a damaged one"
        )
    names = {name for name in weights.values() if _is_inside(path, name)}
    if len(names) > MOST_FILES:
        raise SafetensorsError(f"{path}: it names {len(names)} files, {MOST_FILES} are opened; it is damaged")
    return weights


def _is_inside(path: str, name: object) -> bool:
    parts = re.split(r"[/\\]", name) if isinstance(name, str) else []
    good = isinstance(name, str) and name.isprintable() and name.endswith(ENDING) and len(name) < 1024
    if not good or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise SafetensorsError(
            f"{path}: it names the file {short(name)}; files of a model lie beside its index, and end in "
            f"{ENDING}; the index is damaged, or made to reach other files"
        )
    return True


def _listed(names: list[str]) -> str:
    return ", ".join(map(short, names[:SHOWN])) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
