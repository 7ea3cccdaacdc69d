"""The levels: sets of CPU features, from the best, for which the package has prebuilt kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

V3 = frozenset((
    "64bit", "avx", "avx2", "bmi", "bmi2", "cmov", "crc32", "cx16", "cx8", "f16c", "fma", "fxsr", "lzcnt",
    "mmx", "movbe", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave",
))  # fmt: skip
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
ARM = frozenset(("fp-armv8", "neon"))


@dataclass(frozen=True)
class Level:
    """A CPU of LLVM's with features; code compiled for it runs on CPUs that have all of these features."""

    folder: str
    machine: str  # as platform.machine() says it
    cpu: str
    features: frozenset[str]
    # By the beginning of a family's name: features that its kernels use besides, where a CPU has them.
    more: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)

    @property
    def needed(self) -> frozenset[str]:
        """The features that a CPU has to report; no system reports that it has 64 bits."""
        return self.features - {"64bit"}

    def of(self, family: str) -> Level:
        """The level that a family of kernels, ``ggmlq.cpu.room.file.function``, is compiled for."""
        place = family.partition(".cpu.")[2]
        more = next((extra for start, extra in self.more.items() if place.startswith(start)), frozenset())
        return replace(self, features=self.features | more, more={}) if more else self

    @property
    def text(self) -> str:
        """The features as LLVM takes them."""
        return ",".join(f"+{name}" for name in sorted(self.features))


PAIRS = frozenset(("avx512bf16",))
MATRIX = PAIRS | {"amx-tile", "amx-bf16", "amx-int8"}
LEVELS = (
    Level(
        "avx512-vbmi",
        "x86_64",
        "x86-64-v4",
        V4 | {"avx512vnni", "avx512vbmi"},
        {
            "codes8.float_amx": MATRIX,
            "codes8.float_": PAIRS,
            "codes8.int_amx": MATRIX,
            "amx.": MATRIX,
            "attention.matrix": MATRIX,
        },
    ),
    Level("avx512-vnni", "x86_64", "x86-64-v4", V4 | {"avx512vnni"}),
    Level("avx-vnni", "x86_64", "x86-64-v3", V3 | {"avxvnni"}),
    Level("avx2", "x86_64", "x86-64-v3", V3),
    Level("arm64-dotprod", "aarch64", "generic", ARM | {"dotprod", "lse"}),
    Level("arm64", "aarch64", "generic", ARM),
)


def best(machine: str, has: frozenset[str]) -> Level | None:
    """The best level for a machine with these features, or None."""
    return next((level for level in LEVELS if level.machine == machine and level.needed <= has), None)
