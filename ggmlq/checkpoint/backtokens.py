"""Writes a GGUF file's tokenizer as Hugging Face keeps it: the way back of vocabulary.py.

    "gpt2"    tokenizer.json: byte-level BPE with the file's merges, and the steps of its rule
    "llama"   tokenizer.model, which vocabulary.py reads; and for transformers tokenizer.json, with the merges
              that the scores stand for

Beside them lie tokenizer_config.json (names of special tokens, chat templates) and generation_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConvertError
from . import pretokenizer, sentencepiece
from .general import SAMPLING
from .sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, looks_special
from .vocabulary import ADD_SPACE_PREFIX, KEYS, MODEL, PRE, SCORES, TOKENS, TYPES

FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json")
TEMPLATE = "tokenizer.chat_template"
SPECIAL = (CONTROL, UNKNOWN)
ENDS = ("eos", "eot", "eom")
SPACE = "\u2581"  # sentencepiece's


@dataclass
class Written:
    """The contents of the files by name, JSON or bytes, and what a user should know of."""

    files: dict[str, Any]
    notes: list[str]


@dataclass
class Words:
    """A vocabulary as the file has it."""

    metadata: Mapping[str, Any]
    model: str
    texts: list[str]
    types: list[int]
    scores: list[float]

    def special(self, kind: str) -> int | None:
        """The number of a special token; None where there is none."""
        number = self.metadata.get(f"tokenizer.ggml.{KEYS[kind]}") if KEYS[kind] else None
        return number if type(number) is int and 0 <= number < len(self.texts) else None

    def adds(self, kind: str) -> bool:
        """True where a special token is put around a text; bos of "llama" if the file does not say."""
        begins = self.model == "llama" or self.metadata.get(PRE) in pretokenizer.BEGINNING
        return bool(self.metadata.get(f"tokenizer.ggml.add_{kind}_token", kind == "bos" and begins))


def tokenizer(metadata: Mapping[str, Any], pieces: bool = True) -> Written:
    """The files of a tokenizer; a note instead where it is of a kind that cannot be written.

    ``pieces``: tokenizer.model, too, where tokenizer.json says the same.
    """
    try:
        words = _words(metadata)
        files = _byte_level(words) if words.model == "gpt2" else _pieces(words, pieces)
    except ConvertError as error:
        way = "take its files from the model that this one came from"
        return Written({}, [f"the tokenizer is not written: {error}; {way}"])
    notes = _lost(words)
    files["tokenizer_config.json"] = _settings(words, "tokenizer.json" in files)
    files["generation_config.json"] = _generation(words)
    return Written(files, notes)


def numbers(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of special tokens, as config.json has them."""
    keys = {kind: f"tokenizer.ggml.{key}" for kind, key in KEYS.items() if key and kind not in ENDS[1:]}
    return {f"{kind}_token_id": metadata[key] for kind, key in keys.items() if key in metadata}


def _words(metadata: Mapping[str, Any]) -> Words:
    model, texts = metadata.get(MODEL), metadata.get(TOKENS)
    if model not in ("gpt2", "llama") or texts is None:
        raise ConvertError(f"{MODEL} is {model!r}, and gpt2 and llama are known, with tokens")
    listed = [str(text) for text in texts]
    types = [int(kind) for kind in metadata.get(TYPES) or [NORMAL] * len(listed)]
    scores = [float(score) for score in metadata.get(SCORES) or [0.0] * len(listed)]
    if not len(listed) == len(types) == len(scores):
        raise ConvertError(f"it has {len(listed)} tokens, {len(types)} types and {len(scores)} scores")
    return Words(metadata, model, listed, types, scores)


def _lost(words: Words) -> list[str]:
    """Notes on what the files cannot say."""
    known = (NORMAL, CONTROL, USER_DEFINED, *((UNKNOWN, UNUSED, BYTE) if words.model == "llama" else ()))
    changed = [
        number
        for number, (text, kind) in enumerate(zip(words.texts, words.types, strict=True))
        if (kind not in known and text != f"[PAD{number}]") or (kind == USER_DEFINED and looks_special(text))
    ]
    notes = []
    if changed:
        notes.append(
            f"{len(changed)} tokens, {words.texts[changed[0]]!r} first, have types that the files of a "
            "tokenizer cannot say; they come back as normal or special ones"
        )
    turn = [key for kind in ENDS[1:] if (key := f"tokenizer.ggml.{KEYS[kind]}") in words.metadata]
    if turn and words.metadata.get("general.architecture") != "gemma":  # which has its own by conversion
        notes.append(f"{' and '.join(turn)}: in generation_config.json, from which no key comes back")
    return notes


# --- tokenizer.json and tokenizer.model ----------------------------------------------------------


def _byte_level(words: Words) -> dict[str, Any]:
    name = words.metadata.get(PRE)
    merges = words.metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise ConvertError("there are no merges")
    vocab = _vocab(words, [n for n, text in enumerate(words.texts) if not _is_hole(words, n, text)])
    if vocab is None:
        raise ConvertError("two of its tokens have one text, which tokenizer.json cannot say")
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": name in pretokenizer.WHOLE, "vocab": vocab, "merges": list(map(str, merges)),
    }  # fmt: skip
    keys = {
        key: {"type": kind}
        for key, kind in (("lowercase", "Lowercase"), ("strip_accents", "StripAccents"))
        if words.metadata.get(f"tokenizer.ggml.normalizer.{key}")
    }
    normalizer = {"type": "Sequence", "normalizers": list(keys.values())} if keys else None
    steps = {"type": "Sequence", "pretokenizers": pretokenizer.steps_of(str(name))}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {"tokenizer.json": _json(words, model, normalizer, steps, decoder)}


def _is_hole(words: Words, number: int, text: str) -> bool:
    """True for a number that no token has, for which conversion made one up."""
    return words.types[number] == UNUSED and text == f"[PAD{number}]"


def _vocab(words: Words, numbers: list[int]) -> dict[str, int] | None:
    """Numbers by text; None where two tokens have one text."""
    vocab = {words.texts[number]: number for number in numbers}
    return vocab if len(vocab) == len(numbers) else None


def _pieces(words: Words, both: bool) -> dict[str, Any]:
    vocab = _vocab(words, list(range(len(words.texts))))
    joined = {score for score, kind in zip(words.scores, words.types, strict=True) if kind == NORMAL}
    if vocab is None or len(joined) < 2:  # scores that say nothing: no order of merges
        return _sentencepiece(words)
    unknown = words.special("unk")
    model = {
        "type": "BPE", "dropout": None, "unk_token": None if unknown is None else words.texts[unknown],
        "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
        "byte_fallback": BYTE in words.types, "ignore_merges": False, "vocab": vocab,
        "merges": _merges(words, vocab),
    }  # fmt: skip
    prefix = _has_prefix(words)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, *after,
    ]}  # fmt: skip
    normalizer = {"type": "Sequence", "normalizers": [*before, replace]}
    files = _sentencepiece(words) if both else {}
    return files | {"tokenizer.json": _json(words, model, normalizer, None, decoder)}


def _has_prefix(words: Words) -> bool:
    return words.metadata.get(ADD_SPACE_PREFIX) is not False


def _sentencepiece(words: Words) -> dict[str, Any]:
    pieces = [
        sentencepiece.Piece(text, score, NORMAL if kind == USER_DEFINED else kind)
        for text, score, kind in zip(words.texts, words.scores, words.types, strict=True)
    ]
    named = {f"{kind}_id": words.special(kind) for kind in ("unk", "bos", "eos", "pad")}
    return {"tokenizer.model": sentencepiece.packed(pieces, _has_prefix(words), named)}


def _merges(words: Words, vocab: dict[str, int]) -> list[list[str]]:
    """All pairs of tokens whose joint text is a token, that of the best score first."""
    pairs = []
    for text, number in vocab.items():
        if words.types[number] == NORMAL:
            halves = ((text[:at], text[at:]) for at in range(1, len(text)))
            there = [pair for pair in halves if pair[0] in vocab and pair[1] in vocab]
            there.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
            pairs += [(words.scores[number], pair) for pair in there]
    pairs.sort(key=lambda scored: -scored[0])
    return [list(pair) for _, pair in pairs]


def _json(words: Words, model: Any, normalizer: Any, steps: Any, decoder: Any) -> dict[str, Any]:
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": _added(words),
        "normalizer": normalizer, "pre_tokenizer": steps, "post_processor": _around(words),
        "decoder": decoder, "model": model,
    }  # fmt: skip


def _added(words: Words) -> list[dict[str, Any]]:
    return [
        {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": words.types[number] in SPECIAL}
        for number, text in enumerate(words.texts) if words.types[number] in (*SPECIAL, USER_DEFINED)
    ]  # fmt: skip


def _around(words: Words) -> dict[str, Any] | None:
    """The step that puts bos and eos around a text; None where neither is."""
    around = {kind: words.special(kind) if words.adds(kind) else None for kind in ("bos", "eos")}
    ids = {words.texts[number]: number for number in around.values() if number is not None}
    if not ids:
        return None
    first, last = (
        [{"SpecialToken": {"id": words.texts[number], "type_id": 0}}] if number is not None else []
        for number in around.values()
    )
    a, b = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
    special = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in ids.items()}
    return {
        "type": "TemplateProcessing", "single": [*first, a, *last], "pair": [*first, a, b, *last],
        "special_tokens": special,
    }  # fmt: skip


# --- tokenizer_config.json and generation_config.json ---------------------------------------------


def _settings(words: Words, is_fast: bool) -> dict[str, Any]:
    """Names of special tokens, what is put around a text, chat templates."""
    kind = "PreTrainedTokenizerFast" if is_fast else "LlamaTokenizer"
    settings: dict[str, Any] = {"tokenizer_class": kind, "clean_up_tokenization_spaces": False}
    for kind in KEYS:
        if kind not in ENDS[1:] and (number := words.special(kind)) is not None:
            settings[f"{kind}_token"] = words.texts[number]
    for kind in ("bos", "eos", "sep"):
        adds = words.metadata.get(f"tokenizer.ggml.add_{kind}_token")
        if isinstance(adds, bool):
            settings[f"add_{kind}_token"] = adds
    if isinstance(prefix := words.metadata.get(ADD_SPACE_PREFIX), bool):
        settings["add_prefix_space"] = prefix
    if words.model == "llama":  # what pieces of tokenizer.model cannot be
        settings["added_tokens_decoder"] = {
            str(entry["id"]): {key: value for key, value in entry.items() if key != "id"}
            for entry in _added(words)
            if words.types[entry["id"]] == USER_DEFINED
        }
    elif (name := str(words.metadata[PRE])) not in pretokenizer.NAMES:
        settings[pretokenizer.HINT] = name
    templates = {
        key.removeprefix(TEMPLATE).removeprefix(".") or "default": text
        for key, text in words.metadata.items()
        if key == TEMPLATE or key.startswith(TEMPLATE + ".")
    }
    if templates.keys() == {"default"}:
        settings["chat_template"] = templates["default"]
    elif templates:
        settings["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return settings


def _generation(words: Words) -> dict[str, Any]:
    """The tokens that end a text, and how llama.cpp would choose the next token."""
    ends = dict.fromkeys(number for kind in ENDS if (number := words.special(kind)) is not None)
    settings: dict[str, Any] = {
        f"{kind}_token_id": number for kind in ("bos", "pad") if (number := words.special(kind)) is not None
    }
    if ends:
        settings["eos_token_id"] = list(ends) if len(ends) > 1 else next(iter(ends))
    for name, (key, kind) in SAMPLING.items():
        value = words.metadata.get(f"general.sampling.{key}")
        if value is not None and name != "penalty_repeat":  # repetition_penalty says it
            settings[name] = float(str(np.float32(value))) if kind == "float32" else value
    if "temperature" in settings or "top_p" in settings or "top_k" in settings:
        settings["do_sample"] = True
    return settings
