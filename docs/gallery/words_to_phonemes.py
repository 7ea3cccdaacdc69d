"""A trained GRU in integers: words to phonemes.

The weights are those of the package g2p_en (Apache licence): a GRU reads the letters of a word, another one
says its phonemes. Both are calibrated on 200 words and then run in integers. The table has the words whose
phonemes are as in floats, and the tensors that cost most.

    pip download --no-deps g2p_en && unzip g2p_en-*.whl
    python words_to_phonemes.py g2p_en/checkpoint20.npz [WORDS]

WORDS is a text; without it words are syllables in a drawn order.
"""

import re
import sys
import warnings
from pathlib import Path

import numpy as np

import ggmlq as gq
from ggmlq.gru import SaturationWarning
from ggmlq.gru.widths import NAMES

if len(sys.argv) < 2:
    print("no weights: pass the path of checkpoint20.npz of the package g2p_en; nothing was run")
    sys.exit()
warnings.simplefilter("ignore", SaturationWarning)
weights = np.load(sys.argv[1])
START, END, MOST = 2, 3, 20  # of phonemes; the longest answer

rng = np.random.default_rng(0)
if len(sys.argv) > 2:
    words = sorted(set(re.findall(r"\b[a-z]{2,14}\b", Path(sys.argv[2]).read_text(encoding="utf-8"))))
else:
    onsets, vowels, ends = (
        "b c ch d f g h l m n p r s sh st t tr v w",
        "a e ee i o oo u",
        "l m n r s t ck nd ng",
    )
    parts = [text.split() for text in (onsets, vowels, ends)]
    words = sorted(
        {"".join(rng.choice(part) for part in parts * int(rng.integers(1, 4))) for _ in range(900)}
    )
words = [words[i] for i in rng.permutation(len(words))[:700]]
typical, unseen = words[:200], words[200:]


def gru(part):
    names = (f"{part}_{name}" for name in ("w_ih", "w_hh", "b_ih", "b_hh"))
    return gq.GRU(*(weights[name] for name in names), order="rzn")


def read(encoder, words):
    """The last states of words; words of one length are a batch."""
    states = np.zeros((len(words), weights["enc_w_hh"].shape[1]), np.float32)
    for length in sorted({len(word) for word in words}):
        some = [i for i, word in enumerate(words) if len(word) == length]
        letters = np.array([[ord(letter) - ord("a") + 3 for letter in words[i]] + [2] for i in some])
        states[some] = encoder(weights["enc_emb"][letters.T])[1]
    return states


def say(decoder, h):
    """The phonemes that follow states, [words, MOST]; after the end all are END."""
    said = [np.full(len(h), START)]
    for _ in range(MOST):
        h = decoder(weights["dec_emb"][said[-1]][None], h)[1]
        best = (h @ weights["fc_w"].T + weights["fc_b"]).argmax(1)
        said.append(np.where(said[-1] == END, END, best))
    return np.array(said[1:]).T


encoder, decoder = gru("enc"), gru("dec")
states = read(encoder.observe, typical)
said = np.pad(say(decoder, states), ((0, 0), (1, 0)), constant_values=START)
for length in sorted(set((said != END).sum(1))):  # what decoders read is calibrated up to the end
    some = (said != END).sum(1) == length
    decoder.observe(weights["dec_emb"][said[some, :length].T], states[some])

truth = say(decoder, read(encoder, unseen))
print(f"{len(unseen)} words, such as {', '.join(unseen[:4])}; those whose phonemes are as in floats:\n")
gates = {name: {"bits": 10} for name in ("z_pre", "r_pre", "g_pre")}
names = ("x", "h", "W", "R", "z_pre", "r_pre", "g_pre", "z_out", "r_out", "g_out")
sums = ("Wx", "Rh", "Rh_add_br", "rRh")
wide = {name: {"bits": 16} for name in NAMES}
CASES = {
    "int8": "int8", "mixed": "mixed", "mixed, 10 bits before gates": gates,
    "mixed, no tensor below 12 bits": {name: {"bits": 12} for name in names}, "int16": "int16",
    "int16, but sums of 8 bits": wide | {name: {"bits": 8} for name in sums},
    "int16, but h of 8 bits": wide | {"h": {"bits": 8}},
}  # fmt: skip
print(f"{'':32}ema  sqnr   most costs, in the next state (sqnr)")
for case, widths in CASES.items():
    kept = {}
    for observer in ("ema", "sqnr"):
        small = [g.fixed(widths, observer=observer) for g in (encoder, decoder)]
        kept[observer] = int((say(small[1], read(small[0], unseen)) == truth).all(1).sum())
    costs = sorted(small[1].diagnostics().items(), key=lambda item: -item[1].cost)
    costly = ", ".join(f"{name} {use.cost:.0e}" for name, use in costs if name != "h0")
    print(f"{case:32}{kept['ema']:3}  {kept['sqnr']:4}   {', '.join(costly.split(', ')[:4])}")
