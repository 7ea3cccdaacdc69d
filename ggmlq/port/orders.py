"""Orders in which a port may have the rows of a matrix, as numbers of the file's rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..gguf import GGUFFile
from .watched import DELTA_NETS, family_of


def halves(rows: int, heads: int) -> NDArray[np.int64]:
    """Rows of heads as two halves, from rows of neighbours; argsort of it is the way back."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def orders(file: GGUFFile, stem: str, rows: int) -> list[NDArray[np.int64]]:
    """Orders in which a port may have rows; the first one is what it should have."""
    plain, arch = np.arange(rows), file.metadata.get("general.architecture")
    inner = stem.rpartition(".")[2]
    if (heads := _value_heads(file, inner, rows)) is not None:
        return [plain, heads] if arch == "qwen3next" else [heads, plain]
    count = file.metadata.get(f"{arch}.attention.head_count")
    if inner == "attn_k":
        count = file.metadata.get(f"{arch}.attention.head_count_kv", count)
        counts = np.ravel(count).tolist()  # of each layer: those without have 0
        count = max((n for n in counts if isinstance(n, int)), default=None)
    if inner not in ("attn_q", "attn_k") or not isinstance(count, int) or count < 1 or rows % (2 * count):
        return [plain]
    family, apart = family_of(file), halves(rows, count)
    both = [apart, plain] if family is not None and family.permuted else [plain, apart]
    more = [halves(rows, n) for n in (2 * count, count // 2) if n and rows % (2 * n) == 0]
    return [*both, np.argsort(apart), *more]


def _value_heads(file: GGUFFile, inner: str, rows: int) -> NDArray[np.int64] | None:
    """Rows of a delta net's value heads: those of a key head lie together, in most files apart."""
    arch = file.metadata.get("general.architecture")
    keys, values, size = (
        file.metadata.get(f"{arch}.ssm.{key}") for key in ("group_count", "time_step_rank", "state_size")
    )
    delta = arch in DELTA_NETS and inner.startswith(("ssm_", "attn_gate", "attn_qkv")) and inner != "ssm_norm"
    if not delta or not all(isinstance(n, int) and n > 0 for n in (keys, values, size)) or values % keys:
        return None
    before = 2 * keys * size if inner in ("attn_qkv", "ssm_conv1d") else 0
    if values == keys or (rows - before) % values:
        return None
    places = np.arange(before, rows).reshape(values // keys, keys, -1).swapaxes(0, 1).reshape(-1)
    return np.concatenate([np.arange(before), places])
