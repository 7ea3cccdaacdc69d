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
import string
from typing import Any, NamedTuple

from ..base.text import short
from ..errors import ConvertError
from ..gguf import Typed
from ..safetensors import header
from . import pretokenizer, sentencepiece
from .config import Config, check_merges, check_tokens
from .sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Added,
    added_tokens,
    looks_special,
    spaced,
)

# --- special tokens, tokens around a text, merges, chat templates ----------------------------
# Where several files state a special token the first counts: its name in tokenizer_config.json, looked up
# among the added tokens of tokenizer.json; then the numbers in config.json. Tokens around a text follow
# from the post-processor of tokenizer.json, and else from tokenizer_config.json.

KEYS = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id",
    "pad": "padding_token_id", "cls": None, "mask": "mask_token_id", "eot": "eot_token_id",
    "eom": "eom_token_id",
}  # fmt: skip
KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
PUT_AROUND = ("bos", "eos", "sep")
PLAIN = frozenset(string.ascii_letters + string.digits)


class Special:
    """The special tokens read so far."""

    def __init__(self, config: Config) -> None:
        self.tokenizer = config.beside("tokenizer.json")
        self.settings = dict(config.beside("tokenizer_config.json"))
        self.kinds = list(KINDS)
        self.around: dict[str, bool] = {}
        self.ids: dict[str, int] = {}

    def name(self, kind: str) -> Any:
        """The name of a special token in tokenizer_config.json."""
        return self.settings.get(f"{kind}_token")

    def call(self, kind: str, name: Any) -> None:
        """Set the name of a special token, if there is a tokenizer_config.json."""
        if self.settings:
            self.settings[f"{kind}_token"] = name


def special(config: Config, length: int | None, with_merges: bool) -> dict[str, Any]:
    """The keys; numbers from ``length`` on (unless it is None) are no tokens."""
    tokens = Special(config)
    if tokens.tokenizer:
        try:
            _around(tokens)
        except (AttributeError, LookupError, TypeError):  # a number where a list belongs, and the like
            raise ConvertError(
                f"{config.folder}: the post_processor of tokenizer.json is "
                f"{short(tokens.tokenizer.get('post_processor'))}; it says what is put around a text; the "
                "file is damaged"
            ) from None
    for kind in tokens.kinds:
        setting = tokens.settings.get(f"add_{kind}_token")
        if isinstance(setting, bool):
            tokens.around.setdefault(kind, setting)
        _take(config, tokens, kind, _number(tokens, kind), length)
    for kind in tokens.kinds:
        _take(config, tokens, kind, _in_config(config, kind), length)
    keys: dict[str, Any] = {}
    merges = _merges(config, tokens.tokenizer) if with_merges else []
    if merges:
        keys["tokenizer.ggml.merges"] = Typed(merges, "string")
    for kind, number in tokens.ids.items():
        if KEYS[kind]:
            keys[f"tokenizer.ggml.{KEYS[kind]}"] = Typed(number, "uint32")
    keys |= {
        f"tokenizer.ggml.add_{kind}_token": tokens.around[kind]
        for kind in tokens.around
        if kind in PUT_AROUND
    }
    return keys | _templates(config, tokens.settings) | _normalizer(tokens.tokenizer.get("normalizer"))


def _take(config: Config, tokens: Special, kind: str, number: Any, length: int | None) -> None:
    if type(number) is not int or kind in tokens.ids:
        return
    if number < 0:
        raise ConvertError(
            f"{config.folder}: the {kind} token has the number {number}; numbers are 0 and up; mend it"
        )
    if length is None or number < length:
        tokens.ids[kind] = number


def _number(tokens: Special, kind: str) -> Any:
    name = tokens.name(kind)
    name = name.get("content") if isinstance(name, dict) else name
    if not isinstance(name, str):
        return None
    listed = tokens.tokenizer.get("added_tokens")
    entries = listed if isinstance(listed, list) else []
    return next((e.get("id") for e in entries if isinstance(e, dict) and e.get("content") == name), None)


def _in_config(config: Config, kind: str) -> Any:
    outer = config.raw.get(f"{kind}_token_id")
    return config.inner.get(f"{kind}_token_id") if outer is None else outer


# --- what is put around a text --------------------------------------------------------------


def _around(tokens: Special) -> None:
    if not tokens.name("bos") and tokens.name("cls"):
        tokens.call("bos", tokens.name("cls"))
    if not tokens.name("eos") and tokens.name("sep"):
        tokens.call("eos", tokens.name("sep"))
    processor = tokens.tokenizer.get("post_processor")
    if not isinstance(processor, dict):
        return
    several = processor.get("processors")
    for one in several if isinstance(several, list) else [processor]:
        kind = one.get("type") if isinstance(one, dict) else None
        if kind == "ByteLevel":
            tokens.around.setdefault("bos", False)
            tokens.around.setdefault("eos", False)
        elif kind == "TemplateProcessing":
            _template(tokens, one)


def _template(tokens: Special, one: dict[str, Any]) -> None:
    single, pair = (
        [_special_id(e) for e in one.get(k) or [] if isinstance(e, dict)] for k in ("single", "pair")
    )
    first = last = None
    if len(single) > 1:
        first, last = single[0], single[-1]
        if first:
            _first(tokens, first)
        if last:
            _last(tokens, last)
    start = 1 if pair and first and pair[0] == first else 0
    stop = -1 if pair and last and pair[-1] == last else None
    sequences = [e.get("Sequence", {}).get("id") for e in one.get("pair") or [] if isinstance(e, dict)][
        start:stop
    ]
    middle = pair[start:stop][1:-1]
    if sequences[:1] == ["A"] and sequences[-1:] == ["B"] and middle:
        starts = (tokens.name("sep"), tokens.name("eos"))
        tokens.around["sep"] = (middle[0] in starts and not last) or (
            len(middle) == 2 and middle[1] in starts
        )
        if tokens.around["sep"] and not tokens.name("sep"):
            tokens.call("sep", tokens.name("eos"))


def _special_id(element: dict[str, Any]) -> str | None:
    inner = element.get("SpecialToken")
    name = inner.get("id") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


def _first(tokens: Special, name: str) -> None:
    starts = (tokens.name("bos"), tokens.name("cls"))
    if not tokens.settings:
        tokens.around["bos"] = True
        return
    if name not in starts:
        for kind in ("bos", "cls"):
            if not tokens.name(kind):
                tokens.call(kind, name)
    tokens.around["bos"] = name in (tokens.name("bos"), tokens.name("cls"))


def _last(tokens: Special, name: str) -> None:
    if tokens.settings and name != tokens.name("eos"):
        for kind in ("eot", "eom"):
            if kind not in tokens.kinds:
                tokens.kinds.append(kind)
                tokens.call(kind, tokens.name("eos"))
                break
        tokens.call("eos", name)
    tokens.around["eos"] = True


# --- merges, templates, normalization ---------------------------------------------------------


def _merges(config: Config, tokenizer: dict[str, Any]) -> list[str]:
    model = tokenizer.get("model")
    merges = model.get("merges") if isinstance(model, dict) else None
    if isinstance(merges, list) and merges:
        return [_merge(config, merge) for merge in merges]
    path = os.path.join(config.folder, "merges.txt")
    if not os.path.exists(path):
        return []
    raw = header.read(path)
    header_and_end = 2
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    check_merges(config, max(map(raw.count, (b"\n", b"\r"))) - header_and_end, vocabulary or ())
    lines = raw.decode(errors="replace").splitlines()
    parts = [line.split() for i, line in enumerate(lines) if i or not line.startswith("#")]
    return [" ".join(pair) for pair in parts if len(pair) == 2]


def _merge(config: Config, merge: Any) -> str:
    if isinstance(merge, str):
        return merge
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge):
        return " ".join(part.replace(" ", chr(ord(" ") + 256)) for part in merge)
    raise ConvertError(
        f"{config.folder}: a merge of its tokenizer is {short(merge)}; merges are two texts; the file is "
        "damaged"
    )


def _templates(config: Config, settings: dict[str, Any]) -> dict[str, Any]:
    template = settings.get("chat_template", _template_beside(config)) if settings else None
    if isinstance(template, str):
        return {"tokenizer.chat_template": template}
    keys: dict[str, Any] = {}
    for choice in template if isinstance(template, list) else ():
        name, text = (
            (choice.get("name"), choice.get("template")) if isinstance(choice, dict) else (None, None)
        )
        if not isinstance(name, str) or not name or not isinstance(text, str):
            continue
        name = "".join(c if c in PLAIN else "_" for c in name)
        keys["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = text
    names = [key.rpartition(".")[2] for key in keys if key != "tokenizer.chat_template"]
    return keys | ({"tokenizer.chat_templates": Typed(names, "string")} if names else {})


def _template_beside(config: Config) -> Any:
    path = os.path.join(config.folder, "chat_template.jinja")
    if not os.path.exists(path):
        return config.beside("chat_template.json").get("chat_template")
    default = header.read(path).decode(errors="replace")
    more = os.path.join(config.folder, "additional_chat_templates")
    names = sorted(os.listdir(more)) if os.path.isdir(more) else []
    others = [
        {
            "name": name.removesuffix(".jinja"),
            "template": header.read(os.path.join(more, name)).decode(errors="replace"),
        }
        for name in names
        if name.endswith(".jinja")
    ]
    return [{"name": "default", "template": default}, *others] if others else default


def _normalizer(normalizer: Any) -> dict[str, Any]:
    if not isinstance(normalizer, dict):
        return {}
    prefix, kind = "tokenizer.ggml.normalizer.", normalizer.get("type")
    if kind in ("Lowercase", "StripAccents"):
        return {prefix + ("lowercase" if kind == "Lowercase" else "strip_accents"): True}
    keys: dict[str, Any] = {}
    several = normalizer.get("normalizers") if kind == "Sequence" else None
    for one in several if isinstance(several, list) else ():
        keys |= _normalizer(one)
    return keys


# --- the vocabulary --------------------------------------------------------------------------

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
    length = len(tokens.texts) if tokens.scores is not None else None
    keys |= special(config, length, tokens.model in ("gpt2", "gemma4"))
    length = config.get("vocab_size")
    if arch == "llama" and length == CODE_LLAMA:
        keys.setdefault(EOT, Typed(32010, "uint32"))
    if arch == "llama" and length == GRANITE:
        keys["tokenizer.ggml.add_bos_token"] = False
    if arch == "gemma":
        keys.setdefault(EOT, Typed(107, "uint32"))
    if tokens.scores is not None and arch in ("gemma", "gemma2", "gemma3", "gemma4"):
        keys[ADD_SPACE_PREFIX] = False
    return keys


def _tokens(config: Config, pre: str | None) -> Tokens:
    kinds = config.family.vocabulary
    if kinds not in ("gpt2", "characters") and os.path.exists(os.path.join(config.folder, "tokenizer.model")):
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
    if kinds == "characters" and model.get("byte_fallback"):
        tokens = _of_fallback(config, texts, added)
        spare = max(0, (config.maybe_count("vocab_size") or 0) - len(tokens.texts))
        names = [f"[PAD{len(tokens.texts) + i}]" for i in range(spare)]
        return Tokens(
            "gemma4", "gemma4", tokens.texts + names, tokens.types + [UNUSED] * spare,
            [NO_SCORE] * (len(tokens.texts) + spare),
        )  # fmt: skip
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
