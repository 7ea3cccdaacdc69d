"""Made-up vocabularies of each kind, from a text, and texts that are hard to cut."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from ggmlq.model.tokenizer.pairs import LETTERS

HARD = (
    "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～ I've been 'told he's there, 'RE you sure? "
    "We'Ve a'lL "
    "\n \n\n \t\t \r\n 3 33 333 3333 3.3 3..3 CamelCase HTTPServer ÀÉß мцБ Ǆ नमस्ते कि 가각 日本語 ½²ⅷ ªʰ "
    "e\u0301 \u00a0\u0085\u3000\u2028 €$+<=>^~|`#@\\{}[]()/_-—… \x00\x1c\x7f \ufeff\ue000 🦙🦙🚀\u200d\ufe0f"
)
PIECES = [
    *" \n\t\r'\"aAzZsStT019.,!?-_/éÀßмцБ你好日语कि가🦙\u200d\u00a0\u0085½²\u0301ªʰ€$+<>=^~|`#@\\{}\x00\u2028",
    "Ǆ", "'s", "'LL", "'Ve", "ing", "the", "<s>", "</s>", "<|im_end|>", "   ", "\n\n", "\r\n", "123", "4567",
]  # fmt: skip


def hard_texts(rng, count):
    """Texts of pieces that rules treat in different ways."""
    return [
        HARD,
        *(
            "".join(PIECES[i] for i in rng.integers(len(PIECES), size=rng.integers(1, 24)))
            for _ in range(count)
        ),
    ]


def _frequent(words, merges):
    """The pairs of letters that are frequent in words, joined again and again."""
    ranks = []
    for _ in range(merges):
        counts = Counter(pair for word in words for pair in pairwise(word))
        pair = max(counts, key=lambda one: (counts[one], one))
        ranks.append(pair)
        for word in words:
            at = 0
            while at < len(word) - 1:
                if (word[at], word[at + 1]) == pair:
                    word[at : at + 2] = ["".join(pair)]
                at += 1
    return ranks


def pairs_vocabulary(pre, merges=150):
    """Metadata of a vocabulary of byte pairs: those that are frequent in ``HARD``."""
    words = [[LETTERS[byte] for byte in word.encode()] for word in HARD.replace(" ", " \0").split("\0")]
    ranks = _frequent(words, merges)
    tokens = [*LETTERS, *dict.fromkeys("".join(pair) for pair in ranks), "<|begin|>", "<|im_end|>"]
    kinds = [1] * (len(tokens) - 2) + [3, 3]
    spare = -len(tokens) % 32
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + [f"<spare{i}>" for i in range(spare)],
        "tokenizer.ggml.token_type": kinds + [4] * spare,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in ranks],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2, "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }  # fmt: skip


def characters_vocabulary(merges=150):
    """Metadata of a vocabulary of pairs of characters, as Gemma 4 has it, with its names of turns."""
    text = HARD.replace(" ", "▁").replace("\0", "") + "\n\n\n▁▁▁▁"
    ranks = [
        pair
        for pair in _frequent([list(text)], merges)
        if {*"".join(pair)} <= {"\n"} or "\n" not in "".join(pair)
    ]
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_response>", "<|think|>"]
    letters = [c for c in dict.fromkeys(text) if c not in "€🦙"]  # which are bytes
    tokens = [*names, *(f"<0x{i:02X}>" for i in range(256)), *letters]
    tokens += [token for token in dict.fromkeys("".join(pair) for pair in ranks) if token not in tokens]
    kinds = [3] * len(names) + [6] * 256 + [1] * (len(tokens) - len(names) - 256)
    spare = -len(tokens) % 32
    return {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens + [f"<spare{i}>" for i in range(spare)],
        "tokenizer.ggml.token_type": kinds + [4] * spare,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in ranks], "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.add_space_prefix": False,
    }  # fmt: skip


def sentence_vocabulary(rng, model="llama"):
    """Metadata of SentencePiece: bytes, characters, and pieces of ``HARD`` with random scores."""
    text = HARD.replace(" ", "▁").replace("\0", "")  # which a token of GGUF cannot hold
    pieces = dict.fromkeys(c for c in text if ord(c) > 32)
    for _ in range(200):
        start = int(rng.integers(len(text) - 6))
        pieces[text[start : start + int(rng.integers(2, 6))]] = None
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    spare = -len(tokens) % 32
    scores = [0.0] * 259 + [-float(x) for x in rng.random(len(pieces)) * 9] + [0.0] * spare
    return {
        "tokenizer.ggml.model": model, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.tokens": tokens + [f"<spare{i}>" for i in range(spare)],
        "tokenizer.ggml.token_type": kinds + [4] * spare, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
