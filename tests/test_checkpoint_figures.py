"""Conversion to GGUF against llama.cpp's converter: names, types, shapes, keys and bytes, kept as figures."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import checkpoints
import pytest

import ggmlq as gq
from ggmlq.checkpoint import to_gguf

FIGURES = json.loads((Path(__file__).parent / "golden" / "checkpoints.json").read_text())


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """An open GGUF file of each case, made once."""
    place, made = tmp_path_factory.mktemp("checkpoints"), {}

    def convert(case):
        if case not in made:
            folder = checkpoints.write(place / f"Tiny-{case}-1M-Instruct-v0.2", case)
            to_gguf(folder, place / f"{case}.gguf", checkpoints.CASES[case][4])
            made[case] = gq.open(place / f"{case}.gguf")
        return made[case]

    return convert


def digest(raw):
    return sha256(raw).hexdigest()[:16]


@pytest.mark.parametrize("case", checkpoints.CASES)
def test_tensors_are_the_converters(converted, case):
    file = converted(case)
    found = {n: [q.format.name.lower(), list(q.shape), digest(q.raw.tobytes())] for n, q in file.items()}
    assert found == FIGURES[case]["tensors"]


@pytest.mark.parametrize("case", checkpoints.CASES)
def test_keys_are_the_converters(converted, case):
    metadata = converted(case).metadata
    found = {}
    for key in metadata:
        value = metadata[key]
        listed = value if isinstance(value, str | int | float | bool) else list(value)
        text = json.dumps(listed)
        short = (
            listed
            if len(text) < 200
            else [len(listed) if isinstance(listed, list) else 0, digest(text.encode())]
        )
        kinds = metadata.type(key).split(" of ")
        found[key] = [kinds, short]
    assert found == FIGURES[case]["keys"]
