"""The name of the rule by which a byte-level BPE tokenizer cuts a text into words: ``tokenizer.ggml.pre``.

llama.cpp knows these rules by name. To find the name, its converter tokenizes one text that is hard to cut
and hashes the numbers, which recognises a vocabulary. This module does the same, with the converter's
own hashes. For a vocabulary without a hash, a fine-tuned or a small one, the rule in
tokenizer.json gives the name, since the name stands for that rule. If neither helps, that is an error.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from typing import Any

from ..errors import ConvertError

# --- a small, slow tokenizer, with which one text is hashed ----------------------------------
# Rules are regular expressions with classes of Unicode, which Python's ``re`` lacks. A class is written out
# as those characters of the text that are in it, which for that text is exact.

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD")
MOST_PATTERN = 4096  # characters
MOST_REPEATED = 2  # without end, in a branch of a pattern: the time grows with that power of the text


class UnknownStep(Exception):
    """The error for a step of a tokenizer that is not known here; its text describes the step."""


def encode(tokenizer: dict[str, Any], text: str) -> list[int]:
    """The tokens of a text, with the tokens that the post-processor puts around it."""
    model = tokenizer["model"]
    vocab = model["vocab"]
    ranks = {_pair(merge): i for i, merge in enumerate(model.get("merges") or [])}
    numbers: list[int] = []
    for part, token in _apart(tokenizer, text):
        if token is not None:
            numbers.append(token)
            continue
        for word in _words(tokenizer, _normalized(tokenizer.get("normalizer"), part)):
            whole = vocab.get(word) if model.get("ignore_merges") else None
            for piece in [word] if whole is not None else _merged(list(word), ranks):
                if piece not in vocab:
                    raise UnknownStep(f"the vocabulary lacks the byte {piece!r}")
                numbers.append(vocab[piece])
    before, after = _around(tokenizer)
    return before + numbers + after


def steps_in(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of the pre-tokenizer: Split, Digits and ByteLevel."""
    part = tokenizer.get("pre_tokenizer")
    several = (
        part.get("pretokenizers") if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    )
    if not isinstance(several, list) or not several:
        raise UnknownStep("it has no pre-tokenizer")
    for one in several:
        kind = one.get("type") if isinstance(one, dict) else None
        if kind not in ("Split", "Digits", "ByteLevel"):
            raise UnknownStep(f"it has a step {kind!r}")
    return several


def pattern(one: dict[str, Any]) -> str:
    """The regular expression of a split."""
    part = one.get("pattern")
    if isinstance(part, dict) and isinstance(part.get("Regex"), str):
        text: str = part["Regex"]
    elif isinstance(part, dict) and isinstance(part.get("String"), str):
        text = re.escape(part["String"])
    else:
        raise UnknownStep("a split without a pattern")
    if len(text) > MOST_PATTERN:
        raise UnknownStep(f"a pattern of {len(text)} characters")
    return text


def _apart(tokenizer: dict[str, Any], text: str) -> Iterator[tuple[str, int | None]]:
    """The text cut at added tokens that are in it."""
    added = [
        (entry["content"], entry["id"])
        for entry in tokenizer.get("added_tokens") or []
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and entry["content"] in text
    ]
    if not added:
        yield text, None
        return
    ids = dict(added)
    cut = re.compile(
        "(" + "|".join(re.escape(content) for content in sorted(ids, key=len, reverse=True)) + ")"
    )
    for part in cut.split(text):
        if part:
            yield part, ids.get(part)


def _normalized(normalizer: Any, text: str) -> str:
    if normalizer is None:
        return text
    kind = normalizer.get("type") if isinstance(normalizer, dict) else None
    if kind in NORMALIZERS:
        return unicodedata.normalize(kind, text)
    if kind == "Sequence" and isinstance(normalizer.get("normalizers"), list):
        for one in normalizer["normalizers"]:
            text = _normalized(one, text)
        return text
    raise UnknownStep(f"it has a normalizer {kind!r}")


def _words(tokenizer: dict[str, Any], text: str) -> list[str]:
    """The words of a text, their bytes as the characters that stand for them."""
    words, as_bytes = [text], False
    for one in steps_in(tokenizer):
        if one["type"] == "ByteLevel":
            if one.get("add_prefix_space", True):
                words = [word if word.startswith(" ") else " " + word for word in words]
            if one.get("use_regex", True):
                words = [part for word in words for part in _split(WORDS, word)]
            words = ["".join(LETTER[byte] for byte in word.encode()) for word in words]
            as_bytes = True
        elif one["type"] == "Digits":
            rule = r"\p{N}" if one.get("individual_digits") else r"\p{N}+"
            words = [part for word in words for part in _split(rule, word)]
        else:
            removed = str(one.get("behavior")).lower() == "removed" and not one.get("invert")
            words = [part for word in words for part in _split(pattern(one), word, removed)]
    if not as_bytes:
        raise UnknownStep("it has no step ByteLevel")
    return words


def _split(rule: str, text: str, removed: bool = False) -> Iterator[str]:
    """The matches and what lies between them."""
    _check_quick(rule)
    try:
        compiled = re.compile(_written_out(rule, text))
    except re.error as error:
        raise UnknownStep(f"a pattern that Python does not read ({error})") from None
    at = 0
    for match in compiled.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        if match.group() and not removed:
            yield match.group()
        at = match.end()
    if at < len(text):
        yield text[at:]


def _check_quick(rule: str) -> None:
    """Refuse a pattern that may never end on a short text: repetition within groups, or often in a branch."""
    depth = count = 0
    inside = False
    for part in re.finditer(r"\\p\{\w+\}|\\.|.", rule, re.DOTALL):
        piece = part.group()
        if inside:
            inside = piece != "]"
        elif piece == "[":
            inside = True
        elif piece in "()":
            depth += 1 if piece == "(" else -1
        elif piece == "|" and depth == 0:
            count = 0
        elif piece in "*+" or (piece == "{" and re.match(r"\{\d*,\}", rule[part.start() :])):
            count += 1
            if depth or count > MOST_REPEATED or rule[part.start() - 1 : part.start()] == ")":
                raise UnknownStep("a pattern that may take for ever")


def _written_out(rule: str, text: str) -> str:
    """Classes of Unicode as the characters of a text that are in them."""
    parts, inside, at = [], False, 0
    for part in re.finditer(r"\\p\{(\w+)\}|\\.|\[|\]", rule, re.DOTALL):
        parts.append(rule[at : part.start()])
        at, piece = part.end(), part.group()
        if part[1]:
            members = "".join(sorted({c for c in text if unicodedata.category(c).startswith(part[1])}))
            listed = "".join(f"\\U{ord(c):08x}" for c in members) or r"\U0010ffff"
            parts.append(listed if inside else f"[{listed}]")
        else:
            inside = piece == "[" or (inside and piece != "]")
            parts.append(piece)
    return "".join(parts) + rule[at:]


def _merged(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Neighbours joined, those of the lowest rank first."""
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        merged, at = [], 0
        while at < len(parts):
            joined = tuple(parts[at : at + 2]) == best
            merged.append("".join(best) if joined else parts[at])
            at += 1 + joined
        parts = merged
    return parts


def _pair(merge: Any) -> tuple[str, str]:
    pair = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise UnknownStep("a merge that is no pair")
    return pair[0], pair[1]


def _around(tokenizer: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The tokens that the post-processor puts before and after a text."""
    part = tokenizer.get("post_processor")
    several = part.get("processors", [part]) if isinstance(part, dict) else []
    before: list[int] = []
    after: list[int] = []
    for one in several if isinstance(several, list) else []:
        kind = one.get("type") if isinstance(one, dict) else None
        if kind not in ("TemplateProcessing", "ByteLevel"):
            raise UnknownStep(f"it has a post-processor {kind!r}")
        side = before
        for element in one.get("single") or []:
            if "Sequence" in element:
                side = after
            else:
                side += one["special_tokens"][element["SpecialToken"]["id"]]["ids"]
    return before, after


def _letters() -> list[str]:
    """The printable character that stands for each byte: itself, or one from U+0100 on."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


LETTER = _letters()


# --- rules and their names -------------------------------------------------------------------

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
LOWER, UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
# The steps that tokenizer.json states, and the name of their rule.
RULES = {
    (("split", f"{CONTRACTIONS}|{LETTERS}|\\p{{N}}{{1,3}}|{REST}"),): "llama-bpe",
    (("split", f"{CONTRACTIONS}|{LETTERS}|\\p{{N}}|{REST}"),): "qwen2",
    (("split", TEKKEN),): "tekken",
    (("words",),): "gpt-2",
    (("digits",), ("words",)): "smollm",
}
# Further names of these rules, of other vocabularies.
LIKE = {
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez grok-2 solar-open",
    "gpt-2": "phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum jina-v2-code mpt olmo jais "
    "exaone4 trillion granite-docling",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
}
NAMES = {name: steps for steps, name in RULES.items()}
ALL = NAMES | {name: NAMES[rule] for rule, names in LIKE.items() for name in names.split()}
BEGINNING = ("tekken", "llama-bpe", *LIKE["llama-bpe"].split())  # rules of models whose texts begin with bos
WHOLE = BEGINNING  # rules under which a word that is a token stays whole
HINT = "ggml_pre"  # in tokenizer_config.json, as back.py writes it: a name that the rule does not give
UNSEEN = "llama.cpp has a name for every rule that it knows; say it with --pre, such as --pre llama-bpe"


@cache
def _known() -> dict[str, Any]:
    table = json.loads(files(__package__).joinpath("pretokenizers.json").read_text())
    return {
        "text": table["text"],
        "names": {h: name for name, hashes in table["names"].items() for h in hashes},
    }


def name_of(folder: str, tokenizer: dict[str, Any]) -> str:
    """The name; ConvertError with the hash and the rule where nothing knows it."""
    number, reason = "", ""
    name = None
    try:
        name = by_rule(tokenizer)
        number = fingerprint(tokenizer)
    except UnknownStep as error:
        reason = f"; {error}"
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # a number where a list belongs, and the like
        reason = "; its parts are not what a tokenizer has"
    name = _known()["names"].get(number) or name
    if name is None:
        raise ConvertError(
            f"{folder}: the pre-tokenizer of tokenizer.json is unknown: its rule is {_shown(tokenizer)}, its "
            f"hash {number or 'not known'}{reason}; {UNSEEN}"
        )
    return str(name)


def steps_of(name: str) -> list[dict[str, Any]]:
    """The steps of tokenizer.json for a rule."""
    if name not in ALL:
        raise ConvertError(
            f"{name!r} is the name of its rule, and those with steps for tokenizer.json are {', '.join(ALL)}"
        )
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[dict[str, Any]] = []
    for kind, *pattern in ALL[name]:
        if kind == "split":
            regex = {"Regex": pattern[0]}
            steps.append({"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False})
        elif kind == "digits":
            steps.append({"type": "Digits", "individual_digits": True})
    return [*steps, whole | {"use_regex": ALL[name][-1] == ("words",)}]


def fingerprint(tokenizer: dict[str, Any]) -> str:
    """The converter's hash of a tokenizer."""
    return sha256(str(encode(tokenizer, _known()["text"])).encode()).hexdigest()


def by_rule(tokenizer: dict[str, Any]) -> str | None:
    """The name of the rule that a tokenizer states."""
    try:
        steps = tuple(_step(one) for one in steps_in(tokenizer))
    except UnknownStep:
        return None
    return RULES.get(tuple(step for step in steps if step[0] != "bytes"))


def _step(one: dict[str, Any]) -> tuple[str, ...]:
    kind = one["type"]
    if kind == "Split":
        if str(one.get("behavior")).lower() not in ("isolated", "removed"):
            raise UnknownStep("a split that merges")
        return "split", pattern(one)
    if kind == "Digits":
        return ("digits",) if one.get("individual_digits") else ("runs of digits",)
    return ("words",) if one.get("use_regex", True) else ("bytes",)


def _shown(tokenizer: dict[str, Any]) -> str:
    return json.dumps(tokenizer.get("pre_tokenizer"))[:300]
