"""The name of the rule by which a byte-level BPE tokenizer cuts a text into words: ``tokenizer.ggml.pre``.

llama.cpp knows these rules by name. To find the name, its converter tokenizes one text that is hard to cut
and hashes the numbers, which recognises a vocabulary. This module does the same (encode.py), with the
converter's own hashes. For a vocabulary without a hash, a fine-tuned or a small one, the rule in
tokenizer.json gives the name, since the name stands for that rule. If neither helps, that is an error.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from ..errors import ConvertError
from . import encode

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
    except encode.UnknownStep as error:
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
    return sha256(str(encode.encode(tokenizer, _known()["text"])).encode()).hexdigest()


def by_rule(tokenizer: dict[str, Any]) -> str | None:
    """The name of the rule that a tokenizer states."""
    try:
        steps = tuple(_step(one) for one in encode.steps(tokenizer))
    except encode.UnknownStep:
        return None
    return RULES.get(tuple(step for step in steps if step[0] != "bytes"))


def _step(one: dict[str, Any]) -> tuple[str, ...]:
    kind = one["type"]
    if kind == "Split":
        if str(one.get("behavior")).lower() not in ("isolated", "removed"):
            raise encode.UnknownStep("a split that merges")
        return "split", encode.pattern(one)
    if kind == "Digits":
        return ("digits",) if one.get("individual_digits") else ("runs of digits",)
    return ("words",) if one.get("use_regex", True) else ("bytes",)


def _shown(tokenizer: dict[str, Any]) -> str:
    return json.dumps(tokenizer.get("pre_tokenizer"))[:300]
