"""Sounds made of code alone, with and without a voice, and the frames that a small GRU hears.

A voice is a run of syllables: a pitch that glides, its harmonics under three formants. Around it are noise,
a humming machine with harmonics of its own, and knocks, so that neither loudness nor harmonics alone tell
the two apart. Sounds have 8000 samples a second, frames of 10 ms; every frame has an answer.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE, HOP, WINDOW, BANDS = 8000, 80, 256, 20
Floats = NDArray[Any]


def sound(rng: np.random.Generator, seconds: float = 3.0) -> tuple[Floats, NDArray[np.bool_]]:
    """Samples, and a truth value for each: somebody speaks."""
    n = int(seconds * RATE)
    speaking, voice, at = np.zeros(n, np.bool_), np.zeros(n), int(rng.uniform(0.1, 0.9) * RATE)
    while at < n - RATE // 5:
        for _ in range(int(rng.integers(1, 5))):
            length = min(int(rng.uniform(0.12, 0.35) * RATE), n - at)
            if length < 400:
                break
            voice[at : at + length] += _syllable(rng, length)
            speaking[at : at + length] = True
            at += length + int(rng.uniform(0, 0.04) * RATE)
        at += int(rng.uniform(0.3, 1.0) * RATE)
    background = _background(rng, n)
    loud = 10 ** (rng.uniform(3, 18) / 20)  # of the voice over the rest
    level = np.sqrt((voice[speaking] ** 2).mean()) if speaking.any() else 1.0
    mixed = loud * voice / level + background / np.sqrt((background**2).mean())
    return rng.uniform(0.02, 0.3) * mixed / np.abs(mixed).max(), speaking


def _syllable(rng: np.random.Generator, n: int) -> Floats:
    """Harmonics of a gliding pitch under three formants, fading in and out."""
    t = np.arange(n) / RATE
    pitch = rng.uniform(90, 260) * (
        1 + rng.uniform(-0.25, 0.25) * t / t[-1] + 0.02 * np.sin(2 * np.pi * 5 * t)
    )
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = np.array([rng.uniform(300, 850), rng.uniform(900, 2300), rng.uniform(2400, 3400)])
    sound = np.zeros(n)
    for k in range(1, int(3800 / pitch.max()) + 1):
        gain = (np.array([1, 0.6, 0.3]) / (1 + ((k * pitch[:, None] - formants) / 120) ** 2)).sum(1)
        sound += gain * np.sin(k * phase)
    return sound * np.sin(np.pi * np.linspace(0, 1, n)) ** 0.5


def _background(rng: np.random.Generator, n: int) -> Floats:
    """Coloured noise, a machine, knocks; each of them in some sounds."""
    spectrum = np.fft.rfft(rng.standard_normal(n))
    spectrum /= np.maximum(np.arange(len(spectrum)), 20) ** rng.uniform(0, 0.8)
    sound: Floats = np.fft.irfft(spectrum, n)
    sound /= sound.std()
    t = np.arange(n) / RATE
    if rng.random() < 0.5:
        base = rng.uniform(60, 220)
        hum = sum(np.sin(2 * np.pi * base * k * t + rng.uniform(0, 6)) / k for k in range(1, 9))
        sound += rng.uniform(0.5, 2) * hum
    for at in rng.integers(0, n, rng.poisson(2)):
        length = min(n - at, 400)
        sound[at : at + length] += (
            rng.uniform(3, 10) * rng.standard_normal(length) * np.exp(-np.arange(length) / 60)
        )
    return sound


def frames(samples: Floats) -> NDArray[np.float32]:
    """Logarithms of the energy in bands, [frames, BANDS]."""
    count = (len(samples) - WINDOW) // HOP + 1
    at = np.arange(count)[:, None] * HOP + np.arange(WINDOW)
    power = np.abs(np.fft.rfft(samples[at] * np.hanning(WINDOW), axis=1)) ** 2
    edges = np.unique(np.round(np.geomspace(3, power.shape[1], BANDS + 1)).astype(int))
    edges = np.interp(np.linspace(0, 1, BANDS + 1), np.linspace(0, 1, len(edges)), edges).astype(int)
    bands = np.stack([power[:, a : max(b, a + 1)].mean(1) for a, b in pairwise(edges.tolist())], 1)
    return (np.log10(bands + 1e-7) / 3).astype(np.float32)


def batch(seed: int, count: int, seconds: float = 3.0) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Frames [T, count, BANDS] of some sounds, and a truth value for each: somebody speaks."""
    xs, ys = [], []
    for i in range(count):
        samples, speaking = sound(np.random.default_rng([seed, i]), seconds)
        x = frames(samples)
        xs.append(x)
        ys.append(speaking[np.arange(len(x)) * HOP + WINDOW // 2])
    return np.stack(xs, 1), np.stack(ys, 1)
