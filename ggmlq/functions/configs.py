"""Tables of tile sizes of Triton kernels, as serving frameworks exchange them: read, and obeyed by nothing.

A table is a JSON file of ``$GGMLQ_CONFIGS_DIR``, from numbers of rows to tile sizes:

    N=24576,K=1536,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json
    {"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
           "num_warps": 4, "num_stages": 3}, "64": {…}, …}

For M rows the entry with the nearest number holds; of two as near, the one that comes first in the file.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..base.devices import cuda_device, cuda_driver
from ..errors import ConfigError, DeviceError, MissingDependencyError
from .operands import length

Config = dict[str, Any]


def get_w8a8_block_fp8_configs(
    N: int, K: int, block_n: int, block_k: int, *, device: str | None = None
) -> dict[int, Config] | None:
    """The table of configurations for weights [N, K]: M → configuration; None where there is none.

    ``device`` is ``"cpu"`` or ``"cuda"``, by default a GPU if there is one. ``w8a8_block_fp8_matmul`` takes
    the fastest kernel whatever a table says.
    """
    request = "get_w8a8_block_fp8_configs(N, K, block_n, block_k)"
    n, k, block_n, block_k = (
        length(request, name, value)
        for name, value in (("N", N), ("K", K), ("block_n", block_n), ("block_k", block_k))
    )
    folder = os.environ.get("GGMLQ_CONFIGS_DIR")
    path = Path(folder or ".").expanduser() / file_name(n, k, (block_n, block_k), device)
    if not folder or not path.is_file():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return {int(rows): {**config} for rows, config in {**table}.items()}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: {error}; a table maps numbers of rows to configurations; repair it, or remove it"
        ) from None


def nearest(table: Mapping[int, Config], m: int) -> Config:
    """The configuration for the number of rows that is nearest to m."""
    return table[min(table, key=lambda rows: abs(rows - m))]


def file_name(n: int, k: int, block: tuple[int, int], device: str | None) -> str:
    """The name of the file of a table for a shape on a device, whose name has no spaces there."""
    if device is None:
        try:
            cuda_device().cupy()
            device = "cuda"
        except (MissingDependencyError, DeviceError):
            device = "cpu"
    here = _named(f"cuda:{cuda_device().current()}" if device == "cuda" else device)
    return f"N={n},K={k},device_name={here},dtype=fp8_w8a8,block_shape=[{block[0]}, {block[1]}].json"


@cache
def _named(device: str) -> str:
    if device == "cpu":
        name = str(importlib.import_module("ggmlq.cpu.choice").here().name)
    else:
        name = cuda_driver().card(cuda_device().number(device)).name
    return re.sub(r"[^\w.+-]+", "_", name).strip("_")
