r"""Rules that cut a text into words, by their names in ``tokenizer.ggml.pre``.

The expressions are those of the models' own tokenizers; where llama.cpp has another one for a model, its.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.text import short
from ...errors import UnsupportedError

SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BLANKS}"
LLAMA3 = rf"{SUFFIXES}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}"
QWEN2 = rf"{SUFFIXES}|{LETTERS}|\p{{N}}|{SIGNS}"
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
        (r"\p{N}{1,3}", rf"{SUFFIXES}|{LETTERS}|\p{{N}}+|{SIGNS}"), whole_words=True
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
    "seed-coder": Rule((rf"{SUFFIXES}|{LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{BLANKS}",)),
    "ufakzeka": Rule((rf"{LETTERS}|\p{{N}}|{SIGNS}",)),
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
