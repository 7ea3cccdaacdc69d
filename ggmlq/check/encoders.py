"""The judgement on an encoder: its blocks decode to values as near to the floats as those of ggml."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..faults.blocks.weights import mistakes
from ..faults.catalogue import CATALOGUE
from ..faults.diagnosis import Diagnosis
from ..formats import BlockFormat
from ..ops import quantize

# Times ggml's squared error: amax/7 beside the signed extreme/-8 of q4_0 is 1.3, searches differ by less.
WORSE = 1.7
TINY = 1e-7  # of a row's squared size


def judged_encoder(raw: NDArray[np.uint8], fmt: BlockFormat, x: NDArray[np.float32]) -> Diagnosis:
    """The diagnosis of blocks [N, bytes] that an encoder made of floats x [N, K]."""
    importance = np.ones(x.shape[1], np.float32) if fmt.needs_imatrix else None
    right = quantize(x, fmt, imatrix=importance)
    same = bool((np.asarray(right.raw).reshape(raw.shape) == raw).all())
    figures: dict[str, Any] = {"same bytes": same, "error over that of ggml": 1.0}
    if same:
        return Diagnosis(True, "correct", 0.99, "The bytes are those of ggml.", figures=figures)
    blocks = np.ascontiguousarray(raw).view(fmt.dtype)
    values = QuantArray.from_bytes(raw, fmt, x.shape).dequantize(np.float64)
    limit = WORSE * _error(right.dequantize(np.float64), x) + TINY * (x.astype(np.float64) ** 2).sum(axis=1)
    error = _error(values, x)
    ratio = np.divide(WORSE * error, limit, out=np.where(error > 0, np.inf, 1.0), where=limit > 0)
    figures["error over that of ggml"] = float(ratio.max(initial=0))
    if (error <= limit).all():
        return Diagnosis(True, "correct", 0.9, "The blocks are as near as those of ggml.", figures=figures)
    if not np.isfinite(values).all():
        return _wrong("nan", "The blocks decode to NaN or infinity.", figures)
    telling = limit < (x.astype(np.float64) ** 2).sum(axis=1) / 2  # blocks of zeros would be further off
    for m in mistakes(fmt, blocks, np.arange(len(blocks))) if telling.any() else ():
        with np.errstate(all="ignore"):
            if (_error(m.replay.dense, x) <= limit).all():
                text = f"Here: {m.words}: a reader with this mistake reads the blocks right."
                return _wrong(m.fault, text, figures)
    text = f"Row {int(ratio.argmax())} has {ratio.max():.3g} times the squared error of ggml's blocks."
    return _wrong("encode-error", text, figures)


def _error(values: NDArray[Any], x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The squared distance of each row."""
    with np.errstate(all="ignore"):
        squares: NDArray[np.float64] = ((values - x.astype(np.float64)) ** 2).sum(axis=1)
    return np.where(np.isfinite(squares), squares, np.inf)


def _wrong(fault: str, text: str, figures: dict[str, Any]) -> Diagnosis:
    return Diagnosis(False, fault, 0.9, f"{fault}: {CATALOGUE[fault].says}\n{text}", figures=figures)
