"""Tokens that end a text, by their names, and special tokens that stand in a text."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter

from .prefixes import Prefixes
from .vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary

# Names of tokens that end a turn or a text: files do not say which these are.
ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
}  # fmt: skip
PARTS = (
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
    "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>",
    "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>",
    "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>",
)  # fmt: skip
FILLS = {  # of models of code: generation ends at them too
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3: spaces behind them count
SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss: parts of the text


def ends(v: Vocabulary) -> frozenset[int]:
    """The tokens after which generation ends. Kinds of tokens become what their names say."""
    for text in (ENDS | set(PARTS) | {name for names in FILLS.values() for name in names}) & v.numbers.keys():
        v.kinds[v.numbers[text]] = CONTROL
    for text in SHOWN:
        if text in v.numbers:
            v.kinds[v.numbers[text]] = USER_DEFINED
    for role, names in FILLS.items():
        there = [v.numbers[text] for text in names if text in v.numbers]
        if there and role not in v.special:
            v.special[role] = there[0]
    numbers = {v.numbers[text] for text in ENDS & v.numbers.keys()}
    numbers |= {v.special[name] for name in ("eos", "eot", "eom", *FILLS) if name in v.special}
    texts = {v.tokens[number]: number for number in numbers}
    tool = {"<|return|>", "<|call|>"} <= texts.keys() or {"<|calls|>", "<|flush|>"} <= texts.keys()
    if tool and "<|end|>" in texts:  # there it ends a message, not the text
        numbers.discard(texts["<|end|>"])
    if "</s>" in texts and {"<|tool_response>", "<|plamo:eos|>"} & texts.keys():  # there it is a word
        numbers.discard(texts["</s>"])
        v.kinds[texts["</s>"]] = NORMAL
    return frozenset(numbers)


class Cutter:
    """Cuts a text at tokens that are taken whole: the longest ones first.

    ``strips``: whitespace behind a token is dropped, as Phi-3 wants it.
    """

    def __init__(self, v: Vocabulary, strips: bool) -> None:
        self._v, self._numbers, self._strips = v, v.numbers, strips
        self._control: Prefixes | None = None
        special = [n for n, kind in enumerate(v.kinds) if kind in (CONTROL, USER_DEFINED, UNKNOWN)]
        self._all = Prefixes(v.tokens[n] for n in special)
        self._user = Prefixes(v.tokens[n] for n in special if v.kinds[n] == USER_DEFINED)

    @property
    def first(self) -> frozenset[str]:
        """The letters that special tokens begin with."""
        return self._all.first

    def parts(self, text: str, special: bool) -> Iterator[str | int]:
        """Pieces of text and numbers of tokens, in order; ``special``: control tokens are taken too."""
        at = 0
        for start, end, token in self._taken(text, self._all if special else self._user):
            if start > at:
                yield text[at:start]
            yield self._numbers[token]
            at = end
        if at < len(text):
            yield text[at:]

    def hidden(self, text: str, mark: Callable[[str], str]) -> str:
        """A text with marks in place of the names of control tokens."""
        if self._control is None:
            kinds = zip(self._v.tokens, self._v.kinds, strict=True)
            self._control = Prefixes(t for t, kind in kinds if kind in (CONTROL, UNKNOWN) or t in SHOWN)
        pieces, at = [], 0
        for start, _, token in self._taken(text, self._control):
            pieces += [text[at:start], mark(token)]
            at = start + len(token)
        return "".join([*pieces, text[at:]])

    def _taken(self, text: str, tokens: Prefixes) -> list[tuple[int, int, str]]:
        """Starts, ends and tokens that are taken, in order; of those that overlap the longest one.

        At each place only the longest token waits, and when it finds no room, the next shorter one that does.
        """
        queue: list[tuple[int, int, str]] = []
        for start in [i for i, letter in enumerate(text) if letter in tokens.first]:
            for token in islice(tokens.at(text, start), 1):
                queue.append((-len(token.encode()), start, token))
        heapq.heapify(queue)
        taken: list[tuple[int, int, str]] = []
        while queue:
            _, start, token = heapq.heappop(queue)
            behind = bisect_right(taken, start, key=itemgetter(0))
            if behind and taken[behind - 1][1] > start:
                continue
            room = (taken[behind][0] if behind < len(taken) else len(text)) - start
            if len(token) <= room:
                taken.insert(behind, (start, self._end(text, start, token, start + room), token))
                continue
            for shorter in tokens.at(text, start):
                if len(shorter) <= room:
                    heapq.heappush(queue, (-len(shorter.encode()), start, shorter))
                    break
        return taken

    def _end(self, text: str, start: int, token: str, most: int) -> int:
        """The place behind a token, and behind the whitespace that it takes away."""
        end = start + len(token)
        if self._strips and token not in UNSTRIPPED:
            while end < most and text[end] in " \t\n\v\f\r":
                end += 1
        return end
