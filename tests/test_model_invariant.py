"""invariant=True of a model: bits of a sequence's logits depend on no other one, and on no cutting of it."""

import pickle

import numpy as np
import pytest
from families import NAMES, family_model

import ggmlq as gq
from ggmlq.base.threads import at_most
from ggmlq.errors import UnsupportedError
from ggmlq.model.batch import Piece

TYPES = [("q4_0", "q8_0", "q5_1"), ("q5_0", "iq4_nl", "q4_1"), ("q8_0", "f16"), ("bf16", "q5_1", "f32")]
EDGES = [1, 1, 1, 2, 3, 8, 9, 16, 17, 32, 33]  # tokens of a step at which kernels change


@pytest.fixture
def invariant(fresh, tmp_path):
    """``invariant(family)``: a model of drawn weights, types and kinds of keys and values."""

    def model_of(family):
        types, cache = TYPES[fresh.integers(len(TYPES))], ("f16", "q8_0", "f32")[fresh.integers(3)]
        path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=types)
        return gq.model.load(path, cache=cache, invariant=True)

    return model_of


@pytest.mark.drawn(3)
@pytest.mark.parametrize("family", NAMES)
def test_bits_of_logits(family, invariant, fresh):
    m = invariant(family)
    sequences = [fresh.integers(3, 259, int(fresh.integers(1, 80))) for _ in range(3)]
    whole = [m.logits(one) for one in sequences]
    assert all(np.array_equal(a, b) for a, b in zip(m.logits(sequences), whole, strict=True))
    for tokens, logits in zip(sequences, whole, strict=True):
        cache = m.cache(len(tokens))
        while (start := len(cache)) < len(tokens):
            end = min(start + int(fresh.choice(EDGES)), len(tokens))
            rows = m.run(tokens[start:end], cache, last=bool(fresh.integers(2)))
            assert np.array_equal(rows[-1], logits[end - 1]), (start, end)
    with at_most(1):
        assert np.array_equal(m.logits(sequences[0]), whole[0])
    caches = [m.cache(80).parts[0] for _ in sequences]
    for i in range(max(map(len, sequences))):  # walked, recorded, then programs
        pieces = [Piece(j, one[i : i + 1]) for j, one in enumerate(sequences) if i < len(one)]
        for piece, row in zip(pieces, m.together(pieces, caches, True), strict=True):
            assert np.array_equal(row, whole[piece.sequence][i]), (i, piece.sequence)


def test_it_stays_with_copies_of_a_model(invariant, fresh):
    m = invariant("llama3")
    tokens = fresh.integers(3, 259, 40)
    for other in (pickle.loads(pickle.dumps(m)), m.like(None)):
        assert other.invariant
        assert np.array_equal(other.logits(tokens), m.logits(tokens))
    assert not m.like("exact").invariant
    with pytest.raises(UnsupportedError, match="leave one of them out"):
        gq.model.load(m.file, arithmetic="ggml-cpu", invariant=True)
