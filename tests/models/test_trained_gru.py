"""A trained GRU: an encoder reads a word's letters, a decoder says its phonemes; in floats and integers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq

pytestmark = pytest.mark.models
END, BEGIN, LAST = 2, 2, 3  # </s> of letters; <s> and </s> of phonemes
LONGEST = 20
CALIBRATED, JUDGED = 60, 90


@pytest.fixture
def words(fresh):
    """Words of the documentation, drawn by the seed."""
    pages = (Path(__file__).parents[2] / "docs").glob("*.md")
    known = {word for page in pages for word in re.findall(r"\b[a-z]{4,12}\b", page.read_text("utf-8"))}
    return [str(word) for word in fresh.permutation(sorted(known))[: CALIBRATED + JUDGED]]


def said(part, encode, decode, word):
    """The phonemes of a word by two cells, each a function of x [T, 1, C] and h that gives the last state."""
    letters = [ord(letter) - ord("a") + 3 for letter in word] + [END]
    h = encode(part["enc_emb"][letters][:, None], None)
    out = [BEGIN]
    while len(out) <= LONGEST:
        h = decode(part["dec_emb"][out[-1]][None, None], h)
        if (best := int((h @ part["fc_w"].T + part["fc_b"]).argmax())) == LAST:
            break
        out.append(best)
    return out


def plainly(part, name):
    """A cell in a few lines of NumPy."""
    W, R, bx, br = (part[f"{name}_{key}"].astype(np.float64) for key in ("w_ih", "w_hh", "b_ih", "b_hh"))

    def step(x, h):
        h = np.zeros((1, R.shape[1])) if h is None else h
        for row in x:
            (xr, xz, xn), (hr, hz, hn) = (np.split(a, 3, -1) for a in (row @ W.T + bx, h @ R.T + br))
            r, z = (1 / (1 + np.exp(-a)) for a in (xr + hr, xz + hz))
            h = (1 - z) * np.tanh(xn + r * hn) + z * h
        return h

    return step


def states(run):
    """A cell that gives the last state of a GRU's call."""
    return lambda x, h: run(x, h)[1]


def test_words_are_said_alike(phonemes, words):
    with np.load(phonemes) as arrays:
        part = dict(arrays)
    cells = [
        gq.GRU(*(part[f"{name}_{key}"] for key in ("w_ih", "w_hh", "b_ih", "b_hh")), order="rzn")
        for name in ("enc", "dec")
    ]
    right = [said(part, plainly(part, "enc"), plainly(part, "dec"), word) for word in words]
    assert [said(part, *map(states, cells), word) for word in words] == right
    for word in words[:CALIBRATED]:
        said(part, *(states(g.observe) for g in cells), word)
    for widths, share in (("int16", 0.97), ("int8", 0.8)):
        fixed = [states(g.fixed(widths)) for g in cells]
        same = [said(part, *fixed, word) == one for word, one in zip(words, right, strict=True)]
        assert np.mean(same[CALIBRATED:]) >= share, widths
