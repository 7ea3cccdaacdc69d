"""``Vocabulary``: a file's tokens with their kinds and scores, and the numbers of the special ones."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Integral, Real
from operator import itemgetter
from typing import Any

import numpy as np

from ...base.text import short
from ...errors import GGUFError

# --- the tokens that a text goes on with at a place, found in sorted order -------------------
# All tokens that a text begins with begin each other, so they are a chain: the longest of them is found by
# bisection, and each token knows the next shorter one that it begins with. A step takes no longer than the
# longest token, and a vocabulary takes two numbers a token, where a tree of letters takes hundreds of
# bytes.

LONGEST = 1024  # characters of a token that is looked for in a text; real ones have up to some 256


class Prefixes:
    """Tokens, to be found where a text goes on with them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted(set(tokens))
        self._longest = max(map(len, self._tokens), default=0)
        if self._longest > LONGEST:
            raise GGUFError(
                f"tokenizer: a token has {self._longest:,} characters; tokens that are looked for in a text "
                f"have at most {LONGEST:,}; the file is damaged; pass numbers of tokens"
            )
        self.first = frozenset(token[0] for token in self._tokens)  # letters that tokens begin with
        self._shorter = [-1] * len(self._tokens)  # by position: the longest other token that it begins with
        chain: list[int] = []
        for i, token in enumerate(self._tokens):
            while chain and not token.startswith(self._tokens[chain[-1]]):
                chain.pop()
            self._shorter[i] = chain[-1] if chain else -1
            chain.append(i)

    def at(self, text: str, start: int) -> Iterator[str]:
        """The tokens that a text goes on with at a place, the longest first."""
        if text[start] not in self.first:
            return
        i = bisect_right(self._tokens, text[start : start + self._longest]) - 1
        while i >= 0 and not text.startswith(self._tokens[i], start):
            i = self._shorter[i]
        while i >= 0:
            yield self._tokens[i]
            i = self._shorter[i]


# --- the vocabulary --------------------------------------------------------------------------

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # as GGUF numbers them
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "fim_pad", "fim_rep", "fim_sep")
BYTE_NAME = re.compile("<0x[0-9A-Fa-f]{2}>")
LARGEST = float(np.finfo(np.float32).max)
# Tokens that a kind of tokenizer has where the file does not say.
DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}


@dataclass
class Vocabulary:
    """Tokens by number, and numbers by token."""

    model: str  # of the tokenizer, by GGUF's name: llama, gpt2, gemma4, t5
    pre: str  # the rule that cuts words, of pairs
    tokens: list[str]
    kinds: list[int]
    scores: list[float]
    special: dict[str, int]  # bos, eos …: those that there are
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = dict(zip(self.tokens, range(len(self.tokens)), strict=True))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def unknown(self) -> int:
        """The token for what no token stands for; the first one where there is none."""
        return self.special.get("unknown", 0)


def vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a file; GGUFError where it has none, or a damaged one."""
    model, tokens = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "tokens"))
    if not isinstance(model, str) or model in ("none", "no_vocab") or tokens is None:
        raise GGUFError(
            f"tokenizer: the file has {'none' if model is None else f'the model {short(model)}'} and "
            f"{'no tokens' if tokens is None else 'tokens'}; a text needs both; pass numbers of tokens"
        )
    texts = listed(metadata, "tokens", str)
    if "" in texts:
        texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(texts)]
    kinds = _for_each(metadata, "token_type", len(texts), NORMAL)
    scores = _for_each(metadata, "scores", len(texts), 0.0)
    for text in (texts[number] for number in of_kinds(kinds, BYTE)):
        if text.startswith("<0x") and not BYTE_NAME.fullmatch(text):
            raise wrong("tokens", text, "a token of the kind of bytes is <0x00> to <0xFF>")
    special = {name: n for name, n in DEFAULTS.get(model, {}).items() if n < len(texts)}
    for name in SPECIAL:
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is None:
            continue
        if not isinstance(number, Integral):
            raise wrong(f"{name}_token_id", number, "it is the number of a token")
        if 0 <= int(number) < len(texts):
            special[name] = int(number)
    pre = model if model == "gemma4" else str(metadata.get("tokenizer.ggml.pre") or "default")
    return Vocabulary(model, pre, texts, kinds, scores, special)


def flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """A setting of the tokenizer that is on or off."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is not None and not isinstance(value, Integral):
        raise wrong(key, value, "it is true or false")
    return default if value is None else bool(value)


def listed(metadata: Mapping[str, Any], key: str, of: type) -> list[Any]:
    """A list of the tokenizer, each of whose values has a type; of none where there is no such key."""
    values = metadata.get(f"tokenizer.ggml.{key}", ())
    if isinstance(values, str | bytes) or not (isinstance(values, Sequence) or np.ndim(values) == 1):
        raise wrong(key, values, "it is a list")
    values = list(values)
    for kind in set(map(type, values)):
        if not issubclass(kind, of):
            value = next(value for value in values if type(value) is kind)
            raise wrong(key, value, "each value of it is a text" if of is str else "each value is a number")
    return values


def wrong(key: str, value: object, rule: str) -> GGUFError:
    """The error for a value of the tokenizer's that breaks a rule."""
    return GGUFError(
        f"tokenizer: tokenizer.ggml.{key} is or has {short(value)}; {rule}; the file is damaged; pass "
        "numbers of tokens"
    )


def _for_each(metadata: Mapping[str, Any], key: str, length: int, default: Any) -> list[Any]:
    """A number for each token: whole ones if the default is one, else finite floats of 32 bits."""
    if metadata.get(f"tokenizer.ggml.{key}") is None:
        return [default] * length
    whole = isinstance(default, int)
    values = listed(metadata, key, Integral if whole else Real)
    if len(values) != length:
        raise GGUFError(
            f"tokenizer: there are {length} tokens and {len(values)} of tokenizer.ggml.{key} "
            f"({short(values)}); each token has one; the file is damaged"
        )
    if not whole and not (np.abs(np.array(values, np.float64)) <= LARGEST).all():  # NaN compares as False
        worst = next(value for value in values if not abs(value) <= LARGEST)
        raise wrong(key, worst, "scores are finite")
    return list(map(type(default), values))


def of_kinds(kinds: list[int], *wanted: int) -> list[int]:
    """The tokens of some kinds."""
    numbers: list[int] = np.flatnonzero(np.isin(np.array(kinds), wanted)).tolist()
    return numbers


# --- tokens that end a text, and special tokens that stand in a text -------------------------

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


def ending(v: Vocabulary) -> frozenset[int]:
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
        special = of_kinds(v.kinds, CONTROL, USER_DEFINED, UNKNOWN)
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
