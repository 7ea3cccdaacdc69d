"""Tables of tile sizes of Triton kernels, as serving frameworks exchange them: read and checked, not obeyed.

``w8a8_block_fp8_matmul`` takes the fastest kernel whatever they say. A table is a JSON file:

    N=24576,K=1536,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json
    {"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
           "num_warps": 4, "num_stages": 3}, "64": {…}, …}

Its keys are numbers of rows M. The entry nearest to M holds; of two as near, the one that comes first in
the file. Tables are looked for in ``$GGMLQ_CONFIGS_DIR``, in ``configs`` within the cache folder
(``GGMLQ_CACHE_DIR``) and beside this file. A table that says nonsense is an error that names it.

BLOCK_SIZE_K divides block_size[1], not the other way round as one may read: a kernel of tiles takes one
pair of scales a step of K, so a step must lie within a block.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..base.devices import cuda_device, cuda_driver
from ..base.progress import say_once
from ..errors import ConfigError, DeviceError, MissingDependencyError
from ..store.disk import root
from ..store.private import Refused, below
from .operands import length

Config = dict[str, int]
Table = dict[int, Config]

SIZES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
COUNTS = {"GROUP_SIZE_M": 1 << 20, "num_warps": 32, "num_stages": 32}  # and their largest values
HOME = "configs"  # within the cache
LEAST, MOST = 16, 512  # elements of a tile along an axis
OTHERS = ("rung", "waves_per_eu", "kpack", "matrix_instr_nonkdim")  # in files of other programs: ignored
DEFAULTS = {"GROUP_SIZE_M": 32, "num_warps": 4, "num_stages": 3}

_read: dict[Path, tuple[tuple[int, int], Table]] = {}


def get_w8a8_block_fp8_configs(
    N: int, K: int, block_n: int, block_k: int, *, device: str | None = None
) -> Table | None:
    """The table of configurations for weights [N, K]: M → configuration; None where there is none.

    ``device`` is ``"cpu"`` or ``"cuda"``, by default a GPU if there is one.
    """
    request = "get_w8a8_block_fp8_configs(N, K, block_n, block_k)"
    n, k, block_n, block_k = (
        length(request, name, value)
        for name, value in (("N", N), ("K", K), ("block_n", block_n), ("block_k", block_k))
    )
    name = file_name(n, k, (block_n, block_k), device_name(device))
    for folder in folders():
        table = _table(folder / name, (block_n, block_k))
        if table is not None:
            return table
    return None


def chosen(m: int, n: int, k: int, block: tuple[int, int], device: str) -> Config | None:
    """The table's configuration for m rows; None where there is no table."""
    table = None if not n or not k else get_w8a8_block_fp8_configs(n, k, *block, device=device)
    return nearest(table, m) if table else None


def nearest(table: Table, m: int) -> Config:
    """The entry for the number of rows that is nearest to m; the first of two in the order of the file."""
    return table[min(table, key=lambda rows: abs(rows - m))]


def default(block: tuple[int, int]) -> Config:
    """The configuration that the documents take without a table."""
    return {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": block[0], "BLOCK_SIZE_K": block[1], **DEFAULTS}


def checked(request: str, config: Any, block: tuple[int, int]) -> Config:
    """The configuration with all settings, checked: sizes in range, and steps of K within a block."""
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"{request}: the configuration is a {type(config).__name__}; it maps names to integers; "
            f"pass {default(block)} or the like"
        )
    known = (*SIZES, *COUNTS)
    for name in config:
        if name not in known and name not in OTHERS:
            near = difflib.get_close_matches(str(name), known, 1)
            way = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(
                f"{request}: {name!r} in {dict(config)} is no setting of a configuration; {way}"
            )
    if missing := [name for name in SIZES if name not in config]:
        raise ConfigError(
            f"{request}: {dict(config)} lacks {', '.join(missing)}; a configuration has all three sizes of a "
            f"tile; {default(block)} is a whole one"
        )
    whole = DEFAULTS | {name: config[name] for name in known if name in config}
    for name in known:
        whole[name] = _checked_number(request, name, whole[name])
    if block[1] % whole["BLOCK_SIZE_K"]:
        raise ConfigError(
            f"{request}: BLOCK_SIZE_K={whole['BLOCK_SIZE_K']} with block_size[1]={block[1]}; a step of K "
            "takes "
            "one pair of scales, so BLOCK_SIZE_K divides block_size[1]; pass a power of two that divides "
            f"{block[1]}"
        )
    return {name: whole[name] for name in known}


def _checked_number(request: str, name: str, value: Any) -> int:
    """A size or a count in its range."""
    number = int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else 0
    if name in SIZES and not (LEAST <= number <= MOST and number & (number - 1) == 0):
        raise ConfigError(
            f"{request}: {name}={value!r}; sizes of tiles are powers of two of {LEAST} … {MOST}; pass 64 "
            "or 128"
        )
    if name in COUNTS and not 1 <= number <= COUNTS[name]:
        raise ConfigError(
            f"{request}: {name}={value!r}; it is an integer of 1 … {COUNTS[name]}; pass {DEFAULTS[name]}"
        )
    return number


def file_name(n: int, k: int, block: tuple[int, int], device: str) -> str:
    """The name of the file of a table for a shape on a device."""
    return f"N={n},K={k},device_name={device},dtype=fp8_w8a8,block_shape=[{block[0]}, {block[1]}].json"


def device_name(device: str | None) -> str:
    """The name of a device in tables: that of its maker, without spaces."""
    device = here() if device is None else device
    return _named(f"cuda:{cuda_device().current()}" if device == "cuda" else device)


@cache
def _named(device: str) -> str:
    if device == "cpu":
        name = str(importlib.import_module("ggmlq.cpu.choice").here().name)
    else:
        name = cuda_driver().card(cuda_device().number(device)).name
    return re.sub(r"[^\w.+-]+", "_", name).strip("_")


def here() -> str:
    """``"cuda"`` where there is a GPU, or ``"cpu"``."""
    try:
        cuda_device().cupy()
    except (MissingDependencyError, DeviceError):
        return "cpu"
    return "cuda"


def own_folder(check: bool = False) -> Path | None:
    """The user's folder of tables; None if it would be in the cache and that is off.

    ``check``: raise ``Refused`` if other users could write to it or to the cache above it.
    """
    if setting := os.environ.get("GGMLQ_CONFIGS_DIR"):
        return Path(setting).expanduser()
    try:
        place = root()
    except Refused:
        return None
    if place is not None and check:
        with below(place, HOME):
            pass
    return place / HOME if place else None


def folders() -> list[Path]:
    """The folders in which tables are looked for, the user's first."""
    users = own_folder()
    return [*([users] if users else []), Path(__file__).parent]


def _table(path: Path, block: tuple[int, int]) -> Table | None:
    """The table of a file, read again when it has changed; None where there is no file."""
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return None
    stamp = facts.st_mtime_ns, facts.st_size
    if path not in _read or _read[path][0] != stamp:
        if not stat.S_ISREG(facts.st_mode) or not _is_of_user(path):
            return None
        _read[path] = stamp, parsed(path, block)
    return _read[path][1]


def _is_of_user(path: Path) -> bool:
    """False for a table in the cache where others can write to it."""
    try:
        return path.parent != own_folder() or own_folder(check=True) is not None
    except Refused as error:
        say_once(f"{error}; the table {path.name} there is not read")
        return False


def parsed(path: Path, block: tuple[int, int]) -> Table:
    """The table in a file, every entry checked."""
    way = "repair it, or remove it"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: it cannot be read ({error}); a table is a JSON object; {way}") from None
    if not isinstance(content, dict) or not content:
        raise ConfigError(
            f"{path}: it holds {str(content)[:40]}; a table maps numbers of rows to entries; {way}"
        )
    table: Table = {}
    for key, entry in content.items():
        if not (key.isascii() and key.isdecimal() and int(key[:20]) > 0) or int(key[:20]) in table:
            raise ConfigError(f"{path}: the key {key[:40]!r}; keys are numbers of rows, each once; {way}")
        table[int(key[:20])] = checked(f"{path}, M={key}", entry, block)
    return table
