"""Tokenizers of damaged and hostile files: errors in words, and time and memory in proportion."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import GGUFError, UnsupportedError
from ggmlq.model.tokenizer import pairs
from ggmlq.model.tokenizer.vocabulary import LONGEST, Cutter, Prefixes, vocabulary

K, LETTERS = "tokenizer.ggml.", [chr(i) for i in range(33, 127)]
HEAD = ["<pad>", "</s>", "<unk>", "▁"]


def unigram(tokens, kinds=None, **more):
    scores = [-1.0] * len(tokens)
    facts = {"model": "t5", "tokens": tokens, "token_type": kinds or [1] * len(tokens), "scores": scores}
    return {K + key: value for key, value in (facts | more).items()}


def sentence(**changed):
    tokens = ["<unk>", "<s>", "</s>", "<0x41>", "a"]
    facts = {"model": "llama", "tokens": tokens, "scores": [0.0] * 5, "token_type": [2, 3, 3, 6, 1]}
    return {K + key: value for key, value in (facts | changed).items()}


def charsmap(replacements):
    """A table by which "a" becomes the first of the replacements."""
    table = np.zeros(1024, "<u4")
    table[97], table[97 ^ 512] = 97 | 1 << 8 | 512 << 10, 1 << 31
    return list((4 * len(table)).to_bytes(4, "little") + table.tobytes() + replacements)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (sentence(token_type=[2, 3, 3, 6, 1, 3, 3]), "5 tokens and 7 of tokenizer.ggml.token_type"),
        (sentence(token_type=["x"] * 5), "token_type is or has 'x'; each value is a number"),
        (sentence(tokens=5), "tokens is or has 5; it is a list"),
        (sentence(tokens="abcde"), "tokens is or has 'abcde'; it is a list"),
        (sentence(tokens=["a", 5, "c", "d", "e"]), "tokens is or has 5; each value of it is a text"),
        (sentence(tokens=["<unk>", "<s>", "</s>", "<0xZZ>", "a"]), "'<0xZZ>'; a token of the kind of bytes"),
        (sentence(scores=1.0), "scores is or has 1.0; it is a list"),
        (sentence(scores=[0, 0, np.nan, 0, 0]), "has nan; scores are finite"),
        (sentence(scores=[0, 0, 0, -np.inf, 0]), "has -inf; scores are finite"),
        (sentence(scores=[0, 0, 0, 0, 1e300]), "has 1e+300; scores are finite"),
        (sentence(bos_token_id=[1]), r"bos_token_id is or has [1]; it is the number of a token"),
        (sentence(eos_token_id=np.nan), "eos_token_id is or has nan; it is the number of a token"),
        (sentence(add_bos_token=np.zeros(2)), "add_bos_token is or has array"),
        (sentence(model="gpt2", merges=3), "merges is or has 3; it is a list"),
        (unigram([*HEAD, "q" * (LONGEST + 1)]), "a token has 1,025 characters"),
        (unigram(HEAD, precompiled_charsmap=[0.5] * 9), "precompiled_charsmap is or has 0.5"),
        (unigram(HEAD, precompiled_charsmap=[255] * 9), "has 9 bytes and a table of 4,294,967,292"),
    ],
)  # fmt: skip
def test_damage_is_told(facts, words):
    with pytest.raises(GGUFError, match=re.escape(words)):
        gq.model.Tokenizer(facts)


def test_a_long_name_of_a_rule_is_not_quoted_in_full():
    facts = sentence(model="gpt2", pre="x" * 100_000, merges=[])
    with pytest.raises(UnsupportedError, match="a rule for words that is not known here") as error:
        gq.model.Tokenizer(facts)
    assert len(str(error.value)) < 3000
    with pytest.raises(UnsupportedError) as error:
        gq.model.Tokenizer(facts | {K + "model": "x" * 100_000})
    assert len(str(error.value)) < 3000


def test_replacements_have_an_end():
    facts = unigram([*HEAD, *LETTERS])
    good = gq.model.Tokenizer(facts | {K + "precompiled_charsmap": charsmap(b"xy\0")})
    assert good.encode("ab") == gq.model.Tokenizer(facts).encode("xyb")
    for replacements in (b"b" * 1_000_000, b"b" * 300 + b"\0", b"b", b""):
        endless = gq.model.Tokenizer(facts | {K + "precompiled_charsmap": charsmap(replacements)})
        assert endless.encode("bb") == gq.model.Tokenizer(facts).encode("bb")
        with pytest.raises(GGUFError, match="no end within 256 bytes"):
            endless.encode("a" * 200)


def test_tokens_at_a_place_are_those_that_the_text_goes_on_with(fresh):
    for _ in range(20):
        tokens = {"".join(fresh.choice(list("ab"), int(fresh.integers(1, 6)))) for _ in range(12)}
        text = "".join(fresh.choice(list("abc"), 30))
        prefixes = Prefixes(tokens)
        for at in range(len(text)):
            found = sorted((t for t in tokens if text.startswith(t, at)), key=len, reverse=True)
            assert list(prefixes.at(text, at)) == found


def by_length(tokens, text):
    """The definition: the longest tokens are cut out of the whole text first, then shorter ones."""
    pieces = [text]
    for length in sorted({len(token.encode()) for token in tokens}, reverse=True):
        some = "|".join(re.escape(token) for token in tokens if len(token.encode()) == length)
        pieces = [part for piece in pieces for part in (
            re.split(f"({some})", piece) if piece not in tokens else [piece]) if part]  # fmt: skip
    return pieces


def test_special_tokens_are_cut_out_longest_first(fresh):
    for _ in range(20):
        drawn = ["".join(fresh.choice(list("aé<"), int(fresh.integers(2, 6)))) for _ in range(15)]
        tokens = ["<unk>", "<s>", "</s>", "<0x41>", "a", *dict.fromkeys(drawn)]
        kinds = [2, 3, 3, 6, 1] + [3] * (len(tokens) - 5)
        cutter = Cutter(
            vocabulary(sentence(tokens=tokens, token_type=kinds, scores=[0.0] * len(kinds))), False
        )
        special = {token for token, kind in zip(tokens, kinds, strict=True) if kind in (2, 3)}
        text = "".join(fresh.choice(list("aé<b"), 40))
        assert [p if isinstance(p, str) else tokens[p] for p in cutter.parts(text, True)] == by_length(
            special, text
        )


def test_work_is_in_proportion():
    """Each took minutes, or gigabytes, before; the guard is wide, since machines are busy."""
    begin = time.process_time()
    many = [f"<|{i:06}|>" for i in range(50_000)]
    control = gq.model.Tokenizer(sentence(tokens=many, token_type=[3] * len(many), scores=[0.0] * len(many)))
    assert control.encode("<|012345|>" * 3, whole=False) == [12345] * 3
    user = gq.model.Tokenizer(unigram([f"u{i}" for i in range(20_000)], [4] * 20_000))
    assert user.encode("bu19999b" * 1000, whole=False) == [2, 19999] * 1000 + [2]
    long = gq.model.Tokenizer(unigram([*HEAD, "q" * LONGEST, *LETTERS]))
    assert len(long.encode("b" * 10_000, whole=False)) == 10_000
    chain = gq.model.Tokenizer(
        unigram([*HEAD, *("b" * n for n in range(1, 200))], [1] * 4 + [3, 4] + [4] * 197)
    )
    assert len(chain.encode("b" * 3000, whole=False)) == 16
    assert time.process_time() - begin < 60


def test_words_that_are_remembered_have_a_limit(monkeypatch):
    monkeypatch.setattr(pairs, "REMEMBERED", 1000)
    letters = dict.fromkeys(pairs.LETTERS)
    kinds = {"model": "gpt2", "token_type": [1] * 256, "scores": [0.0] * 256, "merges": []}
    encoder = pairs.Pairs(vocabulary(sentence(tokens=[*letters], **kinds)), {K + "merges": []})
    for length in (3, 2000, 5, 400, 390, 7):
        assert len(encoder.encode("a" * length)) == length
        assert sum(map(len, encoder._memory)) <= 1000
    assert "a" * 7 in encoder._memory
    assert "a" * 2000 not in encoder._memory
