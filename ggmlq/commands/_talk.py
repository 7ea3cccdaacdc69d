"""A conversation with a model: tokens that its cache holds, answers as a stream, and how long they took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays.prepared import MAKING
from ..base.devices import to_host
from ..errors import ShapeError
from ..model import Model
from ..model.batch import RECORDED
from ..model.sampling import Sampling

FEW = 32  # tokens of a prompt; one of fewer takes as long as its kernels take to load


@dataclass
class Timing:
    """Tokens and seconds of a kind of work."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second; 0 where there were none."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def words(self, tokens: int, least: int = 1) -> str:
        """``50 tokens, 12.3 a second``: so many tokens, and the pace, if as many as ``least`` were timed."""
        speed = f", {self.rate:,.1f} a second" if self.tokens >= least and self.seconds else ""
        return f"{tokens:,} token{'' if tokens == 1 else 's'}{speed}"

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {"tokens": self.tokens, "seconds": self.seconds, "tokens_per_second": self.rate}


@dataclass
class Talk:
    """A model with the tokens that it has read and said."""

    model: Model
    sampling: Sampling
    rng: np.random.Generator
    stop: frozenset[int]
    positions: int
    read: Timing = field(default_factory=Timing)
    said: Timing = field(default_factory=Timing)
    reason: str = "interrupted"  # why an answer ended: stop, length, context
    count: int = 0  # tokens of all answers
    prepared: float = 0.0  # seconds in which weights were brought into the order that kernels read

    def __post_init__(self) -> None:
        self.cache = self.model.cache(self.positions)
        self.tokens: list[int] = []  # that the cache holds
        self._logits: Any = None

    def hear(self, tokens: Sequence[int]) -> None:
        """Read a text, of which the cache may hold the beginning already."""
        if len(tokens) >= self.positions:
            raise ShapeError(
                f"the text has {len(tokens):,} tokens, the context {self.positions:,} positions, and an "
                "answer needs some; shorten the text, or give a larger --context"
            )
        same = 0
        while same < min(len(tokens) - 1, len(self.tokens)) and self.tokens[same] == tokens[same]:
            same += 1
        same = self.cache.reachable(same)
        self.tokens, self.reason = list(tokens[:same]), "interrupted"
        self.cache.truncate(same)
        with self._timed(self.read):
            self._logits = _arrived(self.model.prompt(tokens[same:], self.cache))
        self.read.tokens += len(tokens) - same
        self.tokens = list(tokens)

    def answer(self, most: int) -> Iterator[int]:
        """Yield the tokens of an answer, without the one that ends it."""
        self.reason = "interrupted"
        for i in range(most):
            token, following = self._drawn(RECORDED <= i < most - 1)
            if token in self.stop:
                self.cache.truncate(len(self.tokens))
                self.reason = "stop"
                return
            self.count += 1
            yield token
            if i + 1 == most:
                break
            if len(self.tokens) + 1 >= self.positions:
                self.reason = "context"
                return
            if following is None:
                with self._timed(self.said):
                    following = _arrived(self.model.run(np.array([token]), self.cache)[-1])
            self._logits = following
            self.said.tokens += 1
            self.tokens.append(token)
        self.reason = "length"

    @contextmanager
    def _timed(self, timing: Timing) -> Iterator[None]:
        """Count the seconds of some work, and apart those in which weights were prepared for it."""
        begin, before = time.perf_counter(), MAKING.seconds
        try:
            yield
        finally:
            prepared = MAKING.seconds - before
            self.prepared += prepared
            timing.seconds += time.perf_counter() - begin - prepared

    def _drawn(self, ahead: bool) -> tuple[int, Any]:
        """The next token, and the logits behind it if the step began before the token arrived from a GPU."""
        begin, best, following = time.perf_counter(), self.model.best, None
        if best is None or self.sampling.temperature:
            return self.sampling.draw(self._logits, self.rng), None
        ids, arrived = best(self._logits[None])
        if ahead and len(self.tokens) + 1 < self.positions:
            following = self.model.run(ids, self.cache)[-1]
        token = int(arrived()[0])
        self.said.seconds += time.perf_counter() - begin
        return token, following


def _arrived(logits: Any) -> Any:
    """Logits, once they are there: of a GPU one number is read, so that its time counts."""
    to_host(logits[:1])
    return logits
