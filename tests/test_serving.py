"""m.batch: sequences that join and leave; and drafts, which change no token."""

from types import SimpleNamespace

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq.errors import BlockIndexError, ShapeError, UnsupportedError
from ggmlq.model.drafts import LONGEST, Lookup


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """``models(family)``: an invariant model of the family in blocks, opened once."""
    folder, opened = tmp_path_factory.mktemp("serving"), {}

    def model_of(family, seed=0):
        if (family, seed) not in opened:
            path = family_model(folder / f"{len(opened)}.gguf", family, seed, types=("q4_0", "q8_0"))
            opened[family, seed] = gq.model.load(path, invariant=True)
        return opened[family, seed]

    return model_of


def prompt(fresh, most=30):
    return fresh.integers(3, 259, int(fresh.integers(1, most))).tolist()


# --- sequences that join and leave ------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama3", "gemma2", "qwen3moe", "deepseek2"])
def test_each_gets_the_tokens_that_it_gets_alone(family, models, fresh):
    """A drawn course of sequences that join, end, draw at random, are dropped; in caches of both kinds."""
    m = models(family)
    own = fresh.integers(2)
    b = m.batch(cache=m.cache(64, 4) if own else None)
    asked, said, every = {}, {}, []
    for _ in range(25):
        while fresh.random() < 0.4 and len(b) < 4:
            n = int(fresh.integers(0, 12)) if fresh.integers(2) else None
            options = {"temperature": 2.0, "seed": int(fresh.integers(99))} if fresh.integers(2) else {}
            tokens = prompt(fresh)
            every.append(one := b.add(tokens, n, **options))
            asked[one], said[one] = (tokens, n, options), []
        if not len(b):
            continue
        live, step = [*b], b.step()
        assert [*step] == live
        for one, token in step.items():
            said[one].append(token)
            assert b.tokens(one) == asked[one][0] + said[one]
        if fresh.random() < 0.15:
            one = int(fresh.choice(live))
            b.drop(one)
            assert one not in b
    assert every == [*range(len(every))], "numbers are not used again"
    for one, (tokens, n, options) in asked.items():
        assert n is None or len(said[one]) <= n
        assert list(m.generate(tokens, len(said[one]), **options)) == said[one]


def test_prompts_that_wait_are_one_step(models, fresh, monkeypatch):
    m, calls = models("llama3"), []
    together = m.together
    monkeypatch.setattr(m, "together", lambda *call: (calls.append(call[0]), together(*call))[1])
    b = m.batch()
    b.add([5])
    b.step()
    for _ in range(3):
        b.add([*prompt(fresh), 7])
    calls.clear()
    assert len(b.step()) == 4
    assert [sorted(len(piece.tokens) > 1 for piece in pieces) for pieces in calls] == [[False], [True] * 3]
    calls.clear()
    b.step()
    assert [len(pieces) for pieces in calls] == [4]


def test_a_sequence_without_an_end_moves_to_larger_caches(models, fresh, monkeypatch):
    monkeypatch.setattr("ggmlq.model.seats.LEAST", 4)
    m, tokens = models("llama3"), prompt(fresh)
    b = m.batch()
    one = b.add(tokens)
    for _ in range(40):
        b.step()
    assert b.tokens(one) == tokens + list(m.generate(tokens, 40))


def test_a_full_context_harms_nobody_else(models, fresh):
    m = models("llama3")
    b = m.batch(cache=m.cache(8, 2))
    full, other = b.add([5, 6, 7, 8, 9, 10]), b.add([5])
    b.step()
    b.step()
    before = b.tokens(other)
    with pytest.raises(
        BlockIndexError, match=rf"sequences \[{full}\] have 8 tokens, and their context is full"
    ):
        b.step()
    assert b.tokens(other) == before
    assert len(b.tokens(full)) == 8
    b.drop(full)
    assert [*b.step()] == [other]


def test_what_is_wrong_with_a_call(models):
    m = models("llama3")
    b = m.batch(cache=m.cache(16, 1))
    with pytest.raises(ShapeError, match=r"no sequence goes on; let one join with b\.add"):
        b.step()
    number = "one number or more"
    wrong = [([], number), ([[1], [2, 3]], number), ([999], "go from 999"), ([1] * 17, "16 positions")]
    for tokens, words in wrong:
        with pytest.raises(ShapeError, match=words):
            b.add(tokens)
    with pytest.raises(ShapeError, match="3 tokens and 14 more; the cache has 16 positions"):
        b.add([1, 2, 3], 14)
    for n in (-1, 2.5, "2"):
        with pytest.raises(ShapeError, match="tokens and"):
            b.add([1, 2, 3], n)
    with pytest.raises(UnsupportedError, match="cache='q8_0'; it is one of this model's"):
        m.batch(cache="q8_0")
    one = b.add([1, 2, 3], 1)
    with pytest.raises(BlockIndexError, match=r"drop one of \[0\]"):
        b.add([1])
    b.step()
    assert (len(b), len(b.tokens(one)), [*b]) == (0, 4, [])
    b.add([1])  # the place of one that ended is free
    b.drop(one)
    for call in (b.drop, b.tokens):
        with pytest.raises(BlockIndexError, match=r"\(0\): there are the sequences \[1\]"):
            call(one)
    with pytest.raises(BlockIndexError, match="not used again"):
        b.drop("one")


# --- drafts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lookup", "same", "other"])
@pytest.mark.parametrize("family", ["llama3", "gemma3", "qwen3moe"])
def test_drafts_change_no_token(family, kind, models, fresh):
    """Greedy or drawn, ended by a token, of several sequences; the same model guesses right."""
    m = models(family)
    draft = {"lookup": "lookup", "same": m, "other": models(family, 1)}[kind]
    for _ in range(2):
        tokens, n = prompt(fresh), int(fresh.integers(1, 50))
        options = {"temperature": float(fresh.choice([0, 0.05, 1.0])), "seed": int(fresh.integers(99))}
        plain, answer = list(m.generate(tokens, n, **options)), m.generate(tokens, n, draft=draft, **options)
        assert list(answer) == plain
        assert 0 <= answer.accepted <= answer.drafted
        if kind == "same" and options["temperature"] == 0:
            assert answer.accepted == answer.drafted
            assert n < 4 or answer.drafted
        stop = {plain[n // 2]}
        assert list(m.generate(tokens, n, draft=draft, stop=stop, **options)) == list(
            m.generate(tokens, n, stop=stop, **options)
        )
    several = [prompt(fresh), [5], prompt(fresh)]
    drafted = np.array(list(m.generate(several, 20, draft=draft)))
    assert np.array_equal(drafted, np.array(list(m.generate(several, 20))))


def test_text_that_repeats_is_guessed(models):
    """A model that says one token for ever: nearly all drafts are right."""
    m = models("llama3")
    tokens, n = [5] * 30, 60
    plain = list(m.generate(tokens, n))
    answer = m.generate(tokens + plain[:40], n, draft="lookup")
    assert list(answer)[: n - 40] == plain[40:]
    assert answer.drafted > 0


def test_the_longest_end_that_stood_before(fresh):
    """Beside a search by hand, over few kinds of tokens, in texts that grow."""
    look, text = Lookup(), fresh.integers(0, 3, 4).tolist()
    for _ in range(60):
        text += fresh.integers(0, 3, int(fresh.integers(1, 4))).tolist()
        most = int(fresh.integers(1, 9))

        def length(end, text=text):
            n = 0
            while n < min(end, LONGEST) and text[end - 1 - n] == text[len(text) - 1 - n]:
                n += 1
            return n

        ends = range(1, len(text))
        best = max(map(length, ends), default=0)
        if best:
            start = max(end for end in ends if length(end) == best)
            want = [text[start:][i % (len(text) - start)] for i in range(most)]
        assert look(text, most) == (want if best else [])


def test_what_cannot_draft(models):
    m = models("llama3")
    with pytest.raises(UnsupportedError, match="draft='nothing'"):
        m.generate([5], 3, draft="nothing")
    with pytest.raises(ShapeError, match="model of drafts has 9 tokens, this one 288; it needs the same"):
        m.batch(draft=SimpleNamespace(vocabulary=9, together=None))
