"""``Vocabulary``: a file's tokens with their kinds and scores, and the numbers of the special ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...base.text import short
from ...errors import GGUFError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # as GGUF numbers them
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "fim_pad", "fim_rep", "fim_sep")
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
            f"tokenizer: the file has {'none' if model is None else f'the model {model!r}'} and "
            f"{'no tokens' if tokens is None else 'tokens'}; a text needs both; pass numbers of tokens"
        )
    texts = [str(text) or f"[EMPTY_{number}]" for number, text in enumerate(tokens)]
    kinds = _listed(metadata, "token_type", len(texts), NORMAL)
    scores = _listed(metadata, "scores", len(texts), 0.0)
    special = dict(DEFAULTS.get(model, {}))
    for name in SPECIAL:
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None and 0 <= int(number) < len(texts):
            special[name] = int(number)
    special = {name: number for name, number in special.items() if number < len(texts)}
    pre = str(metadata.get("tokenizer.ggml.pre", "") or "default")
    return Vocabulary(model, pre, texts, kinds, scores, special)


def _listed(metadata: Mapping[str, Any], key: str, length: int, default: Any) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return [default] * length
    numbers = [type(default)(value) for value in values]
    if len(numbers) < length:
        raise GGUFError(
            f"tokenizer: there are {length} tokens and {len(numbers)} of tokenizer.ggml.{key} "
            f"({short(numbers)}); each token has one; the file is damaged"
        )
    return numbers
