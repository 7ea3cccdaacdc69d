"""The costs of a checkpoint of hundreds of gigabytes: the checkpoint counted, and a formula for each cost.

Every number that is not counted is a Number: its value, its unit, and where it comes from. The formulas
take them from there and from nowhere else, so a line of assumptions can be read, doubted and changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BITS = 4.5  # a weight, of q4_K
DATA, MEASURED, HERE, ASSUMED = "data sheet", "measured on an H200", "measured here", "assumed"


class Number(NamedTuple):
    """An assumption of the model."""

    value: float
    unit: str
    what: str
    source: str


ASSUMPTIONS = {
    "files": Number(163, "", "files of the checkpoint", DATA),
    "cards": Number(8, "", "H200 in the host", DATA),
    "card_memory": Number(141e9, "B", "memory of a card", DATA),
    "card_read": Number(4456e9, "B/s", "reading of a card's memory", MEASURED),
    "card_fp8": Number(1386e12, "FLOP/s", "FP8 products with block scales", MEASURED),
    "link": Number(63e9, "B/s", "PCIe 5 x16 to each card", DATA),
    "link_share": Number(0.78, "", "of the link that loading a model to a card reaches", MEASURED),
    "nvlink": Number(360e9, "B/s", "of an all-reduce among 8 cards, large messages, each direction", ASSUMED),
    "reduce_least": Number(20e-6, "s", "of the smallest all-reduce among 8 cards, in a graph", ASSUMED),
    "imbalance": Number(1.3, "", "the busiest card's share of experts over the mean", ASSUMED),
    "cores": Number(192, "", "cores of the host, each as fast as the one measured here", ASSUMED),
    "disk_read": Number(25e9, "B/s", "reading of the host's own disks, four NVMe drives together", ASSUMED),
    "disk_write": Number(12e9, "B/s", "writing of them", ASSUMED),
    "shared_read": Number(5e9, "B/s", "reading of a file system over the network, by one host", ASSUMED),
    "shared_most": Number(40e9, "B/s", "of that file system for all hosts together", ASSUMED),
    "net_latency": Number(0.05, "s", "of one request to a hub, with TLS and a redirect", ASSUMED),
    "net_read": Number(1e9, "B/s", "from a hub", ASSUMED),
    "host_power": Number(10.2e3, "W", "of the host at most, cards included", DATA),
    "rack_power": Number(40e3, "W", "of a rack", ASSUMED),
    "context": Number(8192, "", "tokens that each sequence has behind it", ASSUMED),
}  # fmt: skip
VALUES = {name: assumption.value for name, assumption in ASSUMPTIONS.items()}


@dataclass(frozen=True)
class Rates:
    """The speed of a core of this machine, from runs at small size."""

    open_file: float  # s
    open_tensor: float  # s
    walk: float  # FP8 elements/s looked at, one core
    trial: float  # s for a tensor of which some rows are encoded in all types
    encode: float  # f16 elements/s to q4_K, one core
    start: float  # s until all workers work
    write: float  # B/s to the disk, synced

    def lines(self) -> Iterator[tuple[str, str]]:
        """Lines of a value and its name."""
        yield f"{self.open_file * 1e3:.2f} ms", "to open a file"
        yield f"{self.open_tensor * 1e6:.1f} µs", "more for each tensor in it"
        yield f"{self.walk / 1e6:.0f} M/s", "FP8 values looked at, one core"
        yield f"{self.trial * 1e3:.0f} ms", "for trying six types on a matrix, one core"
        yield f"{self.encode / 1e6:.0f} M/s", "f16 values encoded as q4_K and compared, one core"
        yield f"{self.start:.1f} s", "until processes work"
        yield f"{self.write / 1e6:.0f} MB/s", "written to this disk"


# --- the checkpoint -------------------------------------------------------------------------


class Tensors(NamedTuple):
    """Tensors of one shape and kind."""

    count: int
    elements: int  # of each
    kind: str  # "fp8" (with a scale for each 128 × 128), "bf16", "f32"
    read: str  # by each token: "all", "experts" (8 of them), "none" (looked up, or the part for speculation)

    @property
    def nbytes(self) -> float:
        """Bytes of all, with their scales."""
        size = {"fp8": 1 + 4 / 128**2, "bf16": 2, "f32": 4}[self.kind]
        return self.count * self.elements * size

    @property
    def stored(self) -> int:
        """Tensors in the files, where scales are tensors too."""
        return self.count * (2 if self.kind == "fp8" else 1)


HIDDEN, LAYERS, DENSE, EXPERTS, USED, VOCABULARY = 7168, 61, 3, 256, 8, 129280
LATENT, ROPE, HEADS = 512, 64, 128


def deepseek_v3() -> list[Tensors]:
    """The published shapes: 61 layers, and one more for speculative decoding."""
    h, q = HIDDEN, 1536
    attention = [h * q, q * HEADS * 192, h * (LATENT + ROPE), LATENT * HEADS * 256, HEADS * 128 * h]
    tensors = [Tensors(LAYERS, n, "fp8", "all") for n in attention]
    tensors += [Tensors(1, n, "fp8", "none") for n in attention]
    tensors += [Tensors(LAYERS + 1, n, "bf16", "none") for n in (h, h, q, LATENT)]
    tensors += [Tensors(3 * DENSE, h * 18432, "fp8", "all")]
    for layers, experts, rest in ((LAYERS - DENSE, "experts", "all"), (1, "none", "none")):
        tensors += [
            Tensors(3 * EXPERTS * layers, h * 2048, "fp8", experts),
            Tensors(3 * layers, h * 2048, "fp8", rest),
            Tensors(layers, EXPERTS * h, "bf16", rest), Tensors(layers, EXPERTS, "f32", "none"),
        ]  # fmt: skip
    tensors += [Tensors(1, VOCABULARY * h, "bf16", "none"), Tensors(1, VOCABULARY * h, "bf16", "all")]
    tensors += [Tensors(2, VOCABULARY * h, "bf16", "none"), Tensors(1, 2 * h * h, "bf16", "none")]
    return tensors


def total(tensors: list[Tensors], read: str = "") -> float:
    """Bytes of all tensors, or of those that tokens read in one way."""
    return sum(t.nbytes for t in tensors if not read or t.read == read)


# --- what it costs --------------------------------------------------------------------------


def opening(rates: Rates, files: float, tensors: float) -> float:
    """Seconds for mapping every file, reading and checking every header; no value."""
    return files * rates.open_file + tensors * rates.open_tensor


def surveying(rates: Rates, elements: float, trials: float, workers: float) -> float:
    """Seconds for looking at all values and trying six types on each matrix."""
    return rates.start + (elements / rates.walk + trials * rates.trial) / workers


def requantizing(rates: Rates, elements: float, nbytes: float, workers: float, write: float) -> float:
    """Seconds for encoding by workers, while the disk takes what they write."""
    return rates.start + max(elements / rates.encode / workers, nbytes / write)


class Step(NamedTuple):
    """Milliseconds of one token for each of some sequences."""

    batch: int
    weights: float
    cache: float
    products: float
    reduces: float

    @property
    def all(self) -> float:
        """The sum: memory and products overlap, the all-reduces do not."""
        return max(self.weights + self.cache, self.products) + self.reduces


def decoding(tensors: list[Tensors], batch: int) -> Step:
    """A step of decoding on all cards: weights cut up among them, experts on the card that has them."""
    v = VALUES
    touched = 1 - (1 - USED / EXPERTS) ** batch  # of the experts, by tokens that choose evenly
    experts = total(tensors, "experts") * touched * v["imbalance"]
    read = (total(tensors, "all") + experts) / (v["cards"] * v["card_read"])
    cache = batch * v["context"] * cache_of_token() / (v["cards"] * v["card_read"])
    flops = 2 * batch * active(tensors)
    reduce = v["reduce_least"] + 2 * 7 / 8 * batch * HIDDEN * 2 / v["nvlink"]
    return Step(
        batch, read * 1e3, cache * 1e3, flops / (v["cards"] * v["card_fp8"]) * 1e3, 2 * LAYERS * reduce * 1e3
    )


def active(tensors: list[Tensors]) -> float:
    """The number of weights that a token is multiplied with."""
    share = {"all": 1.0, "experts": USED / EXPERTS, "none": 0.0}
    return sum(t.count * t.elements * share[t.read] for t in tensors)


def cache_of_token() -> float:
    """Bytes of the cache for one token: the latent and the rotary part, in bfloat16."""
    return LAYERS * (LATENT + ROPE) * 2
