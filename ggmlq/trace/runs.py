"""``Run``: the process in which a model runs in a user's library, and the nodes that it hands over."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..llama.files import named_for_child
from ..llama.process import Child
from ..llama.program import Node
from .child import CODE
from .fusion import Group
from .memory import SharedFile
from .settings import Settings


class Run:
    """A process with a loaded library; one model, any number of runs."""

    def __init__(self, settings: Settings, *, without: tuple[str, ...] | None = None) -> None:
        self.settings = settings
        self.shared, path = SharedFile.created()
        self.child: Child | None = None
        self.started = time.monotonic()
        # Seconds beyond the time limit: a run that stops at no node takes as long as all nodes together.
        self.patience = 0.0
        try:
            self.child = Child.started(CODE.format(path=sys.path))
            hidden = settings.without if without is None else without
            self.facts = self._call({
                "do": "load", "lib": named_for_child(settings.lib), "shared": path,
                "without": list(hidden),
            })  # fmt: skip
        except BaseException:
            with suppress(OSError):
                Path(path).unlink()
            self.close()
            raise

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.child is not None
        answer, _ = self.child.call(
            f"tracing {self.settings.model}", message, [], self.settings.timeout + self.patience
        )
        return dict(answer)

    def nodes(
        self, *, tokens: list[int] | None = None, then: list[int] | None = None, traced: bool = True,
        through: bool = False, **asks: Any,
    ) -> Iterator[Node | dict[str, Any]]:  # fmt: skip
        """Run the model and yield its captured nodes; the last item is the message of the end, a dict.

        ``asks``: fields of :class:`Asks` that differ from the settings'. The arrays of a node are valid until
        the next one.
        """
        settings = self.settings
        numbers = (
            None if settings.tokens is None or isinstance(settings.tokens, int) else list(settings.tokens)
        )
        self.shared.note({})
        answer = self._call({
            "do": "tool" if settings.tool else "run", "tool": list(settings.tool),
            "model": str(settings.model), "tokens": tokens or numbers, "prompt": settings.prompt,
            "random": settings.tokens if isinstance(settings.tokens, int) else 0, "seed": settings.seed,
            "generate": settings.generate, "then": then or [], "threads": settings.thread_count,
            "cache": settings.cache, "flash": settings.flash, "traced": traced, "through": through,
            "asks": replace(settings.asks, **asks).message(),
        })  # fmt: skip
        while answer["kind"] == "product":
            places = dict(answer["places"])
            arrays = dict(zip(places, self.shared.look(list(places.values())), strict=True))
            node = answer["op"], answer["step"], answer["parts"], arrays, tuple(answer["words"])
            if "members" in answer:
                yield Group(*node, members=tuple(answer["members"]))
            else:
                yield Node(*node, changed=tuple(answer["changed"]))
            answer = self._call({"do": "next"})
        logits = self.shared.look(answer.pop("places"))
        yield answer | {"logits": [one.view(np.float32).copy() for one in logits]}

    def listing(self, *, tokens: list[int] | None = None, then: list[int] | None = None) -> dict[str, Any]:
        """The message of the end of a run that stops at no node; its ``listing`` has all nodes."""
        (end,) = self.nodes(tokens=tokens, then=then, listed=True)
        assert isinstance(end, dict)
        return end

    def tokens_of(self, text: str) -> tuple[list[int], list[int]]:
        """The tokens of a text, and those of them that begin every text."""
        message = {"do": "tokens", "model": str(self.settings.model), "text": text}
        answer = self._call(message)
        return list(answer["tokens"]), list(answer["begin"])

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def died_at(self) -> dict[str, Any]:
        """The last records: the step, and the nodes that were being computed."""
        return self.shared.noted()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process of the library."""
        if self.child is not None:
            self.child.close()
        self.shared.close()
