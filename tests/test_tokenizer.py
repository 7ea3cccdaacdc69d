"""Tokenizers without a libllama: what goes in comes out, special tokens, chat templates, errors."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pytest
from vocabularies import HARD, PIECES, hard_texts, pairs_vocabulary, sentence_vocabulary

import ggmlq as gq
from ggmlq.errors import GGMLQError, GGUFError, UnsupportedError
from ggmlq.model.tokenizer.pairs import RULES, joined, splitter


def test_texts_come_back(fresh):
    """Words that are cut and joined are the text again, by every rule."""
    for pre in fresh.choice(sorted(RULES), 6):
        if not RULES[pre].as_bytes:
            continue
        tokenizer = gq.model.Tokenizer(pairs_vocabulary(str(pre), 60))
        for text in hard_texts(fresh, 60):
            text = text.replace("<|im_end|>", "").replace("</s>", "")  # noqa: PLW2901
            assert tokenizer.decode(tokenizer.encode(text, whole=False)) == text, pre
    tokenizer = gq.model.Tokenizer(sentence_vocabulary(fresh))
    for text in hard_texts(fresh, 60):
        text = re.sub("<s>|</s>", "", text)  # noqa: PLW2901
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_make_up_the_text(fresh):
    for rule in RULES.values():
        split = splitter(rule.steps)
        for text in hard_texts(fresh, 20):
            words = split(text)
            assert "".join(words) == text
            assert all(words)


def test_words_of_known_rules():
    assert splitter(RULES["gpt-2"].steps)("I've 12 a  b") == ["I", "'ve", " 12", " a", " ", " b"]
    assert splitter(RULES["llama3"].steps)("x12345'S\n\n y") == ["x", "123", "45", "'S", "\n\n", " y"]
    assert splitter(RULES["qwen2"].steps)("12!?\n") == ["1", "2", "!?\n"]
    assert splitter(RULES["gpt-4o"].steps)("camelCase's") == ["camel", "Case's"]


def test_classes_are_those_of_unicode():
    r"""``\p{L}`` and others take every character that Unicode puts there."""
    text = "".join(chr(c) for c in range(0x20, 0x3000) if chr(c) != "\ufffd")
    for name in "LNPS":
        words = splitter((rf"[\p{{{name}}}]+",))(text)
        first = {unicodedata.category(word[0])[0] == name for word in words}
        assert first == {True, False}
        for word in words:
            assert len({unicodedata.category(c)[0] == name for c in word}) == 1


def test_pairs_are_joined_by_rank(fresh):
    ranks = {("a", "b"): 1, ("b", "a"): 0, ("a", "ba"): 2}

    def rank(*pair):
        return ranks.get(pair)

    assert joined(list("aba"), rank) == ["aba"]
    assert joined(list("abab"), rank) == ["aba", "b"]
    assert joined([], rank) == []
    letters = [PIECES[i] for i in fresh.integers(10, size=50)]
    assert joined(list(letters), lambda *pair: None) == letters


def test_special_tokens(fresh):
    facts = pairs_vocabulary("llama-bpe")
    tokenizer = gq.model.Tokenizer(facts)
    begin, end = tokenizer.bos, tokenizer.eos
    assert tokenizer.adds_bos
    assert tokenizer.ends == {end}
    assert tokenizer.encode("<|im_end|>") == [begin, end]
    assert end not in tokenizer.encode("<|im_end|>", special=False)
    assert tokenizer.decode([begin, end]) == ""
    assert tokenizer.decode([begin, end], special=True) == "<|begin|><|im_end|>"
    assert tokenizer.encode("<spare0>", special=False)[1:] == [
        facts["tokenizer.ggml.tokens"].index("<spare0>")
    ]
    without = gq.model.Tokenizer(facts | {"tokenizer.ggml.add_bos_token": False})
    assert without.encode("") == []
    assert gq.model.Tokenizer(facts | {"tokenizer.ggml.add_eos_token": True}).encode("a")[-1] == end
    assert tokenizer.piece(-1) == tokenizer.piece(1 << 20) == b""
    assert tokenizer.decode(tokenizer.encode("\ud800a")) == "\ufffda"


def test_streams_hold_back_half_characters(fresh):
    tokenizer = gq.model.Tokenizer(pairs_vocabulary("gpt-2", 0))
    pieces = list(tokenizer.stream(tokenizer.encode("aé🦙", whole=False)))
    assert pieces == ["a", "é", "🦙"]
    assert "".join(tokenizer.stream(tokenizer.encode("🦙", whole=False)[:2])) == "\ufffd"


def test_unigram_takes_the_best_path():
    tokens = ["<unk>", "</s>", "▁", "▁ab", "a", "b", "c", "ab", "abc", "<x>"]
    facts = {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.scores": [0.0, 0, -4, -3, -2, -2, -2, -1, -9, 0],
        "tokenizer.ggml.token_type": [2, 3, 1, 1, 1, 1, 1, 1, 1, 4], "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": True,
    }  # fmt: skip
    tokenizer = gq.model.Tokenizer(facts)
    assert tokenizer.encode("abc") == [3, 6, 1]
    assert tokenizer.encode("zz") == [2, 0, 1]  # one for several that are unknown
    assert tokenizer.encode("c<x>a", whole=False) == [2, 6, 9, 2, 4]
    merged = gq.model.Tokenizer(facts | {"tokenizer.ggml.remove_extra_whitespaces": True})
    assert merged.encode("c   c", whole=False) == [2, 6, 2, 6]


def test_chat_templates():
    pytest.importorskip("jinja2", reason="chat templates need Jinja2")
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    facts = pairs_vocabulary("gpt-2")
    tokenizer = gq.model.Tokenizer(facts | {"tokenizer.chat_template": template})
    messages = [{"role": "user", "content": " hi "}]
    assert tokenizer.chat(messages) == "<|begin|>[user]hi[assistant]"
    assert tokenizer.chat(messages, answer=False) == "<|begin|>[user]hi"
    for wrong in (
        "{{ raise_exception('no') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% if %}",
    ):
        with pytest.raises(UnsupportedError, match="template failed"):
            gq.model.Tokenizer(facts | {"tokenizer.chat_template": wrong}).chat(messages)
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.chat_template"):
        gq.model.Tokenizer(facts).chat(messages)


def test_what_is_wrong_with_a_vocabulary():
    facts = pairs_vocabulary("gpt-2")
    with pytest.raises(UnsupportedError, match=r"'unheard-of', a rule for words .* known are .*llama-bpe"):
        gq.model.Tokenizer(facts | {"tokenizer.ggml.pre": "unheard-of"})
    with pytest.raises(UnsupportedError, match=r"'bert'; known are llama \(SentencePiece\)"):
        gq.model.Tokenizer(facts | {"tokenizer.ggml.model": "bert"})
    with pytest.raises(GGUFError, match="merges"):
        gq.model.Tokenizer({k: v for k, v in facts.items() if "merges" not in k})
    with pytest.raises(GGUFError, match="pass numbers of tokens"):
        gq.model.Tokenizer({})
    with pytest.raises(GGUFError, match="token_type"):
        gq.model.Tokenizer(facts | {"tokenizer.ggml.token_type": [1, 1]})
    assert issubclass(GGUFError, GGMLQError)


def test_a_long_text_is_quick(fresh):
    tokenizer = gq.model.Tokenizer(sentence_vocabulary(fresh))
    text = HARD * 40
    assert len(tokenizer.encode(text)) > 1000
    assert np.array_equal(tokenizer.encode("a" * 5000)[-3:], tokenizer.encode("a" * 500)[-3:])
