"""Types of a tokenizer's tokens for GGUF, and tokens that were added to a finished vocabulary."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..base.text import short
from ..errors import ConvertError
from .config import Config

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # as llama.cpp numbers them

SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
FRAMES = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


class Added(NamedTuple):
    """A token added to a vocabulary."""

    text: str
    special: bool


def looks_special(text: str) -> bool:
    """True for a token that looks like a control token, though its vocabulary does not say so."""
    return text in SPECIAL or any(text.startswith(a) and text.endswith(b) for a, b in FRAMES)


def spaced(text: str) -> str:
    """The text of a token with real spaces in place of sentencepiece's low lines."""
    return text.replace("\u2581", " ")


def added_tokens(config: Config, tokenizer: dict[str, Any]) -> dict[int, Added]:
    """The added tokens by number: those of tokenizer.json, then those of tokenizer_config.json."""
    tokens: dict[int, Added] = {}
    listed = tokenizer.get("added_tokens")
    for entry in listed if isinstance(listed, list) else ():
        _add(config, tokens, entry.get("id") if isinstance(entry, dict) else None, entry)
    decoder = config.beside("tokenizer_config.json").get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, dict) else ():
        _add(config, tokens, int(number) if number.isdecimal() and len(number) < 10 else None, entry)
    return tokens


def _add(config: Config, tokens: dict[int, Added], number: object, entry: Any) -> None:
    text = entry.get("content") if isinstance(entry, dict) else None
    if type(number) is not int or number < 0 or not isinstance(text, str):
        raise ConvertError(
            f"{config.folder}: an added token of its tokenizer is {short(entry)}, number {short(number)}; "
            "one has a number and a text; the file is damaged"
        )
    tokens[number] = Added(text, bool(entry.get("special")))
