"""Conclusions of ``ggmlq check`` from the differences between wrong and right cases of a type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .outcome import Outcome

ENOUGH = 2  # right cases and wrong cases that a difference needs, at least
MULTIPLES = (32, 16, 8, 4)


def contrasts(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each type that has both right and wrong cases, where they differ in something."""
    names = dict.fromkeys(o.case.format.name for o in outcomes if o.verdict == "wrong")
    lines = []
    for name in names:
        cases = [o for o in outcomes if o.case.format.name == name and o.verdict in ("ok", "wrong")]
        differences = list(_differences(cases))
        if differences:
            lines.append(f"{name}: {'; '.join(differences)}.")
    return lines


def _differences(outcomes: list[Outcome]) -> Iterator[str]:
    """Traits that all wrong cases share and no right one has: layouts first, then traits within a layout."""
    layouts = dict.fromkeys(o.layout for o in outcomes if o.verdict == "wrong")
    others = {o.layout for o in outcomes} - set(layouts)
    if len(layouts) == 1 and others:
        yield f"wrong only in {next(iter(layouts)) or 'the plain layout'}"
    for layout in layouts:
        within = [o for o in outcomes if o.layout == layout]
        beside = f"{layout or 'the plain layout'} is " if len(layouts) > 1 else ""
        yield from (f"{beside}{text}" for text in _within(within))


def _within(outcomes: list[Outcome]) -> Iterator[str]:
    """The conditions on which cases of one layout are wrong."""
    wrong, right = ([o for o in outcomes if o.verdict == verdict] for verdict in ("wrong", "ok"))
    if not wrong or not right:
        return
    yield from _from_on("threads", lambda o: o.threads, wrong, right, "how rows are divided among threads")
    yield from _from_on("rows of activations", lambda o: o.case.m, wrong, right, "the kernel for many rows")
    yield from _one_block(wrong, right)
    yield from _tails(wrong, right)
    yield from _kinds(wrong, right)


def _from_on(
    name: str, size: Callable[[Outcome], int], wrong: list[Outcome], right: list[Outcome], why: str
) -> Iterator[str]:
    """A sentence where cases are wrong from a size on and right below it."""
    least, most = min(map(size, wrong)), max(map(size, right))
    if most < least and len(wrong) >= ENOUGH <= len(right):
        yield f"wrong from {least} {name} on, right up to {most}: {why}"


def _one_block(wrong: list[Outcome], right: list[Outcome]) -> Iterator[str]:
    """A sentence where cases are right with one block of K and wrong with more."""
    short = [o for o in right if _blocks(o) == 1]
    if len(short) >= ENOUGH and min(map(_blocks, wrong)) > 1:
        yield "right where K is one block: something goes wrong between blocks, or only in later ones"


def _blocks(outcome: Outcome) -> int:
    return outcome.case.k // max(outcome.case.format.block_size, 1)


def _tails(wrong: list[Outcome], right: list[Outcome]) -> Iterator[str]:
    """A sentence where cases are wrong only if N is no multiple of a number."""
    for step in MULTIPLES:
        tails = [o for o in right if o.case.n % step]
        if all(o.case.n % step for o in wrong) and not tails and len(right) >= ENOUGH <= len(wrong):
            yield f"wrong only where N is no multiple of {step}"
            return


def _kinds(wrong: list[Outcome], right: list[Outcome]) -> Iterator[str]:
    """Sentences on kinds of activations that alone are wrong, or that are always right."""
    kinds = {o.case.data for o in wrong}
    others = {o.case.data for o in right} - kinds
    if len(kinds) == 1 and "normal" in others and kinds != {"normal"}:
        yield f"wrong only with {kinds.pop()} activations"
    if "constant" in others and "normal" in kinds:
        yield (
            "right where all activations of a row are alike (constant): no term is lost, but codes or sums "
            "meet those of other places"
        )
