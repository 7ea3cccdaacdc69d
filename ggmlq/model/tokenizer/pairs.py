"""Byte pairs: a text is cut into words, and the bytes of each are joined by the ranks of pairs."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...base.text import short
from ...errors import GGUFError, UnsupportedError
from .vocabulary import Vocabulary, listed

# --- rules that cut a text into words, by their names in tokenizer.ggml.pre ------------------
# The expressions are those of the models' own tokenizers; where llama.cpp has another one for a model, its.

SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BLANKS}"
LLAMA3 = rf"{SUFFIXES}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}"
QWEN2 = rf"{SUFFIXES}|{WORD}|\p{{N}}|{SIGNS}"
UPPER, LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s",
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}",
)
GPT4O = rf"{CASED[0] % (SUFFIXES + '?', SUFFIXES + '?')}|\p{{N}}{{1,3}}|{CASED[1]}"
TEKKEN = rf"{CASED[0] % ('', '')}|\p{{N}}|{CASED[1]}"
HAN = "[一-龥\u3040-ゟ゠-ヿ]+"
CODE = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}"
)
LINES = r"[^\n]+|[\n]+"


@dataclass(frozen=True)
class Rule:
    """The steps of a rule, and what else its name stands for."""

    steps: tuple[str, ...]
    whole_words: bool = False  # a word that is a token stays whole, whatever the ranks say
    begins: bool = False  # a text begins with the token bos unless the file says otherwise
    as_bytes: bool = True  # words are bytes; otherwise characters, with ▁ for spaces
    lines: bool = False  # runs of line breaks that are a token stay whole


_GPT2 = Rule((GPT2,))
_DIGITS = Rule((r"\p{N}", GPT2))
_LLAMA3 = Rule((LLAMA3,))
_QWEN2 = Rule((QWEN2,))
_GPT4O = Rule((GPT4O,))
_GLM = Rule((LLAMA3,), whole_words=True)
_DEEPSEEK3 = Rule((r"\p{N}{1,3}", HAN, CODE))
_BAILING = Rule((
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
))  # fmt: skip
_BLOOM = Rule((r" ?[^(\s|.,!?…。，、।۔،)]+",))
_DEFAULT = Rule((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
RULES: dict[str, Rule] = {
    "default": _DEFAULT,
    "falcon": Rule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "minicpm5": Rule(
        (r"\p{N}{1,3}", rf"{SUFFIXES}|{WORD}|\p{{N}}+|{SIGNS}"), whole_words=True
    ),
    "deepseek-coder": Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    "deepseek-v3": _DEEPSEEK3,
    "hunyuan-dense": _DEEPSEEK3,
    "joyai-llm": _DEEPSEEK3,
    "tekken": Rule((TEKKEN,), whole_words=True, begins=True),
    "qwen35": Rule((
        rf"{SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
        rf"|{BLANKS}",
    )),
    "exaone-moe": Rule((
        rf"{SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    "seed-coder": Rule((rf"{SUFFIXES}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{BLANKS}",)),
    "ufakzeka": Rule((rf"{WORD}|\p{{N}}|{SIGNS}",)),
    "viking": Rule((*_BLOOM.steps, r"\p{N}")),
    "laguna": Rule((LINES, QWEN2)),
    "gemma4": Rule((LINES,), as_bytes=False, lines=True, begins=True),
    "sarvam-moe": Rule((LINES,), as_bytes=False),
}  # fmt: skip
_SHARED = {  # names with one rule
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en": _GPT2,
    "jina-v2-code roberta-bpe mpt olmo jais exaone4 trillion granite-docling": _GPT2,
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": _DIGITS,
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Rule(
        (LLAMA3,), whole_words=True, begins=True
    ),
    "dbrx smaug-bpe chatglm-bpe": _LLAMA3,
    "glm4 glm5": _GLM,
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez grok-2 solar-open": _QWEN2,
    "gpt-4o llama4 kanana2 talkie minimax-m2": _GPT4O,
    "bailingmoe bailingmoe2 llada-moe": _BAILING,
    "poro-chat bloom gpt3-finnish": _BLOOM,
}
RULES |= {name: shared for names, shared in _SHARED.items() for name in names.split()}


def rule(name: str) -> Rule:
    """The rule of a name; an error that lists those that there are."""
    if name not in RULES:
        raise UnsupportedError(
            f"tokenizer: tokenizer.ggml.pre is {short(name)}, a rule for words that is not known here; known "
            f"are {', '.join(sorted(RULES))}; pass numbers of tokens, or change the key to the name of a "
            "rule that cuts alike (`ggmlq metadata`)"
        )
    return RULES[name]


# --- words: expressions with classes of Unicode, which Python's re lacks ---------------------
# A text is translated first: each character that is not ASCII becomes one that stands for its class, so
# that ``\p{L}`` is ``A-Za-z`` and one character more. Rules of one step that name other characters see the
# text as it is. llama.cpp divides characters into the same classes: it knows no capitals beyond ASCII.

CLASSES = "LNPMS"
STANDS_FOR = {name: chr(0xE000 + i) for i, name in enumerate(CLASSES)}  # private characters
OTHER, WHITE = "\ue00f", "\x0b"
ASCII = {
    "L": "A-Za-z", "N": "0-9", "P": r"!-#%-*,-/:;?@\[-\]_{}", "M": "", "S": r"$+<=>\^`|~",
}  # fmt: skip
WHITESPACE = {0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


class Classes(dict[int, str]):
    """A table for ``str.translate`` that fills itself: a character's class, ASCII as it is."""

    def __missing__(self, code: int) -> str:
        if code < 128:
            letter = chr(code)
        elif code in WHITESPACE:
            letter = WHITE
        else:
            letter = STANDS_FOR.get(unicodedata.category(chr(code))[0], OTHER)
        self[code] = letter
        return letter


class Whites(dict[int, str]):
    """A table that changes only whitespace beyond ASCII."""

    def __missing__(self, code: int) -> str:
        self[code] = letter = WHITE if code in WHITESPACE else chr(code)
        return letter


_classes, _whites = Classes(), Whites()


@cache
def compiled(rule: str) -> re.Pattern[str]:
    r"""A rule with ``\p{…}`` written out."""
    parts, inside, at = [], False, 0
    for match in re.finditer(r"\\p\{(\w)\w?\}|\\.|\[|\]", rule, re.DOTALL):
        parts.append(rule[at : match.start()])
        at, piece = match.end(), match.group()
        if match[1]:
            members = ASCII[match[1]] + STANDS_FOR[match[1]]
            parts.append(members if inside else f"[{members}]")
        else:
            inside = piece == "[" or (inside and piece != "]")
            parts.append(piece)
    return re.compile("".join(parts) + rule[at:], re.ASCII)


def splitter(steps: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A function that cuts a text by rules, each applied to the pieces of the one before."""

    def split(text: str) -> list[str]:
        seen = {True: text.translate(_classes), False: text.translate(_whites)}
        ends = [len(text)]
        for step in steps:
            ends = list(_cut(compiled(step), seen["\\p{" in step], ends))
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    return split


def _cut(pattern: re.Pattern[str], text: str, ends: list[int]) -> Iterator[int]:
    """Ends of the pieces: matches, and what lies between them."""
    start = 0
    for end in ends:
        at = start
        for match in pattern.finditer(text[start:end]):
            first, last = start + match.start(), start + match.end()
            if first > at:
                yield first
            if last > first:
                yield last
            at = last
        if at < end:
            yield end
        start = end


# --- pairs -----------------------------------------------------------------------------------

REMEMBERED = 1 << 22  # characters of words and tokens of them that are remembered
A_WORD = 64  # what a word takes beside these


def _letters() -> list[str]:
    """The printable character that stands for each byte: itself, or one from U+0100 on."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


LETTERS = _letters()
BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}


class Pairs:
    """The joiner of byte pairs of a vocabulary."""

    def __init__(self, v: Vocabulary, metadata: Mapping[str, Any]) -> None:
        if metadata.get("tokenizer.ggml.merges") is None:
            raise GGUFError(
                f"tokenizer: a vocabulary of pairs ({v.model}) without tokenizer.ggml.merges; it cannot be "
                "joined; convert the model again"
            )
        self.rule: Rule = rule(v.pre)
        self._v = v
        self._split = splitter(self.rule.steps)
        merges = listed(metadata, "merges", str)  # "left right": neither has a space; the first counts
        self._ranks = dict(zip(reversed(merges), reversed(range(len(merges))), strict=True))
        self._memory: dict[str, list[int]] = {}
        self._remembered = 0

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        if not self.rule.as_bytes:
            text = text.replace(" ", "▁")
        return [number for word in self._split(text) for number in self._word(word)]

    def _word(self, word: str) -> list[int]:
        numbers = self._memory.get(word)
        if numbers is None:
            numbers = self._joined(word)
            size = len(word) + len(numbers) + A_WORD
            if self._remembered + size > REMEMBERED:
                self._memory, self._remembered = {}, 0
            if size <= REMEMBERED:
                self._memory[word] = numbers
                self._remembered += size
        return numbers

    def _joined(self, word: str) -> list[int]:
        letters = "".join(LETTERS[byte] for byte in word.encode()) if self.rule.as_bytes else word
        whole = self._v.numbers.get(letters)
        if whole is not None and (self.rule.whole_words or (self.rule.lines and not letters.strip("\n"))):
            return [whole]
        numbers: list[int] = []
        for part in joined(list(letters), lambda left, right: self._ranks.get(f"{left} {right}")):
            numbers += [self._v.numbers[part]] if part in self._v.numbers else self._bytes(part)
        return numbers

    def _bytes(self, part: str) -> list[int]:
        """Tokens of single bytes; those that have none are left out, as llama.cpp does."""
        names = part if self.rule.as_bytes else [f"<0x{byte:02X}>" for byte in part.encode()]
        return [self._v.numbers[name] for name in names if name in self._v.numbers and name.isascii()]


def joined(parts: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Neighbours joined: the pair of the lowest rank first, of equal ones the left; None joins none."""
    after = [*range(1, len(parts)), -1]
    before = list(range(-1, len(parts) - 1))
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and (order := rank(parts[left], parts[right])) is not None:
            heapq.heappush(queue, (order, left, right, parts[left] + parts[right]))

    for right in range(1, len(parts)):
        offer(right - 1, right)
    while queue:
        _, left, right, text = heapq.heappop(queue)
        if not parts[left] or not parts[right] or parts[left] + parts[right] != text:
            continue  # one of both was joined to another meanwhile
        parts[left], parts[right] = text, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [part for part in parts if part]
