"""``gq.diagnose``, the doctor's entry: it chooses the kind of product by its operands, and examines y."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base.devices import to_host
from ..errors import UnsupportedError
from .blocks.examine import Blocks
from .blocks.matrix import Matrix
from .blocks.rounding import OF_CODES
from .diagnosis import Diagnosis
from .experts.examine import Experts
from .scaled.examine import Scaled


def diagnose(
    y: Any,
    x: Any,
    q: QuantArray | ScaledArray,
    *,
    arithmetic: str | None = None,
    repeats: Any = (),
    activations: Any = None,
    ids: Any = None,
    unwritten: Any = None,
) -> Diagnosis:
    """Say whether a kernel's result is right, and if not, which mistake explains it.

    Parameters
    ----------
    y : array of floats
        What the kernel gave for ``x @ q.T``, [..., N], on any device.
    x : array of floats
        The activations, [..., K]; with scaled weights a ScaledArray too.
    q : QuantArray or ScaledArray
        The weights, [N, K].
    arithmetic : str, optional
        The arithmetic that the kernel claims, a name in ``gq.reference.ARITHMETICS``. Without a
        claim any right arithmetic will do, and the text names it.
    repeats : sequence of arrays
        Further results of the same kernel on the same operands; they expose races.
    activations : (code, tile) or (code, tile, scales), optional
        With scaled weights: how the kernel quantizes floats x. By default as
        :func:`ggmlq.scaled_linear` does, or in another usual tile, or not at all.
    ids : array of integers, optional
        [T, U]: y is that of :func:`ggmlq.expert_linear`, with q [E, N, K] and x [T, K] or [T, U, K].
    unwritten : array of bool, optional
        Elements of y that the kernel never wrote, for whoever filled y before and knows them. They are a
        fault of their own, and the rest is judged without them; not with ``ids`` or scaled weights.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> q = gq.quantize(rng.standard_normal((16, 128), np.float32), "q4_0")
    >>> x = rng.standard_normal((8, 128), np.float32)
    >>> gq.diagnose(x @ q.T, x, q).fault
    'correct'
    >>> forgot = x @ (np.asarray(q) + 8 * q.blocks["d"].astype(np.float32).repeat(32, axis=1)).T
    >>> gq.diagnose(forgot, x, q).fault
    'offset-missing'
    """
    if unwritten is not None and (ids is not None or isinstance(q, ScaledArray)):
        raise UnsupportedError(
            "diagnose(y, x, q, unwritten=…): with ids, or with weights that are a ScaledArray, elements that "
            "were never written cannot be told apart; leave it out"
        )
    if isinstance(q, QuantArray) and q.scale is not None:
        y, repeats = _of_blocks(y, q, ids), [_of_blocks(one, q, ids) for one in repeats]
        q = q.unscaled()
    if ids is not None:
        if activations is not None:
            raise UnsupportedError(
                f"diagnose(y, x, q, ids=…): activations={activations!r}; with experts all usual ways of "
                "quantizing x are tried; leave it out"
            )
        return Experts(y, x, q, ids, arithmetic=arithmetic, repeats=repeats).diagnosis()
    if isinstance(q, ScaledArray):
        scaled = Scaled(y, x, q, arithmetic=arithmetic, repeats=repeats, activations=activations)
        return scaled.diagnosis()
    if activations is not None:
        raise UnsupportedError(
            f"diagnose(y, x, q): activations={activations!r} with {q!r}; it says how floats are quantized "
            "beside a ScaledArray; leave it out, or pass arithmetic="
        )
    blocks = Blocks(y, x, q, arithmetic=arithmetic, repeats=repeats, unwritten=unwritten)
    shown = blocks.weights_shown()
    if shown is not None and blocks.is_wrong():  # y of unit vectors is the kernel's matrix
        found = Matrix(shown, q.to("cpu"), OF_CODES).diagnosis()
        if found.fault not in ("correct", "unknown"):
            return found
    return blocks.diagnosis()


def _of_blocks(y: Any, q: QuantArray, ids: Any) -> Any:
    """A result without the companion scale of its weights: what the kernel of blocks computed."""
    scale = np.asarray(q.scale, np.float64)
    if ids is not None and scale.ndim:
        scale = scale[np.clip(np.asarray(to_host(ids)), 0, len(scale) - 1)]
        scale = scale[..., None] if scale.ndim == 2 else scale
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(to_host(y), np.float64) / scale
