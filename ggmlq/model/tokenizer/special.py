"""Tokens that end a text, by their names, and special tokens that stand in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
        self._numbers, self._strips = v.numbers, strips
        special = [n for n, kind in enumerate(v.kinds) if kind in (CONTROL, USER_DEFINED, UNKNOWN)]
        self._all = self._longest_first(v, special)
        self._user = self._longest_first(v, [n for n in special if v.kinds[n] == USER_DEFINED])

    @staticmethod
    def _longest_first(v: Vocabulary, numbers: list[int]) -> list[re.Pattern[str]]:
        """Tokens by length, those of one length as one expression."""
        by_length: dict[int, list[str]] = {}
        for number in numbers:
            by_length.setdefault(len(v.tokens[number].encode()), []).append(v.tokens[number])
        lengths = sorted(by_length, reverse=True)
        return [re.compile("|".join(map(re.escape, by_length[length]))) for length in lengths]

    def parts(self, text: str, special: bool) -> Iterator[str | int]:
        """Pieces of text and numbers of tokens, in order; ``special``: control tokens are taken too."""
        pieces: list[str | int] = [text] if text else []
        for pattern in self._all if special else self._user:
            if any(isinstance(piece, str) and pattern.search(piece) for piece in pieces):
                pieces = [part for piece in pieces for part in self._cut(piece, pattern)]
        yield from pieces

    def _cut(self, piece: str | int, pattern: re.Pattern[str]) -> Iterator[str | int]:
        if isinstance(piece, int):
            yield piece
            return
        at = 0
        for match in pattern.finditer(piece):
            if match.start() > at:
                yield piece[at : match.start()]
            yield self._numbers[match.group()]
            at = match.end()
            if self._strips and match.group() not in UNSTRIPPED:
                at += len(piece) - at - len(piece[at:].lstrip(" \t\n\v\f\r"))
        if at < len(piece):
            yield piece[at:]
