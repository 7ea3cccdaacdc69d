"""Reader and writer of tokenizer.model: the pieces of sentencepiece's protobuf, without a library.

    field 1, again and again: a piece    1: text · 2: score, float32 · 3: type, a number; 1 if not given

base/protobuf.py reads its fields. Others (how it was trained, how text is normalised) are stepped over, and a
few are written.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from ..base.protobuf import Value, fields
from ..base.text import short
from ..errors import ConvertError
from ..safetensors import header
from .config import MOST_TOKENS, Config

# --- types of tokens, and tokens that were added to a finished vocabulary --------------------

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


# --- tokenizer.model -------------------------------------------------------------------------

TYPES = {
    1: NORMAL,
    2: UNKNOWN,
    3: CONTROL,
    4: NORMAL,
    5: UNUSED,
    6: BYTE,
}  # 4: the converter takes them for normal
# Fields of the part on training: the ways to cut, as bytes, the number of pieces; numbers of special ones.
MODEL_TYPE, VOCAB_SIZE, BYTE_FALLBACK, BPE = 3, 4, 35, 2
NUMBERS = {"unk_id": 40, "bos_id": 41, "eos_id": 42, "pad_id": 43}
NORMALIZER_NAME, ADD_PREFIX, REMOVE_SPACES, ESCAPE_SPACES = 1, 3, 4, 5  # of the part on normalization


class Piece(NamedTuple):
    """One token of a model of sentencepiece."""

    text: str
    score: float
    type: int


def pieces(path: str) -> list[Piece]:
    """The pieces of a model in order; ConvertError where it is none."""
    raw = memoryview(header.read(path))
    try:
        values = (value for number, value in fields(raw) if number == 1)
        pieces = [_piece(value) for value in islice(values, MOST_TOKENS + 1)]
    except (ValueError, struct.error) as error:
        raise ConvertError(
            f"{path}: {error or 'damaged'}; this is no model of sentencepiece; fetch it again"
        ) from None
    if not 0 < len(pieces) <= MOST_TOKENS:
        raise ConvertError(
            f"{path}: it has {len(pieces) or 'no'} pieces{' and more' * bool(pieces)}; models of "
            f"sentencepiece have 1 to {MOST_TOKENS}; fetch it again"
        )
    return pieces


def packed(pieces: list[Piece], prefix: bool, numbers: Mapping[str, int | None]) -> bytes:
    """A model of these pieces; ``prefix``: a text begins with a space; ``numbers``: of special tokens."""
    listed = (
        _bytes(1, piece.text.encode(errors="surrogatepass"))
        + _key(2, 5)
        + struct.pack("<f", piece.score)
        + _number(3, piece.type)
        for piece in pieces
    )
    training = _number(MODEL_TYPE, BPE) + _number(VOCAB_SIZE, len(pieces))
    training += _number(BYTE_FALLBACK, any(piece.type == BYTE for piece in pieces))
    for name, field in NUMBERS.items():
        number = numbers.get(name)
        training += _number(field, (1 << 64) - 1 if number is None else number)  # -1: there is none
    spaces = _number(ADD_PREFIX, prefix) + _number(REMOVE_SPACES, 0) + _number(ESCAPE_SPACES, 1)
    normalization = _bytes(NORMALIZER_NAME, b"identity") + spaces
    return b"".join(_bytes(1, piece) for piece in listed) + _bytes(2, training) + _bytes(3, normalization)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _encoded(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _key(field, 0) + _encoded(value)


def _key(field: int, kind: int) -> bytes:
    return _encoded(field << 3 | kind)


def _encoded(value: int) -> bytes:
    """A number in groups of 7 bits, the low ones first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def _piece(raw: Value) -> Piece:
    if isinstance(raw, int):
        raise ValueError("a piece is a number")
    text, score, kind = "", 0.0, 1
    for number, value in fields(raw):
        if isinstance(value, int):
            kind = value if number == 3 else kind
        elif number == 1:
            text = bytes(value).decode()
        elif number == 2 and len(value) == 4:
            (score,) = struct.unpack("<f", value)
    if kind not in TYPES:
        raise ValueError(f"a piece has type {kind}")
    return Piece(text, score, TYPES[kind])
