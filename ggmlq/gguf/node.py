"""A metadata value apart from any file: its type and its content, text still as bytes.

Files are read into nodes, Python values are resolved into nodes (typed.py), and nodes are written.
So a value passes from file to file with its type, whatever the byte order and whether or not its
text is valid UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import GGUFError
from . import chain, limits
from .sequence import Array
from .source import Source
from .valuetype import LEAST_BYTES, MAX_DEPTH, NUMBERS, ValueType, order_sign

_WIDTHS = {int(kind): n for kind, n in LEAST_BYTES.items()}  # plain ints are found faster


class Node(NamedTuple):
    """One value of the metadata, by its bytes in the file.

    ``data``: a number or an array of numbers as a NumPy array (bools as bytes), text as bytes, an
    array of text as a list of bytes, an array of arrays as a list of nodes.
    """

    type: ValueType
    data: Any
    of: ValueType | None = None  # of the elements, for an array

    @property
    def words(self) -> str:
        """The type in words: ``"uint32"``, ``"array of string"``."""
        return self.type.word if self.of is None else f"array of {self.of.word}"


# --- from a file ----------------------------------------------------------------------------


def skip(source: Source, type: ValueType, at: int, depth: int = 0) -> int:
    """The place of the end of a value; every length on the way is checked, and nothing is stored."""
    if type in NUMBERS:
        source.need(at, NUMBERS[type].itemsize, f"a {type.word}")
        return at + NUMBERS[type].itemsize
    if type is ValueType.STRING:
        n = source.u64(at, "the length of a string")
        source.need(at + 8, n, "a string")
        return at + 8 + n
    of, count = array_header(source, at, depth)
    at += 12
    if of in NUMBERS:
        return at + count * NUMBERS[of].itemsize
    source.count(at, limits.TEXTS if of is ValueType.STRING else limits.ARRAYS, count)
    if of is ValueType.STRING:
        return chain.end(source, at, count)
    return _skip_arrays(source, at, count, depth + 1)


def _skip_arrays(source: Source, at: int, count: int, depth: int) -> int:
    """The end of an array of arrays, of which there may be many: small ones are passed in a few steps."""
    unpack, data, room = source.unpack_array, source.map, source.size - 12
    widths = _WIDTHS if depth < MAX_DEPTH else {}
    for _ in range(count):
        number, n = unpack(data, at) if at <= room else (-1, 0)
        width = widths.get(number)
        if width is None or n * width > room - at:
            array_header(source, at, depth)  # raises
        elif number == ValueType.STRING:
            source.count(at, limits.TEXTS, n)
            at = chain.end(source, at + 12, n)
        elif number == ValueType.ARRAY:
            source.count(at, limits.ARRAYS, n)
            at = _skip_arrays(source, at + 12, n, depth + 1)
        else:
            at += 12 + n * width
    return at


def array_header(source: Source, at: int, depth: int) -> tuple[ValueType, int]:
    """The type and number of an array's elements, checked against the bytes left."""
    number = source.u32(at, "the type of an array's elements")
    of = ValueType.parse(number)
    if of is None:
        source.fail(at, f"an array's elements have type {number}; GGUF has 0 to 12; the file is damaged")
    count = source.u64(at + 4, "the length of an array")
    if count * LEAST_BYTES[of] > source.size - at - 12:
        source.fail(
            at + 4,
            f"an array of {count} {of.word} needs {count * LEAST_BYTES[of]} bytes or more, "
            f"{source.size - at - 12} are left; the file is cut short or damaged, fetch it again",
        )
    if depth >= MAX_DEPTH:
        source.fail(at, f"arrays lie more than {MAX_DEPTH} deep in each other; the file is damaged")
    return of, count


def read(source: Source, type: ValueType, at: int, depth: int = 0) -> tuple[Node, int]:
    """A value and the place of its end. Numbers are copied into the byte order of this machine."""
    if type in NUMBERS:
        end = at + NUMBERS[type].itemsize
        source.need(at, end - at, f"a {type.word}")
        return Node(type, _numbers(source, type, at, end).reshape(())), end
    if type is ValueType.STRING:
        end = skip(source, type, at)
        return Node(type, source.map[at + 8 : end]), end
    of, count = array_header(source, at, depth)
    at += 12
    if of in NUMBERS:
        end = at + count * NUMBERS[of].itemsize
        return Node(type, _numbers(source, of, at, end), of), end
    items: list[Any] = []
    if of is ValueType.STRING:
        for run in chain.runs(source, at, count):
            items += _texts(source, run)
            at = run.end
        return Node(type, items, of), at
    for _ in range(count):
        node, at = read(source, of, at, depth + 1)
        items.append(node)
    return Node(type, items, of), at


def _numbers(source: Source, type: ValueType, at: int, end: int) -> NDArray[Any]:
    stored = source.data[at:end].view(NUMBERS[type].newbyteorder(order_sign(source.byteorder)))
    return stored.astype(stored.dtype.newbyteorder("="))


def _texts(source: Source, run: chain.Run) -> list[bytes]:
    first = int(run.starts[0])
    block = source.map[first : run.end]
    starts = (run.starts - (first - 8)).tolist()
    ends = [start - 8 for start in starts[1:]]
    ends.append(len(block))
    return [block[start:end] for start, end in zip(starts, ends, strict=True)]


# --- to Python ------------------------------------------------------------------------------


def decode(node: Node) -> Any:
    """The Python value: bool, int, float, str or a read-only sequence; GGUFError where there is none."""
    if node.type is ValueType.STRING:
        return _decode_text(node.data, "")
    if node.type is not ValueType.ARRAY:
        return _decode_numbers(node.type, node.data).item()
    assert node.of is not None
    if node.of in NUMBERS:
        node.data.flags.writeable = False  # also for those who ask for the base of a view
        return Array(node.of, _decode_numbers(node.of, node.data))
    if node.of is ValueType.STRING:
        return Array(node.of, _decode_texts(node.data))
    return Array(node.of, tuple(decode(item) for item in node.data))


def raw(node: Node) -> Any:
    """Text as bytes, numbers as their little-endian bytes, arrays of text or arrays as a sequence."""
    if node.type is ValueType.STRING:
        return node.data
    if isinstance(node.data, np.ndarray):
        return node.data.astype(node.data.dtype.newbyteorder("<")).tobytes()
    assert node.of is not None
    items = node.data if node.of is ValueType.STRING else [raw(item) for item in node.data]
    return Array(node.of, tuple(items))


def _decode_numbers(type: ValueType, data: NDArray[Any]) -> NDArray[Any]:
    if type is not ValueType.BOOL:
        return data
    if (data > 1).any():
        index = int(np.flatnonzero(data > 1)[0])
        where = f"element {index} " if data.ndim else ""
        raise GGUFError(f"{where}is a bool with byte {int(data.flat[index])}; 0 and 1 are allowed")
    return data.view(np.bool_)


def _decode_texts(texts: list[bytes]) -> tuple[str, ...]:
    try:
        return tuple([text.decode() for text in texts])
    except UnicodeDecodeError:  # only now look for the place
        return tuple(_decode_text(text, f"element {i} ") for i, text in enumerate(texts))


def _decode_text(text: bytes, where: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise GGUFError(
            f"{where}is not UTF-8 ({error.reason} at its byte {error.start}): {text[:80]!r}; "
            "metadata.raw(key) gives the bytes"
        ) from None


# --- to a file ------------------------------------------------------------------------------


def encode(node: Node, byteorder: str) -> Iterator[bytes]:
    """The value as it stands in a file after its type."""
    sign = order_sign(byteorder)
    if node.type is ValueType.STRING:
        yield pack(sign + "Q", len(node.data)) + node.data
        return
    if node.type is not ValueType.ARRAY:
        yield _ordered(node.data, sign)
        return
    assert node.of is not None
    yield pack(sign + "IQ", node.of, len(node.data))
    if node.of in NUMBERS:
        yield _ordered(node.data, sign)
    elif node.of is ValueType.STRING:
        yield b"".join([part for text in node.data for part in (pack(sign + "Q", len(text)), text)])
    else:
        for item in node.data:
            yield from encode(item, byteorder)


def _ordered(data: NDArray[Any], sign: Literal["<", ">"]) -> bytes:
    return data.astype(data.dtype.newbyteorder(sign)).tobytes()
