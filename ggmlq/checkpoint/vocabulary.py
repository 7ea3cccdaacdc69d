"""The metadata keys for a checkpoint's tokenizer: its kind, tokens, types, scores and merges.

    tokenizer.model                    sentencepiece.py: model "llama", with scores
    tokenizer.json, bytes as fallback  BPE that came from sentencepiece: model "llama" too
    tokenizer.json, otherwise          byte-level BPE: model "gpt2", with merges and the name of a
    pre-tokenizer

Each family tries some of these in its own order, as llama.cpp's converter does.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from ..base.text import short
from ..errors import ConvertError
from ..gguf import Typed
from . import pretokenizer, sentencepiece
from .config import Config
from .sizes import check_merges, check_tokens
from .special import special
from .tokens import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED, Added, added_tokens, looks_special, spaced

MODEL, TOKENS, TYPES = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
SCORES, PRE, EOT = "tokenizer.ggml.scores", "tokenizer.ggml.pre", "tokenizer.ggml.eot_token_id"
ADD_SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"
NO_SCORE = -1000.0
CODE_LLAMA, GRANITE = 32016, 49152  # lengths of vocabularies that the converter knows by them


class Tokens(NamedTuple):
    """A vocabulary in llama.cpp's terms."""

    model: str
    pre: str
    texts: list[str]
    types: list[int]
    scores: list[float] | None


def vocabulary(config: Config, pre: str | None = None) -> dict[str, Any]:
    """All metadata keys of the tokenizer; ``pre`` names the pre-tokenizer if it is not recognised."""
    arch, keys = config.family.arch, dict[str, Any]()
    if arch == "llama":
        prefix = config.beside("tokenizer_config.json").get("add_prefix_space")
        if isinstance(prefix, bool):
            keys[ADD_SPACE_PREFIX] = prefix
    tokens = _tokens(config, pre)
    keys |= {MODEL: tokens.model, PRE: tokens.pre, TOKENS: Typed(tokens.texts, "string")}
    if tokens.scores is not None:
        keys[SCORES] = Typed(tokens.scores, "float32")
    keys[TYPES] = Typed(tokens.types, "int32")
    keys |= special(config, len(tokens.texts) if tokens.scores is not None else None, tokens.model == "gpt2")
    length = config.get("vocab_size")
    if arch == "llama" and length == CODE_LLAMA:
        keys.setdefault(EOT, Typed(32010, "uint32"))
    if arch == "llama" and length == GRANITE:
        keys["tokenizer.ggml.add_bos_token"] = False
    if arch == "gemma":
        keys.setdefault(EOT, Typed(107, "uint32"))
    if tokens.scores is not None and arch in ("gemma", "gemma2", "gemma3"):
        keys[ADD_SPACE_PREFIX] = False
    return keys


def _tokens(config: Config, pre: str | None) -> Tokens:
    kinds = config.family.vocabulary
    if kinds != "gpt2" and os.path.exists(os.path.join(config.folder, "tokenizer.model")):
        return _of_pieces(config)
    if kinds == "spm":
        raise ConvertError(
            f"{config.folder}: there is no tokenizer.model, which models of {config.architecture} have; "
            "fetch it into that folder"
        )
    settings = config.beside("tokenizer.json")
    model = settings.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        lack = "there is no tokenizer.json" if not settings else "tokenizer.json has no vocabulary"
        raise ConvertError(
            f"{config.folder}: {lack}, nor a tokenizer.model; fetch the tokenizer into that folder"
        )
    if model.get("type") != "BPE":
        raise ConvertError(
            f"{config.folder}: the tokenizer is {short(model.get('type'))}; known are BPE and "
            "sentencepiece's tokenizer.model; convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    texts = _by_id(config, model["vocab"])
    if isinstance(model.get("merges"), list):
        check_merges(config, len(model["merges"]), model["vocab"])
    added = added_tokens(config, settings)
    if kinds == "llama" and model.get("byte_fallback"):
        return _of_fallback(config, texts, added)
    return _byte_level(config, settings, texts, added, pre)


def _by_id(config: Config, vocab: dict[str, Any]) -> dict[int, str]:
    for text, number in vocab.items():
        if type(number) is not int or number < 0:
            raise ConvertError(
                f"{config.folder}: tokenizer.json gives the token {short(text)} the number {short(number)}; "
                "numbers are 0 and up; the file is damaged"
            )
    return {number: text for text, number in vocab.items()}


def _byte_level(
    config: Config, settings: dict[str, Any], texts: dict[int, str], added: dict[int, Added], pre: str | None
) -> Tokens:
    """The vocabulary of byte-level BPE."""
    token_texts = texts | {number: token.text for number, token in added.items()}
    length = config.maybe_count("vocab_size")
    length = max(token_texts, default=-1) + 1 if length is None else length
    _check_length(config, token_texts, length)
    check_tokens(config, length)
    listed, types = [], []
    for number in range(length):
        if number not in token_texts:
            listed.append(f"[PAD{number}]")
            types.append(UNUSED)
        elif number not in added:
            listed.append(token_texts[number])
            types.append(NORMAL)
        else:
            control = added[number].special or looks_special(token_texts[number])
            listed.append(token_texts[number] if control else spaced(token_texts[number]))
            types.append(CONTROL if control else USER_DEFINED)
    hint = config.beside("tokenizer_config.json").get(pretokenizer.HINT)
    name = pre or (hint if hint in pretokenizer.ALL else pretokenizer.name_of(config.folder, settings))
    return Tokens("gpt2", name, listed, types, None)


def _check_length(config: Config, token_texts: dict[int, str], length: int) -> None:
    last = max(token_texts, default=-1)
    if last >= length:
        raise ConvertError(
            f"{config.folder}: the tokenizer has token {last} ({short(token_texts[last])}), config.json says "
            f"vocab_size {length}; every token needs a row; the two files are of different models"
        )


def _of_fallback(config: Config, texts: dict[int, str], added: dict[int, Added]) -> Tokens:
    """BPE with bytes as <0x41>: what transformers makes of a sentencepiece model."""
    settings = config.beside("tokenizer_config.json")
    names = {token.text for token in added.values() if token.special}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = settings.get(key)
        names.add(str(token.get("content") if isinstance(token, dict) else token))
    base = sorted(texts)
    if base != list(range(len(base))):
        raise ConvertError(
            f"{config.folder}: tokenizer.json numbers its {len(base)} tokens with gaps; they run from 0 up; "
            "the file is damaged"
        )
    listed = [texts[number] for number in base]
    types = [
        BYTE if re.fullmatch("<0x[0-9A-Fa-f]{2}>", t) else CONTROL if t in names else NORMAL for t in listed
    ]
    for number in sorted(added):
        if number >= len(base):
            listed.append(added[number].text)
            types.append(CONTROL if added[number].text in names else USER_DEFINED)
    return Tokens("llama", "default", listed, types, [NO_SCORE] * len(listed))


def _of_pieces(config: Config) -> Tokens:
    """sentencepiece, with what was added to it later."""
    path = os.path.join(config.folder, "tokenizer.model")
    pieces = sentencepiece.pieces(path)
    length = config.maybe_count("vocab_size") or len(pieces)
    check_tokens(config, length)
    texts = [f"[PAD{number}]" for number in range(length)]
    scores, types = [-10000.0] * length, [UNUSED] * length
    for number, piece in enumerate(pieces[:length]):
        texts[number], scores[number], types[number] = piece.text, piece.score, piece.type
    old = config.beside("added_tokens.json")
    for text, number in old.items():
        if type(number) is int and 0 <= number < length:
            texts[number], scores[number], types[number] = text, NO_SCORE, USER_DEFINED
    for number, token in added_tokens(config, {}).items():
        if number < length:
            control = token.special or looks_special(token.text)
            texts[number] = token.text if control else spaced(token.text)
            scores[number], types[number] = NO_SCORE, CONTROL if control else USER_DEFINED
    return Tokens("llama", "default", texts, types, scores)
