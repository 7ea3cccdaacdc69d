"""The metadata keys ``general.*`` of a converted checkpoint: name, author, sources, as llama.cpp finds them.

Names come from the model card, from config.json, and last from the folder: Qwen2.5-7B-Instruct-1M is basename
Qwen2.5, size 7B, finetune Instruct-1M.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from ..errors import ConvertError
from ..gguf import Typed
from ..safetensors import header
from .config import Config, real
from .values import Values

# --- the model card: the YAML between two lines of --- at the top of README.md ---------------
# It reads texts, lists of texts and lists of pairs, which model cards have, and leaves out deeper nesting.

LINE = re.compile(r"([A-Za-z_][\w-]*):(?:\s+(.*))?$")
MOST_BYTES = 1 << 22  # of the card; long tables of results take some hundred KB
MOST_ITEMS = 1 << 16  # of its lists; the longest known have some ten thousand


def read_card(folder: str) -> dict[str, Any]:
    """The entries of the card; empty where there is none, ConvertError where it is larger than cards are."""
    path = os.path.join(folder, "README.md")
    if not os.path.isfile(path):
        return {}
    values: dict[str, Any] = {}
    key, items = None, 0
    for line in _lines(path):
        items += line.count(",") + 1
        if items > MOST_ITEMS:
            raise _too_large(path, f"more than {MOST_ITEMS} entries")
        entry = LINE.match(line)
        if entry:
            key, value = entry[1], (entry[2] or "").strip()
            values[key] = _value(value) if value else []
        elif key is not None and isinstance(values[key], list) and re.match(r"\s*- ", line):
            values[key].append(_value(line.strip()[2:].strip()))
    return {key: value for key, value in values.items() if value not in ([], None)}


def _lines(path: str) -> list[str]:
    """The lines of the card."""
    text = header.read(path)
    lines = text[:MOST_BYTES].decode(errors="replace").replace("\t", "  ").splitlines()
    if not lines or lines[0] != "---":
        return []
    if "---" in lines[1:]:
        return lines[1 : lines.index("---", 1)]
    if len(text) > MOST_BYTES:
        raise _too_large(path, f"more than {MOST_BYTES} bytes")
    return []


def _too_large(path: str, size: str) -> ConvertError:
    return ConvertError(
        f"{path}: the model card at its top has {size}; none is as large; shorten it, or move the file away"
    )


def _value(text: str) -> Any:
    if text[:1] == "[" and text[-1:] == "]":
        parts = (part.strip() for part in text[1:-1].split(","))
        return [_value(part) for part in parts if part and part[0] != "["]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    text = text.partition(" #")[0].strip()
    return None if text in ("null", "~", "") or text[:1] in "|>{&*" else text


def as_texts(values: Any) -> list[str]:
    """A value as a list of texts."""
    listed = values if isinstance(values, list) else [values]
    return [text for text in listed if isinstance(text, str)]


# --- keys ------------------------------------------------------------------------------------

SAMPLING = {
    "sequence": ("sequence", "string"), "top_k": ("top_k", "int32"), "top_p": ("top_p", "float32"),
    "min_p": ("min_p", "float32"), "xtc_probability": ("xtc_probability", "float32"),
    "xtc_threshold": ("xtc_threshold", "float32"), "temperature": ("temp", "float32"),
    "penalty_last_n": ("penalty_last_n", "int32"), "repetition_penalty": ("penalty_repeat", "float32"),
    "penalty_repeat": ("penalty_repeat", "float32"), "mirostat": ("mirostat", "int32"),
    "mirostat_tau": ("mirostat_tau", "float32"), "mirostat_eta": ("mirostat_eta", "float32"),
}  # fmt: skip
ORDER = [
    "name", "author", "version", "organization", "finetune", "basename", "description", "size_label",
    "license", "license.name", "license.link", "source.url", "source.doi", "source.uuid", "source.repo_url",
]  # fmt: skip
# Entries of a model card, by key; of several the first that is there.
IN_CARD = {
    "name": ("name", "model_name"), "author": ("author", "model_author", "model_creator"),
    "version": ("version", "model_version"), "organization": ("organization", "model_organization"),
    "description": ("description", "model_description"), "finetune": ("finetune", "model_finetune"),
    "basename": ("basename", "model_basename", "model_type"),
    "size_label": ("size_label", "model_size_label"), "source.url": ("url", "model_url"),
    "source.doi": ("doi", "model_doi"), "source.uuid": ("uuid", "model_uuid"),
    "source.repo_url": ("repo_url", "model_repo_url"), "license": ("license",),
    "license.name": ("license_name",), "license.link": ("license_link",),
}  # fmt: skip
SIZES = r"(a|\d+x)?\d+([._]\d+)?[kmbt]\d?|small|mini|medium|large|x?xl"
HUB = "https://huggingface.co/"


class Parts(NamedTuple):
    """The parts of a model's name."""

    name: str | None = None
    organization: str | None = None
    basename: str | None = None
    finetune: str | None = None
    version: str | None = None
    size_label: str | None = None


def general(config: Config, tensors: Mapping[str, Values]) -> dict[str, Any]:
    """The keys, in the converter's order."""
    total = sum(prod(tensor.shape) for tensor in tensors.values())
    model_card = read_card(config.folder)
    facts: dict[str, str] = {}
    for key, names in IN_CARD.items():
        text = ",".join(next((as_texts(model_card[name]) for name in names if name in model_card), []))
        if text:
            facts[key] = text
    named = config.raw.get("_name_or_path")
    folder = os.path.basename(os.path.abspath(config.folder))
    for name in ([named] if isinstance(named, str) and named.count("/") <= 1 else []) + [folder]:
        for key, text in parts(name, total)._asdict().items():
            if text is not None:
                facts.setdefault(key, title(text) if key in ("name", "organization") else text)
    facts.setdefault("name", folder)
    facts.setdefault("size_label", size_label(tensors))
    keys = {"general.type": "model"} | _sampling(config)
    keys |= {f"general.{key}": facts[key] for key in ORDER if key in facts}
    keys |= _listed("base_model", model_card, ("base_model", "base_models", "base_model_sources"), total)
    keys |= _listed("dataset", model_card, ("datasets", "dataset", "dataset_sources"), total)
    tags = as_texts(model_card.get("tags", [])) + as_texts(model_card.get("pipeline_tag", []))
    languages = as_texts(model_card.get("languages", [])) + as_texts(model_card.get("language", []))
    for key, texts in (("tags", tags), ("languages", languages)):
        if texts:
            keys[f"general.{key}"] = Typed(texts, "string")
    return keys


def _sampling(config: Config) -> dict[str, Any]:
    generation = config.beside("generation_config.json")
    path, keys = os.path.join(config.folder, "generation_config.json"), dict[str, Any]()
    for name, (key, kind) in SAMPLING.items():
        value = generation.get(name)
        if value is not None and kind != "string":
            number = real(path, name, value)
            keys[f"general.sampling.{key}"] = Typed(int(number) if kind == "int32" else number, kind)
        elif isinstance(value, str):
            keys[f"general.sampling.{key}"] = value
    return keys


def _listed(kind: str, model_card: dict[str, Any], names: tuple[str, ...], total: int) -> dict[str, Any]:
    """Models or data sets that this one comes from."""
    listed = next((model_card[name] for name in names if name in model_card), None)
    if listed is None:
        return {}
    texts = as_texts(listed)
    keys: dict[str, Any] = {f"general.{kind}.count": Typed(len(texts), "uint32")}
    for i, text in enumerate(texts):
        linked = re.match(r"(http|https|ssh)://", text) is not None
        hub = re.fullmatch(r"https?://huggingface.co/([^/]+/[^/]+)", text)
        name_parts = parts(hub[1] if hub else text, total) if hub or not linked else Parts()
        entry = {"name": name_parts.name and title(name_parts.name), "version": name_parts.version}
        entry["organization"] = name_parts.organization and title(name_parts.organization)
        entry["repo_url"] = text if linked else (f"{HUB}{text}" if name_parts.organization else None)
        for key in ("name", "version", "organization", "repo_url"):
            if entry[key]:
                keys[f"general.{kind}.{i}.{key}"] = entry[key]
    return keys


def title(text: str) -> str:
    """Words with a capital each, except versions and words that begin with a digit."""
    words = text.strip().replace("-", " ").split()
    return " ".join(w.title() if w.islower() and not re.match(r"(v\d+(\.\d+)*$|\d)", w) else w for w in words)


def parts(text: str, total: int) -> Parts:
    """The parts of a name such as Org/Model-7B-Instruct-v0.3; a sentence is a name as a whole."""
    if " " in text:
        return Parts(name=text)
    organization, _, name = text.partition("/") if "/" in text else ("", "", text)
    if organization.startswith("."):
        organization = ""
    words = [word for word in name.split("-") if word]
    kinds = [_kind(i, word, total) for i, word in enumerate(words)]
    words = [_normal(word, kind) for word, kind in zip(words, kinds, strict=True)]
    if any(k == "size_label" and any(c.isdecimal() for c in w) for w, k in zip(words, kinds, strict=True)):
        kinds = [None if k == "size_label" and w.isalpha() else k for w, k in zip(words, kinds, strict=True)]
    start = 0
    while start < len(words) and (
        kinds[start] == "version" or (kinds[start] is None and words[start][0].isalpha())
    ):
        start += 1
    based = [True] * start + [False] * (len(words) - start)
    for i in reversed(range(start)) if start == len(words) else ():
        if kinds[i] != "version":
            break
        based[i] = False  # a version at the end is one, and no part of the name
    kinds = [kind or ("basename" if base else "finetune") for kind, base in zip(kinds, based, strict=True)]

    def joined(kind: str) -> str | None:
        chosen = [w for w, k, base in zip(words, kinds, based, strict=True) if k == kind and not base]
        return "-".join(dict.fromkeys(chosen) if kind == "size_label" else chosen) or None

    basename = "-".join(word for word, base in zip(words, based, strict=True) if base) or None
    finetune, version, size = joined("finetune"), joined("version"), joined("size_label")
    if size is finetune is version is None:
        basename = None  # too little to go by
    return Parts(name, organization or None, basename, finetune, version, size)


def _kind(i: int, word: str, total: int) -> str | None:
    if re.fullmatch(r"(v|iter)?\d+(\.\d+)*", word, re.IGNORECASE):
        return "version"
    if re.fullmatch(r"i?q\d(_\w)*|b?fp?(16|32)", word, re.IGNORECASE):
        return "type"
    if i and re.fullmatch(SIZES, word, re.IGNORECASE):
        return "finetune" if _is_context(word, total) else "size_label"
    return "finetune" if i and re.fullmatch("chat|instruct|vision|lora", word, re.IGNORECASE) else None


def _size(word: str) -> str:
    """7b1 as 7.1B, 1_5b as 1.5B."""
    word = word.replace("_", ".")
    if word[-1].isdecimal():
        word = f"{word[:-2]}.{word[-1]}{word[-2]}"
    return word[:-1] + word[-1].upper() if word[-2].isdecimal() and word[-1] in "kmbt" else word


def _is_context(word: str, total: int) -> bool:
    """True for a size far from the number of parameters: it is a context's length, as in -128k."""
    try:
        count = float(_size(word)[:-1]) * 1000.0 ** " KMBT".find(_size(word)[-1])
    except ValueError:
        return False
    return total != 0 and abs(count - total) > 7 * total // 8


def _normal(word: str, kind: str | None) -> str:
    if kind == "type":
        return word.upper()
    if kind == "size_label":
        return _size(word)
    if kind == "finetune" and re.fullmatch(SIZES, word, re.IGNORECASE):
        size = _size(word)
        return size[:-1] + size[-1].lower()
    return word


def size_label(tensors: Mapping[str, Values]) -> str:
    """The number of parameters, as 7.2B or 8x7.2B."""
    shared = per_expert = counted = experts = 0
    for name, tensor in tensors.items():
        if "_exps." in name and len(tensor.shape) >= 3:
            per_expert += prod(tensor.shape) // tensor.shape[-3]
            experts, counted = experts + tensor.shape[-3], counted + 1
        else:
            shared += prod(tensor.shape)
    label = _rounded(shared + per_expert)
    return f"{experts // counted}x{label}" if counted and experts else label


def _rounded(count: int) -> str:
    scale, suffix = next(
        ((s, c) for s, c in ((1e-12, "T"), (1e-9, "B"), (1e-6, "M")) if count * s > 1), (1e-3, "K")
    )
    digits = len(str(round(count * scale)).lstrip("0"))
    return f"{count * scale:.{max(2 - digits, 0)}f}{suffix}"
