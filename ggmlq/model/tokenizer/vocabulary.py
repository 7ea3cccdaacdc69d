"""``Vocabulary``: a file's tokens with their kinds and scores, and the numbers of the special ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from ...base.text import short
from ...errors import GGUFError

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

    model: str  # of the tokenizer, by GGUF's name: llama, gpt2, t5
    pre: str  # the rule that cuts words, of gpt2
    tokens: list[str]
    kinds: list[int]
    scores: list[float]
    special: dict[str, int]  # bos, eos …: those that there are
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = {text: number for number, text in enumerate(self.tokens)}

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
    texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(listed(metadata, "tokens", str))]
    kinds = _for_each(metadata, "token_type", len(texts), NORMAL)
    scores = _for_each(metadata, "scores", len(texts), 0.0)
    for text, kind in zip(texts, kinds, strict=True):
        if kind == BYTE and text.startswith("<0x") and not BYTE_NAME.fullmatch(text):
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
    pre = metadata.get("tokenizer.ggml.pre")
    return Vocabulary(model, str(pre or "default"), texts, kinds, scores, special)


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
    if not whole and not all(abs(value) <= LARGEST for value in values):  # NaN compares as False
        worst = next(value for value in values if not abs(value) <= LARGEST)
        raise wrong(key, worst, "scores are finite")
    return [type(default)(value) for value in values]
