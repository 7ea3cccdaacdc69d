"""The judge of places: a module's numbers beside ours, and the mistake that makes the difference vanish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import Format
from ..gguf import GGUFFile
from .watched import Call

Floats = NDArray[Any]
Try = tuple[str, str, Floats]  # a mistake's name, words, and what a part with it gives
Tries = Callable[[], Iterable[Try]]

# Up to here, as a share of the square of what was summed, two computations in a type are the same.
FLOORS = {"float64": 1e-9, "float32": 1e-9, "float16": 1e-4, "bfloat16": 3e-3}
SCALED = ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm")  # a factor may be in the scale of scores as well
BETTER = 8  # times smaller is the error with a mistake that explains it, where quantization might as well


def noise_of(fmt: Format) -> float:
    """The share of squares that quantizing costs at most: three times that of a normal distribution."""
    return 1e-5 if fmt.name == "bf16" else float(12 * 4.0**-fmt.bits_per_weight)


def factor_between(y: Floats, ours: Floats) -> float:
    """The factor by which ours come nearest."""
    return float((y * ours).sum() / ((ours * ours).sum() + 1e-300))


def distance(y: Floats, ours: Floats, size: float = 0.0) -> float:
    """The square of a difference beside a size, by default that of the first; infinity for NaN."""
    if y.shape != ours.shape:
        return float("inf")
    away = float(np.square(y - ours).sum()) / ((size or float(np.square(y).sum())) + 1e-30)
    return float("inf") if np.isnan(away) else away


@dataclass(frozen=True)
class Place:
    """A place of a model, right or with the mistake that explains it."""

    node: str  # llama.cpp's name of the node, or the tensor's
    path: str  # in the module
    nmse: float
    mistake: str = ""  # "" where it is right
    text: str = ""
    type: str = ""  # whose quantization explains the difference


@dataclass
class Judge:
    """The places so far."""

    file: GGUFFile
    walks: bool = False  # what lies between parts is judged too
    places: list[Place] = field(default_factory=list)

    def __call__(
        self, node: str, call: Call, y: Floats, ours: Floats, tries: Tries, deep: Tries = tuple, *,
        floor: float, size: float = 0.0, fmt: Format | None = None,
    ) -> str:  # fmt: skip
        """Judge a place; the name of its mistake, ``""`` where it is right.

        ``deep``: tries that cost more, made where quantization cannot explain the difference.
        """
        noise = noise_of(fmt) if fmt is not None else 0.0
        limit, error = max(floor, noise), distance(y, ours, size)
        if error <= floor:
            self.places.append(Place(node, call.path, error))
            return ""
        for some in (tries, deep) if not error <= limit else (tries,):
            for mistake, text, other in some():
                left = distance(y, other, size)
                if left <= limit and left * (2 if error > limit else BETTER) <= error:
                    self.places.append(Place(node, call.path, error, mistake, text))
                    return mistake
        if error <= limit and fmt is not None:
            self.places.append(Place(node, call.path, error, type=fmt.name))
            return ""
        text = "no known mistake explains it" if np.isfinite(y).all() else "the module gives NaN or infinity"
        self.places.append(Place(node, call.path, error, "unexplained", text))
        return "unexplained"

    def wrong(self, node: str, path: str, mistake: str, text: str) -> None:
        """Note a mistake that is seen without numbers."""
        self.places.append(Place(node, path, float("inf"), mistake, text))

    def factor_of(self, stem: str, mistake: str, factor: float) -> float:
        """The factor of a part that is judged with the scores, where it is no mistake yet; 1 for others."""
        if mistake != "scale" or not self.walks or not stem.endswith(SCALED):
            return 1.0
        place = self.places.pop()
        self.places.append(Place(place.node, place.path, 0.0))
        return factor

    # --- tensors ------------------------------------------------------------------------------

    def tensor(self, name: str, rows: Any = None) -> Floats:
        """A tensor in float64, or some of its rows."""
        q = self.file[name]
        values: Floats = np.asarray((q if rows is None else q[rows]).dequantize(), np.float64)
        return values

    def others(self, name: str, layer: bool) -> Iterator[str]:
        """Tensors of this one's shape: in its layer, or under its name in other layers."""
        shape, (front, _, rest) = self.file.info(name).shape, name.partition("blk.")
        number, _, inner = rest.partition(".")
        for other in self.file:
            near = other.startswith(f"{front}blk.{number}.") if rest else not other.startswith("blk.")
            same = near if layer else bool(rest) and other.startswith("blk.") and other.endswith(f".{inner}")
            if same and other != name and self.file.info(other).shape == shape:
                yield other
