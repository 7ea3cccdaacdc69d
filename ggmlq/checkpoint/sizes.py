"""Checks of config.json against the tensors, for the numbers that decide how much memory a conversion takes.

Anybody can write a large number into a configuration, but the tensors are as large as they say. So a
configuration with larger numbers than its tensors is refused before anything is built from it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base.text import short
from ..errors import ConvertError
from ..safetensors import SafetensorsFile
from .config import Config

MOST_TOKENS = 1 << 21  # twice what the largest vocabularies have


def plain_name(name: str) -> str:
    """The name of a tensor without what models of several senses put before it."""
    plain = name.replace("language_model.", "")
    return plain.removeprefix("model.") if plain.startswith("model.model.") else plain


def check_embedding(file: SafetensorsFile, config: Config) -> None:
    """Refuse a hidden_size other than the token embedding's columns, or a vocab_size above its rows."""
    name = next((name for name in file if plain_name(name) == "model.embed_tokens.weight"), None)
    if name is None:
        raise ConvertError(
            f"{file.path}: 1 tensor is missing, token_embd of GGUF's names; a {config.architecture} has it; "
            "fetch all files of the checkpoint"
        )
    shape, hidden = file.info(name).shape, config.count("hidden_size")
    if len(shape) != 2 or not 0 < hidden == shape[1]:
        raise ConvertError(
            f"{config.path}: hidden_size is {hidden}, and {short(name)} has shape {shape}; it is a matrix of "
            "hidden_size columns; config.json or the tensors are of another model"
        )
    tokens = config.maybe_count("vocab_size")
    if tokens is not None and tokens > shape[0]:
        raise ConvertError(
            f"{config.path}: vocab_size is {tokens}, and {short(name)} has {shape[0]} rows; every token has "
            "one; config.json or the tensors are of another model"
        )


def check_tokens(config: Config, count: int) -> None:
    """Refuse a vocabulary beyond all that there are."""
    if count > MOST_TOKENS:
        raise ConvertError(
            f"{config.folder}: a vocabulary of {count} tokens; models have {MOST_TOKENS} at most; the file "
            "that says so is damaged; fetch it again"
        )


def check_merges(config: Config, merges: int, vocabulary: Iterable[str]) -> None:
    """Refuse more merges than a vocabulary has places to cut a token in two."""
    places = sum(len(token) - 1 for token in vocabulary if token)
    if merges > places:
        raise ConvertError(
            f"{config.folder}: its tokenizer has {merges} merges; each makes a token of two others, and its "
            f"tokens can be cut at {places} places; the file is damaged; fetch it again"
        )


def check_heads(config: Config, stem: str, shape: tuple[int, ...]) -> int:
    """The number of heads of a tensor of queries, keys or values, which has a row for each number of each."""
    heads, length = config.heads if stem.endswith("q_proj") else config.heads_kv, config.head_length
    if shape[:1] != (heads * length,) or (config.family.permuted and length % 2):
        raise ConvertError(
            f"{config.path}: {stem} has {shape[0] if shape else 'no'} rows, which are no {heads} heads of "
            f"{length}; num_attention_heads, num_key_value_heads or head_dim is of another model"
        )
    return heads
