"""A conversation with a model: tokens that its cache holds, answers as a stream, and how long they took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays.prepared import MAKING
from ..errors import ShapeError
from ..model import Model
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
    draft: Any = None  # as of Model.generate

    def __post_init__(self) -> None:
        self.cache = self.model.cache(self.positions)
        self.batch = self.model.batch(cache=self.cache, draft=self.draft)
        self.tokens: list[int] = []  # that the cache holds
        self._number: int | None = None  # of the text in the batch
        self._token = 0  # the next one

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
        if self._number is not None:
            self.batch.drop(self._number)
        self._number = self.batch.join("run", tokens, None, self.sampling, self.rng, (), same)
        with self._timed(self.read):
            self._token = self.batch.step()[self._number]
        self.read.tokens += len(tokens) - same
        self.tokens = list(tokens)

    def answer(self, most: int) -> Iterator[int]:
        """Yield the tokens of an answer, without the one that ends it."""
        self.reason = "interrupted"
        for i in range(most):
            token = self._token
            if token in self.stop:
                self.reason = "stop"
                return
            self.count += 1
            yield token
            if i + 1 == most:
                break
            if len(self.tokens) + 1 >= self.positions:
                self.reason = "context"
                return
            with self._timed(self.said):
                ((_, self._token),) = self.batch.step().items()
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
