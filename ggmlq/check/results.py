"""Results of anybody's function, called with as many arguments as it takes; they come to the host."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.devices import to_host
from ..errors import UnsupportedError
from ..formats import BlockFormat


class RefusedError(Exception):
    """The function does not take this type."""


class WrongResultError(Exception):
    """A result that cannot be judged: the fault's id, and a sentence."""


class Results:
    """Results of one function with one type, as host arrays of the right shape."""

    def __init__(self, call: Callable[..., Any], fmt: BlockFormat, must: bool) -> None:
        self.call, self.fmt, self.must, self.calls = call, fmt, must, 0
        self.note, self.worst = "", 0.0

    def __call__(self, *operands: NDArray[Any], shape: tuple[int, int] | None = None) -> Any:
        """The result for these operands; they are copies, and must be the same afterwards."""
        copies = [operand.copy() for operand in operands]
        self.calls += 1
        try:
            with np.errstate(all="ignore"):
                result = on_host(self.call(*copies, self.fmt.name, *([shape] if shape else [])))
        except Exception as error:  # anybody's code may raise anything
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(
                ": "
            )
            if self.calls == 1 and not self.must:
                raise RefusedError(reason) from None
            raise WrongResultError("raises", reason) from error
        for before, after in zip(operands, copies, strict=True):
            if before.tobytes() != after.tobytes():
                raise WrongResultError("out-of-bounds", "The function writes into its operands.")
        return result

    def floats(self, *operands: NDArray[Any], shape: tuple[int, int], of: tuple[int, int]) -> Any:
        """The values of a result [of], and the rounding that its type has."""
        values, kind = self(*operands, shape=shape)
        if values.size != of[0] * of[1] or values.dtype.kind != "f":
            text = f"The result is {kind} of {values.shape}; floats of {of} are expected."
            raise WrongResultError("shape", text)
        return values.astype(np.float64).reshape(of), kind


class Bfloat16:
    """Values that were stored as bfloat16, for whoever asks for their type; NumPy has none of its own."""

    dtype = SimpleNamespace(name="bfloat16")

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values.astype(np.float32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.values


def on_host(result: Any) -> tuple[NDArray[Any], str]:
    """A result as a NumPy array, and the name of its type; bfloat16 comes as float32."""
    if hasattr(result, "detach"):  # torch
        result = result.detach().cpu()
        kind = str(result.dtype).rpartition(".")[2]
        return np.asarray((result.float() if kind == "bfloat16" else result).numpy()), kind
    if not hasattr(result, "__array__") and hasattr(result, "__dlpack__"):
        result = np.from_dlpack(result)
    array = np.asarray(to_host(result))
    kind = array.dtype.name
    return (array.astype(np.float32) if kind == "bfloat16" else array), kind


def called_with_its_own(f: Callable[..., Any], every: bool, op: str) -> Callable[..., Any]:
    """The function, called with the first arguments only, as many as it takes."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # a function of C
        return f
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return f
    takes = len(places)
    if every and takes < (3 if op == "linear" else 2):
        raise UnsupportedError(
            f"check(f, {op!r}): f takes {takes} argument{'s' if takes != 1 else ''}, so it knows no type; "
            "say formats='q4_0', or let f take the type's name too"
        )
    return lambda *arguments: f(*arguments[:takes])
