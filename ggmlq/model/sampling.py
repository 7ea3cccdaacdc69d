"""Choice of the next token from logits, the largest or one drawn among the best, and the end of a text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.devices import namespace, to_host
from ..base.text import short
from ..errors import DTypeError, NonFiniteError, ShapeError
from .tokenizer import Tokenizer

# --- numbers that are not finite -------------------------------------------------------------
# With NaN a model would say one token for ever.

CAUSE = (
    "a model's numbers are finite; either tensors of the file are not, which `ggmlq validate FILE` names, or "
    "they outgrow their types, where cache='f32' may help: m.nodes(tokens) shows the first; take another file"
)


@contextmanager
def walking(part: str) -> Iterator[None]:
    """The time in which a part is computed; what a cache refuses is an error about the file."""
    try:
        with np.errstate(all="ignore"):  # what comes of it shows in the logits, which are looked at once
            yield
    except NonFiniteError as error:
        raise NonFiniteError(f"model: {part} has numbers that are NaN or infinite; {CAUSE}") from error


def finite(logits: Any) -> Any:
    """Logits, if all are finite."""
    with np.errstate(all="ignore"):  # a sum is finite only if all of them are, and it is quick
        if not np.isfinite(float(logits.sum())) and not bool(namespace(logits).isfinite(logits).all()):
            raise NonFiniteError(f"model: there are logits that are NaN or infinite; {CAUSE}")
    return logits


# --- the next token --------------------------------------------------------------------------

AT_ONCE = 256  # tokens that are sorted at first, where all can be drawn


@dataclass(frozen=True)
class Sampling:
    """The rule by which tokens are drawn.

    ``temperature`` 0 takes the largest logit. ``top_k``: the best so many, 0 for all. ``top_p``: the fewest
    whose shares reach that sum.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ShapeError(
                f"generate: temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}; the "
                "first two are 0 or more, the last above 0 and up to 1; choose others"
            )

    def draw(self, logits: Any, rng: np.random.Generator) -> int:
        """A token, drawn from its logits by the rule."""
        if self.temperature == 0:
            return int(logits.argmax())  # one number comes from a GPU
        row, chance = np.asarray(to_host(logits)), rng.random()
        top, most = row.max(), min(self.top_k or len(row), len(row))
        # A sum of all shares needs them but roughly; those that are compared are float64.
        rough = np.exp((row - top) * row.dtype.type(1 / self.temperature)) if most == len(row) else row[:0]
        whole, count = float(rough.sum(dtype=np.float64)), AT_ONCE if most == len(row) else most
        while True:  # few tokens have nearly all of the sum: the others are sorted where one of them is drawn
            order = best_of(row, min(count, most))
            sums = np.cumsum(np.exp((row[order].astype(np.float64) - top) / self.temperature))
            whole = sums[-1] if len(order) == most else max(whole, sums[-1])
            last = int(np.searchsorted(sums, self.top_p * whole)) if self.top_p < 1 else len(row)
            end = sums[last] if last < len(sums) else whole
            place = int(np.searchsorted(sums, chance * end, side="right"))
            if len(order) == most or (place < len(order) and (self.top_p == 1 or last < len(order))):
                return int(order[min(place, last, len(order) - 1)])
            count *= 16


def best_of(numbers: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Places of the ``count`` largest numbers, the largest first; of equal ones the first comes first."""
    if count < len(numbers):
        least = np.partition(numbers, len(numbers) - count)[len(numbers) - count]
        above, equal = np.flatnonzero(numbers > least), np.flatnonzero(numbers == least)
        places = np.sort(np.concatenate((above, equal[: count - len(above)])))
    else:
        places = np.arange(len(numbers))
    order: NDArray[np.int64] = places[np.argsort(-numbers[places], kind="stable")]
    return order


# --- tokens and texts after which a sequence ends --------------------------------------------

Stops = Collection[int] | Collection[str] | str


class Stop:
    """The end of a sequence.

    ``tokenizer``: asked for when there is a text to look for. Texts are looked for among bytes, in which
    control tokens have their names.
    """

    def __init__(self, stop: Stops, tokenizer: Callable[[], Tokenizer]) -> None:
        items: list[Any] = (
            [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else [None]
        )
        if not all(isinstance(item, Integral) or (isinstance(item, str) and item) for item in items):
            raise DTypeError(
                f"generate: stop={short(stop)}; it is a text, or a collection of texts or of tokens, and no "
                'text is empty; pass stop=m.tokenizer.ends or stop="User:"'
            )
        self._tokens = frozenset(int(item) for item in items if not isinstance(item, str))
        self._texts = [item.encode() for item in items if isinstance(item, str)]
        self._piece = tokenizer().piece if self._texts else None
        self._longest = max(map(len, self._texts), default=0)
        self._said = b""  # as much as a text may begin in

    def __call__(self, token: int) -> bool:
        """True for the token with which the sequence ends; each token of it comes here once, in order."""
        if self._piece is not None:
            said = self._said + self._piece(token, True)
            self._said = said[len(said) - min(len(said), self._longest - 1) :]
            if any(text in said for text in self._texts):
                return True
        return token in self._tokens
