"""``Tokenizer``: text to numbers of tokens and back."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...base.text import short
from ...errors import UnsupportedError
from . import chat
from .pairs import BYTES, Pairs
from .unigram import SPACE, Unigram, pieces_of
from .vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Cutter,
    Vocabulary,
    ending,
    flag,
    vocabulary,
)

MODELS = {"llama": "SentencePiece", "gpt2": "byte pairs", "gemma4": "pairs of characters", "t5": "unigram"}


class Tokenizer:
    """The tokenizer of a file, made from its metadata.

    Attributes
    ----------
    bos, eos : int or None
        The tokens that begin and end a text.
    ends : frozenset of int
        Tokens after which a model has said all.

    >>> import ggmlq as gq
    >>> letters = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "ab", "▁ab"]
    >>> t = gq.model.Tokenizer({
    ...     "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": letters,
    ...     "tokenizer.ggml.scores": [0.0, 0, 0, -9, -8, -7, -3, -2, -1],
    ...     "tokenizer.ggml.token_type": [2, 3, 3] + [1] * 6})
    >>> t.encode("ab ba"), t.decode(t.encode("ab ba"))
    ([1, 8, 3, 5, 4], 'ab ba')
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.vocabulary: Vocabulary = vocabulary(metadata)
        v = self.vocabulary
        if v.model not in MODELS:
            raise UnsupportedError(
                f"tokenizer: tokenizer.ggml.model is {short(v.model)}; known are "
                f"{', '.join(f'{name} ({what})' for name, what in MODELS.items())}; pass numbers of tokens"
            )
        begins, prefix, ends = v.model == "llama", v.model == "llama", v.model == "t5"
        if v.model in ("gpt2", "gemma4"):
            pairs = Pairs(v, metadata)
            begins, self._characters = pairs.rule.begins, not pairs.rule.as_bytes
            self._encode: Callable[[str], list[int]] = pairs.encode
        else:
            self._characters = True
            unigram = Unigram(v, metadata) if v.model == "t5" else None
            self._encode = unigram.encode if unigram else lambda text: pieces_of(v, text)
        self._prefix = flag(metadata, "add_space_prefix", prefix)
        self.adds_bos = flag(metadata, "add_bos_token", begins)
        self.adds_eos = flag(metadata, "add_eos_token", ends)
        self.bos, self.eos = v.special.get("bos"), v.special.get("eos")
        self.ends = ending(v)
        name = str(metadata.get("general.name", "")).lower()
        self._cutter = Cutter(v, strips="phi-3" in name or "phi3" in name)
        self._template = metadata.get("tokenizer.chat_template")

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __repr__(self) -> str:
        return f"<Tokenizer {MODELS[self.vocabulary.model]}, {len(self):,} tokens>"

    @property
    def beginning(self) -> list[int]:
        """The tokens that begin every text."""
        return [self.bos] if self.adds_bos and self.bos is not None else []

    def encode(self, text: str, whole: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text.

        Parameters
        ----------
        text : str
            Lone surrogates become U+FFFD.
        whole : bool
            Tokens that begin and end a text are added, where the file wants them.
        special : bool
            Names of control tokens within the text, such as ``<|im_end|>``, are these tokens; in what
            ``chat`` returns only those of the template are, not those that the messages hold.
        """
        marked, names = (text.marked, text.names) if isinstance(text, chat.Conversation) else (text, {})
        text = marked.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        numbers = self.beginning if whole else []
        behind_special = True
        for part in self._cutter.parts(text, special):
            if isinstance(part, int):
                numbers.append(part)
            else:
                spaced = self._prefix and behind_special and self.vocabulary.model == "llama"
                numbers += self._encode((" " if spaced else "") + (part.translate(names) if names else part))
            behind_special = isinstance(part, int)
        if whole and self.adds_eos and self.eos is not None:
            numbers.append(self.eos)
        return numbers

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes that a token stands for; of a control token its name, with ``special``, or nothing."""
        v = self.vocabulary
        if not 0 <= token < len(v):
            return b""
        text, kind = v.tokens[token], v.kinds[token]
        if kind in (CONTROL, UNKNOWN):
            return text.encode() if special else b""
        if kind == USER_DEFINED:
            return text.encode()
        if kind == BYTE:
            hexadecimal = text[3:5] if text.startswith("<0x") else ""
            return bytes([int(hexadecimal, 16)]) if hexadecimal else text.encode()
        if kind != NORMAL:
            return b""
        if self._characters:
            return text.replace(SPACE, " ").encode()
        return b"".join(bytes([BYTES[c]]) if c in BYTES else c.encode() for c in text)

    def decode(self, tokens: Iterable[int], special: bool = False) -> str:
        """The text of tokens; bytes that are no text become U+FFFD."""
        return "".join(self.stream(tokens, special))

    def stream(self, tokens: Iterable[int], special: bool = False, begun: bool = False) -> Iterator[str]:
        """The text of tokens, in pieces as soon as their characters are whole.

        ``begun``: the tokens go on where others ended, so that the first space counts.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        first = self._prefix and not begun
        for token in tokens:
            raw = self.piece(int(token), special)
            if first and (raw or int(token) != self.bos):
                raw, first = raw.removeprefix(b" "), False
            elif first:
                first = False if not self.adds_bos else first
            if text := decoder.decode(raw):
                yield text
        if text := decoder.decode(b"", True):
            yield text

    def chat(
        self, messages: Sequence[Mapping[str, Any]], answer: bool = True, *,
        tools: Sequence[Mapping[str, Any]] | None = None, **options: Any,
    ) -> chat.Conversation:  # fmt: skip
        """The text of a conversation by the file's template, which needs Jinja2.

        The text is a ``str`` that ``encode`` takes as it is: names of control tokens in messages stay text.

        ``messages``: mappings with ``role`` and ``content``; ``answer``: the text ends where the model's
        answer begins. ``tools``: functions that the model may call, as JSON schemas say them. ``options``:
        values of the template's own, such as ``enable_thinking=False``.
        """
        names = {
            "bos_token": "" if self.bos is None else self.vocabulary.tokens[self.bos],
            "eos_token": "" if self.eos is None else self.vocabulary.tokens[self.eos],
        }
        return chat.conversation(self._template, messages, answer, names, self._cutter, tools, options)
