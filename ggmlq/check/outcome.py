"""The outcome of one case of ``ggmlq check``: its verdict, figures and diagnosis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ..llama.guards import Stray
from .cases import Case
from .judge import for_json

Verdict = Literal["ok", "wrong", "differs", "failed", "refused", "not run", "not judged"]
BAD = ("wrong", "differs", "failed", "refused")
RARE = ("refused", "not judged")  # a table counts them only where there are some
ASSERTIONS = ("GGML_ASSERT(", ": fatal error")  # in a library's last words: it does not take such tensors
IDLE = ("not run", "not judged")  # they say nothing about the library; the second is an error of ours


@dataclass(frozen=True)
class Outcome:
    """The verdict on one case, its figures and diagnosis: one line of the report, and the text below."""

    case: Case
    verdict: Verdict
    arithmetic: str = ""
    distance: float = math.nan  # worst row, from that arithmetic
    from_exact: float = math.nan
    out: int = 0  # elements out of bound
    unequal: int = 0  # elements that differ between repeats
    buffer: str = ""
    seconds: float = math.nan
    fault: str = ""
    text: str = ""  # the diagnosis, or why there is no result
    saved: str = ""
    options: str = ""  # how it was run, as options of the command
    threads: int = 0
    layout: str = ""  # of the weights; "" is the plain one
    unwritten: int = 0  # elements that the kernel never wrote
    leaked: int = 0  # elements made of memory around the operands
    strays: tuple[Stray, ...] = ()  # memory beside the result that was overwritten
    forced: bool = False  # supports_op refuses it, llama.cpp multiplies so all the same
    reports: str = ""  # of a sanitizer
    arrays: dict[str, Any] = field(default_factory=dict, repr=False)  # of a bad case, for --save

    @property
    def bad(self) -> bool:
        """True where the library did something wrong."""
        return self.verdict in BAD

    @property
    def way(self) -> str:
        """Layout and number of threads in words: ``AMX, 32 threads``."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}" if self.threads else ""
        return ", ".join(filter(None, [self.layout, threads]))

    @property
    def repeat_options(self) -> str:
        """The options that repeat this outcome."""
        return f"{self.case.repeat_options}{self.options}"

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        case = self.case
        return {
            "type": case.format.name, "m": case.m, "n": case.n, "k": case.k, "data": case.data,
            "seed": case.seed, **case.json_facts, "verdict": self.verdict,
            "arithmetic": self.arithmetic or None,
            "nmse": for_json(self.distance), "nmse_exact": for_json(self.from_exact),
            "out_of_bound": self.out, "unequal": self.unequal, "unwritten": self.unwritten,
            "leaked": self.leaked, "strays": [asdict(stray) for stray in self.strays], "forced": self.forced,
            "threads": self.threads, "layout": self.layout or None, "buffer": self.buffer or None,
            "seconds": for_json(self.seconds), "fault": self.fault or None, "text": self.text or None,
            "saved": self.saved or None, "again": self.repeat_options,
        }  # fmt: skip


def verdicts_of(outcomes: Iterable[Outcome]) -> list[Verdict]:
    """The verdicts that a table counts."""
    there = {outcome.verdict for outcome in outcomes}
    return [one for one in get_args(Verdict) if one not in RARE or one in there]
