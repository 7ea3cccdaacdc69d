"""``w8a8_block_fp8_matmul`` of serving frameworks: products of e4m3 codes with scales of groups and blocks.

    A [..., K] codes      As [..., K / block_k]              one scale for each group of a row
    B [N, K] codes        Bs [N / block_n, K / block_k]      one for each block, each rounded up

    C[m, n] = Σ over groups i of K:  (Σ A[m, k] · B[n, k]) · (As[m, i] · Bs[n / block_n, i])

A comment that is often copied says Bs is [K / block_k, N / block_n]; the code beside it reads Bs as above.
Scales of that shape are refused, and the error says how to pass them; where both shapes are the same they
cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays.scaled import ScaledArray
from ..base.devices import namespace, on_device_of
from ..codes import CODES
from ..dispatch.checks import float_dtype
from ..ops import scaled_linear
from . import configs
from .operands import block_pair, product
from .tensors import through_arrays

NAMES = "A B As Bs"


@through_arrays
def w8a8_block_fp8_matmul(
    A: Any, B: Any, As: Any, Bs: Any, block_size: Any, output_dtype: Any = np.float16,
    config: Mapping[str, int] | None = None,
) -> Any:  # fmt: skip
    """``A [..., K] @ B [N, K].T`` of codes e4m3 with scales of groups (1, block_k) and of blocks.

    Parameters
    ----------
    A, B : arrays of codes
        [..., K] and [N, K], of any strides; K, N and the number of rows may be anything.
    As, Bs : arrays
        Scales [..., K / block_k] and [N / block_n, K / block_k], each rounded up.
    block_size : (int, int)
        [block_n, block_k].
    output_dtype : dtype
        Of the result; sums are float32. In float16 what does not fit becomes infinite.
    config : mapping, optional
        Tile sizes of a Triton kernel: BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, num_warps and
        num_stages. They are checked and have no effect: the fastest kernel is taken, as by
        ``gq.scaled_linear``. Without them the same holds for the table's entry that is nearest to the number
        of rows, see :func:`get_w8a8_block_fp8_configs`.
    """
    request = "w8a8_block_fp8_matmul(A, B, As, Bs, block_size)"
    block = block_pair(request, block_size)
    p = product(request, A, B, As, Bs, block, NAMES)
    kind, (n, k) = float_dtype(request, output_dtype), p.w.shape
    if config is None:  # read for its errors alone, as the other
        configs.chosen(p.x.shape[0], n, k, block, p.w.device)
    else:
        configs.checked(request, config, block)
    return scaled_linear(p.x, p.w, dtype=kind).reshape(p.shape)


@through_arrays
def native_w8a8_block_fp8_matmul(
    A: Any, B: Any, As: Any, Bs: Any, block_size: Any, output_dtype: Any = np.float16
) -> Any:
    """Compute the product in plain array operations of float32, block by block: the check of the document.

    It is there to be read and to be compared with; :func:`w8a8_block_fp8_matmul` says what the arguments are.
    """
    request = "native_w8a8_block_fp8_matmul(A, B, As, Bs, block_size)"
    p = product(request, A, B, As, Bs, block_pair(request, block_size), NAMES)
    kind = float_dtype(request, output_dtype)
    with on_device_of(request, p.w.codes), np.errstate(over="ignore", invalid="ignore"):
        a, a_s, _ = _decoded(p.x)
        b, b_s, xp = _decoded(p.w)
        (bn, bk), (n, k) = p.block, b.shape
        c = xp.zeros((len(a), n), np.float32)
        for i, at in enumerate(range(0, k, bk)):
            for j, row in enumerate(range(0, n, bn)):
                part, rows = slice(at, at + bk), slice(row, row + bn)
                c[:, rows] += (a[:, part] @ b[rows, part].T) * (a_s[:, i : i + 1] * b_s[j, i])
        return c.astype(kind, copy=False).reshape(p.shape)


def _decoded(s: ScaledArray) -> tuple[Any, Any, Any]:
    """Codes as float32 and scales."""
    m = s.matrix()
    return CODES[s.code].decode(m.codes), m.scales, namespace(m.codes)
