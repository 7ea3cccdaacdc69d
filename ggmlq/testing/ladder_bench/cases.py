"""The cases of the ladder: rung by type by shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from ...dispatch.ladder import Rung, rungs
from ...dispatch.problems import Linear
from ...formats import FORMATS

DEVICE = "cuda" if find_spec("cupy") else "cpu"
LADDER = ("q4_0", "q8_0")
Shape = tuple[int, int, int]
SHAPES: dict[str, list[Shape]] = {  # M, N, K
    "cuda": [(m, 4096, 14336) for m in (1, 8, 32, 64, 256, 512, 4096)] + [(512, 4096, 4096)],
    "cpu": [(1, 4096, 4096), (64, 4096, 4096)],
}
OTHERS = ("q4_1", "q5_0", "q2_K", "q4_K", "q6_K", "mxfp4", "iq4_xs", "iq2_xxs")  # all kinds, by "auto" alone
OTHER_SHAPES: dict[str, list[Shape]] = {
    "cuda": [(m, 4096, 14336) for m in (1, 512)],
    "cpu": SHAPES["cpu"],
}
LOW, MANY = 5, 512  # rungs below this level are slow, and not measured with more rows than this


@dataclass(frozen=True)
class Case:
    """A rung, or "auto", with a type of weights and a shape."""

    kernel: str
    level: int | None
    format: str
    shape: Shape
    device: str

    @property
    def group(self) -> str:
        """The cases that are compared with this one."""
        return "{} M={} N={} K={} on {}".format(self.format, *self.shape, self.device)

    @property
    def step(self) -> str:
        """The name within the group, which sorts as the ladder does."""
        name = self.kernel.partition(":")[2] or self.kernel
        return name if self.level is None else f"{self.level:02}_{name}"

    @property
    def name(self) -> str:
        """The name among all cases, the same in every folder that the benchmark is run from."""
        return "{}-M{}-N{}-K{}-{}-{}".format(self.format, *self.shape, self.device, self.step)


def cases(device: str = DEVICE) -> Iterator[Case]:
    """All cases of a device, the ladder from its lowest rung for each shape; then other types, by "auto"."""
    for shape in SHAPES[device]:
        for name in LADDER:
            for rung in rungs("linear", device):
                if is_measured(rung, name, shape):
                    yield Case(rung.name, rung.level, name, shape, device)
    for name in OTHERS:
        for shape in OTHER_SHAPES[device]:
            yield Case("auto", None, name, shape, device)


def is_measured(rung: Rung, name: str, shape: Shape) -> bool:
    """True where a rung serves a shape in less than a second."""
    if rung.device == "cuda" and rung.level < LOW and shape[0] > MANY:
        return False
    return not rung.refuses(Linear.here(FORMATS[name], *shape, device=rung.device))
