"""A metadata value apart from any file: its type and its content, text still as bytes.

Files are read into nodes, Python values are resolved into nodes (metadata.py), and nodes are written.
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
from .source import ARRAYS, TEXTS, Source
from .values import LEAST_BYTES, MAX_DEPTH, NUMBERS, Array, ValueType, order_sign

# --- strings in a chain: the one hot loop of opening a file ----------------------------------
# Strings lie in a chain, a 64-bit length and then the bytes, so nobody knows where string i + 1
# starts before string i is read. Walking the chain in Python takes 60 ns a string, 30 ms for a
# vocabulary with its merges. Most strings are shorter than 256 bytes, so their length is one byte
# and seven zeros, and any seven zeros contain an aligned 32-bit word of zeros. NumPy finds those
# words, and with them every possible start, five times as fast.
#
# A candidate proves nothing: text may hold zeros. What is believed is only this: the chain starts
# at its first byte; a start whose length leads exactly to the next candidate leads to the next
# start; and a start with eight zeros is an empty string, with the next start behind them, so that
# zeros from a start on are empty strings. Where nothing of this holds the chain is walked for a
# while. So the result is that of the walk, for any bytes whatsoever.
#
# A search costs as much as walking some thousand strings. Therefore an array is walked first and
# searched only if it goes on: thousands of small arrays cost no more than their strings.

WINDOW = 1 << 17  # bytes searched at a time: the temporaries stay in the L2 cache
STRETCH = 1 << 20  # bytes of empty strings taken at a time
SHORT = 1024  # strings walked before the first search
BURST = 32  # strings walked after a break, so that breaks cost little more than a walk;
MAX_BURST = 4096  # twice as many after each break that follows, up to this
BELOW = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)  # mask of the lowest i bytes

Positions = NDArray[np.int64]


class Run(NamedTuple):
    """Consecutive strings: where each starts (with its length), and where the last one ends."""

    starts: Positions
    end: int


class Window(NamedTuple):
    """Possible starts of strings in a stretch of the file, and the place to which each one's length leads."""

    starts: Positions
    following: Positions
    breaks: Positions  # indices at which candidate i does not lead to candidate i + 1


def end(source: Source, at: int, count: int) -> int:
    """The end of an array of ``count`` strings, whose first length is at ``at``."""
    if count > SHORT:
        for run in runs(source, at, count):
            at = run.end
        return at
    unpack, data, room = source.unpack_u64, source.map, source.size - 8
    for _ in range(count):  # as _walk, which keeps more and takes twice as long
        if at > room or (n := unpack(data, at)[0]) > room - at:
            return _walk(source, at, 1).end  # raises
        at += 8 + n
    return at


def runs(source: Source, at: int, count: int) -> Iterator[Run]:
    """The strings of an array of ``count``, whose first length is at ``at``."""
    burst = BURST
    if count:
        run: Run | None = _walk(source, at, min(count, SHORT))
        assert run is not None
        yield run
        at, count = run.end, count - len(run.starts)
    while count:
        # Big-endian lengths have their zeros first: rare files, not worth a second search.
        window = _window(source, at) if source.byteorder == "little" else None
        stop = at + WINDOW
        while count and at < stop:
            run = (window and _linked(window, at, count)) or _empty(source, at, count)
            burst = BURST if run else min(2 * burst, MAX_BURST)
            run = run or _walk(source, at, min(count, burst))
            yield run
            at = run.end
            count -= len(run.starts)


def _linked(window: Window, at: int, count: int) -> Run | None:
    """The strings from ``at`` on, as far as each length leads to the next candidate; or None."""
    first = int(np.searchsorted(window.starts, at))
    if first == len(window.starts) or window.starts[first] != at:
        return None
    last = int(window.breaks[np.searchsorted(window.breaks, first)])
    last = min(last, first + count)
    if first == last:
        return None
    return Run(window.starts[first:last], int(window.following[last - 1]))


def _empty(source: Source, at: int, count: int) -> Run | None:
    """The empty strings from ``at`` on, or None where they are too few to be worth a search."""
    if source.map[at : at + 8 * BURST] != bytes(8 * BURST):
        return None
    count = min(count, (source.size - at) // 8, STRETCH // 8)
    lengths = source.data[at : at + 8 * count].view(np.uint64)
    if lengths.any():
        count = int(np.argmax(lengths != 0))
    return Run(np.arange(at, at + 8 * count, 8), at + 8 * count)


def _window(source: Source, at: int) -> Window:
    """All places near ``at`` that look like the length of a string of 1 to 255 bytes."""
    first = max(at - 4, 0) & ~3
    last = min(first + WINDOW + 16, source.size) & ~3
    words = source.data[first:last].view("<u4")
    zero = np.flatnonzero(words[1:-1] == 0) + 1
    before = words[zero - 1]
    zero, before = zero[before != 0], before[before != 0]
    # The length is the last byte before the zeros: the highest non-zero byte of the word before.
    byte = (before > 0xFF).astype(np.int64) + (before > 0xFFFF) + (before > 0xFFFFFF)
    starts = first + 4 * zero - 4 + byte
    following = starts + 8 + (before >> (8 * byte).astype(np.uint32))
    short = words[zero + 1] & BELOW[byte] == 0  # the last of the seven zeros
    linked = short.copy()
    linked[:-1] &= following[:-1] == starts[1:]
    linked[-1:] = False
    return Window(starts, following, np.flatnonzero(~linked))


def _walk(source: Source, at: int, count: int) -> Run:
    """String after string, each length checked against the bytes left."""
    unpack, data, room = source.unpack_u64, source.map, source.size - 8
    starts = []
    for _ in range(count):
        if at > room:
            source.need(at, 8, "the length of a string")
        (n,) = unpack(data, at)
        if n > room - at:
            source.need(at + 8, n, "a string")
        starts.append(at)
        at += 8 + n
    return Run(np.array(starts, np.int64), at)


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
    source.count(at, TEXTS if of is ValueType.STRING else ARRAYS, count)
    if of is ValueType.STRING:
        return end(source, at, count)
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
            source.count(at, TEXTS, n)
            at = end(source, at + 12, n)
        elif number == ValueType.ARRAY:
            source.count(at, ARRAYS, n)
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
        for run in runs(source, at, count):
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


def _texts(source: Source, run: Run) -> list[bytes]:
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
