"""SentencePiece: characters, joined to their neighbours by the score of the token that both make."""

from __future__ import annotations

import heapq

from .vocabulary import Vocabulary

SPACE = "▁"  # stands for a space in tokens


def encode(v: Vocabulary, text: str) -> list[int]:
    """The tokens of a text: the pair of the best score is joined, then the next, while there is one."""
    parts = list(text.replace(" ", SPACE))
    after = [*range(1, len(parts)), -1]
    before = list(range(-1, len(parts) - 1))
    queue: list[tuple[float, int, int, int]] = []

    def offer(left: int, right: int) -> None:
        if left < 0 or right < 0:
            return
        joined = parts[left] + parts[right]
        if (number := v.numbers.get(joined)) is not None:
            heapq.heappush(queue, (-v.scores[number], left, right, len(joined)))

    for right in range(1, len(parts)):
        offer(right - 1, right)
    while queue:
        _, left, right, length = heapq.heappop(queue)
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length:
            continue  # one of both was joined to another meanwhile
        parts[left] += parts[right]
        parts[right] = ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [number for part in parts if part for number in _numbers(v, part)]


def _numbers(v: Vocabulary, part: str) -> list[int]:
    """The token of a part, or those of its bytes."""
    if part in v.numbers:
        return [v.numbers[part]]
    return [v.numbers.get(f"<0x{byte:02X}>", v.numbers.get(chr(byte), v.unknown)) for byte in part.encode()]
