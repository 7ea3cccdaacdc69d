"""Traits that all wrong cases of an operation have, and no right one: a length, gaps, a type, threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..llama.program import Node

MULTIPLES = (64, 32, 16, 8, 4)
ENOUGH = 2  # wrong cases, and right ones, that a sentence needs
MOST = 1  # sentence on an operation
Traits = dict[str, Any]  # of a case, by a name in words
Holds = Callable[[Traits], bool]
WORDS = {
    "s0": "the first source", "s1": "the second source", "s2": "the third source", "q": "queries",
    "k": "keys", "v": "values", "m": "the mask", "y": "the result",
}  # fmt: skip


def traits(node: Node, threads: int) -> Traits:
    """Lengths, types and gaps of a node's operands."""
    facts: Traits = {"threads": threads}
    for name, tensor in node.tensors.items():
        of = WORDS.get(name, name)
        for axis, length in enumerate(tensor["ne"]):
            facts[f"ne{axis} of {of}"] = length
        facts[f"type of {of}"] = tensor["type"]
        facts[f"gaps in {of}"] = _has_gaps(tensor)
    return facts


def _has_gaps(tensor: dict[str, Any]) -> bool:
    """True where elements do not lie one behind the other in their order."""
    block = tensor.get("block", 1)
    dense = tensor["nb"][0] * (tensor["ne"][0] // block)
    for length, stride in list(zip(tensor["ne"], tensor["nb"], strict=True))[1:]:
        if length > 1 and stride != dense:
            return True
        dense *= length
    return False


def contrasts(wrong: Sequence[Traits], right: Sequence[Traits]) -> list[str]:
    """Sentences that hold for all wrong cases and for no right one."""
    if len(wrong) < ENOUGH or len(right) < ENOUGH:
        return []
    return [text for text, holds in _sentences(wrong, right) if _separates(holds, wrong, right)][:MOST]


def _separates(holds: Callable[[Traits], bool], wrong: Sequence[Traits], right: Sequence[Traits]) -> bool:
    return all(map(holds, wrong)) and not any(map(holds, right))


def _sentences(
    wrong: Sequence[Traits], right: Sequence[Traits]
) -> Iterator[tuple[str, Callable[[Traits], bool]]]:
    """All that might separate the cases, the plainest first."""
    names = [name for name in wrong[0] if all(name in facts for facts in (*wrong, *right))]
    yield "wrong only with several threads", lambda facts: facts["threads"] > 1
    for name in names:
        value = wrong[0][name]
        if name.startswith("gaps"):
            yield f"wrong only with {name}", _equal(name, True)
        elif name.startswith("type"):
            yield f"wrong only where the {name} is {value}", _equal(name, value)
    for name in ("threads", *names):
        if name.startswith(("ne", "threads")):
            yield from _lengths(name, [facts[name] for facts in right])


def _equal(name: str, value: Any) -> Holds:
    return lambda facts: bool(facts[name] == value)


def _no_multiple(name: str, step: int) -> Holds:
    return lambda facts: facts[name] % step != 0


def _lengths(name: str, right: Sequence[int]) -> Iterator[tuple[str, Callable[[Traits], bool]]]:
    low, high = min(right), max(right)
    samples = ", ".join(map(str, sorted(set(right))[:4]))
    for step in MULTIPLES:
        text = f"right where {name} is a multiple of {step} ({samples}), wrong elsewhere"
        yield text, _no_multiple(name, step)
    yield f"right up to {name} = {high}, wrong above", lambda facts: facts[name] > high
    yield f"right from {name} = {low} on, wrong below", lambda facts: facts[name] < low
