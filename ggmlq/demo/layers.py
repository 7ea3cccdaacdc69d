"""The layers of `ggmlq demo`: a random one in several types, or one of each type and shape of a model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..arrays.array import QuantArray
from ..errors import ConfigError, GGUFError
from ..gguf.metadata import missing
from ..ops import quantize
from ..safetensors import either as files

FORMATS = ("f16", "q8_0", "q6_K", "q5_K", "q4_K", "q4_0", "mxfp4", "q2_K")
NAME = "a layer in several types"  # of the file that is written; another's file is never replaced
MOST = 1 << 26  # numbers in one array: half a GiB in float64, in which the check multiplies
KINDS = 12  # of layers of a model, the largest first

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Layer:
    """Weights [N, K] to be multiplied with. ``original``: the floats that they were made of, where known."""

    name: str
    q: QuantArray
    original: NDArray[np.float32] | None = None
    note: str = ""  # in what way it is not the whole tensor


def random_layer(rows: int, columns: int, path: Path, tell: Tell) -> tuple[list[Layer], float]:
    """A random layer in each of ``FORMATS``, saved and opened; also the seconds that opening took."""
    check_own(path)
    w = np.random.default_rng(7).normal(0, 0.02, (rows, columns)).astype(np.float32)
    layers = {}
    for name in FORMATS:
        tell(f"{name}: encoding")
        layers[name] = quantize(w, name)
    gguf.save(path, layers, {"general.name": NAME})
    start = time.perf_counter()
    file = gguf.open(path)
    opened = time.perf_counter() - start
    return [Layer(name, file[name], w) for name in FORMATS], opened


def check_own(path: Path) -> None:
    """Raise an error if the file exists and is not from an earlier run of the demo."""
    if not path.exists():
        return
    with contextlib.suppress(GGUFError), gguf.open(path) as file:
        if file.metadata.get("general.name") == NAME:
            return
    raise GGUFError(f"--save {path}: a file is there that no demo made; name another, this one would be lost")


def model_layers(path: str, globs: Sequence[str], tokens: int) -> list[Layer]:
    """The matrices of a model that fit the names, or without names one of each type and shape."""
    model: Any = files.open(path)
    matrices = {name: x for name in model if (x := _matrix(model, name)) is not None}
    if globs:
        names = [name for name in matrices if any(fnmatchcase(name, glob) for glob in globs)]
        if not names:
            missing(
                f"--tensor {globs[0]} of {path}", globs[0].strip("*"), matrices, "`ggmlq info` lists them"
            )
    else:
        names = list(_one_of_each(matrices))
    if not names:
        raise ConfigError(
            f"{path}: none of its {len(model)} tensors is a matrix; the demo multiplies with matrices; "
            "name a model, or leave MODEL out for a random layer"
        )
    return [_cut(name, matrices[name], tokens) for name in names]


def _matrix(model: Mapping[str, Any], name: str) -> QuantArray | None:
    """A tensor of two axes, or of the first expert; None for others, and for those that are not there."""
    if name in model.missing:  # type: ignore[attr-defined]
        return None
    x = model[name]
    if not isinstance(x, QuantArray) or x.ndim not in (2, 3) or not x.size or x.format.dtype.kind == "i":
        return None
    return x if x.ndim == 2 else x[0]


def _one_of_each(matrices: Mapping[str, QuantArray]) -> Iterable[str]:
    kinds: dict[Any, str] = {}
    for name, q in matrices.items():
        kinds.setdefault((q.format, q.shape), name)
    largest = sorted(kinds.values(), key=lambda name: -matrices[name].nbytes)[:KINDS]
    return [name for name in kinds.values() if name in largest]


def _cut(name: str, q: QuantArray, tokens: int) -> Layer:
    """A layer of as many rows of a matrix as float64 can check in reasonable time."""
    n, k = q.shape
    rows = min(n, MOST // k, MOST // tokens)
    if not rows or tokens * k > MOST:
        raise ConfigError(
            f"--tokens {tokens} with {name} {list(q.shape)}: the check multiplies up to {MOST:,} numbers; "
            "ask for fewer tokens"
        )
    note = f"the first {rows} of {n} rows of {name}" if rows < n else ""
    return Layer(name, q[:rows] if rows < n else q, None, note)
