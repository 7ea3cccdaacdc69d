"""Checkpoints whose JSON was changed anywhere: converted, or refused in words, and nothing is left behind."""

from __future__ import annotations

import copy
import json
import random

import checkpoints
import pytest

import ggmlq as gq
from ggmlq.checkpoint import togguf

STRANGE = [
    None, True, -1, 0, 3, 10**30, 1.5, -1e308, "", "x", "\u2581", [], [[]], {}, {"id": 3}, ["a", "b"], [None],
]  # fmt: skip


def places(value, path=()):
    """Paths to all values within a value; of long lists and tables the first few."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inner)[:40]:
        yield from places(item, (*path, key))


def changed(rng, value):
    """A copy with one to three values replaced or removed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 2, 3])):
        path = rng.choice(list(places(value))[1:] or [()])
        if not path:
            return rng.choice(STRANGE)
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        if rng.random() < 0.2:
            del inner[path[-1]]
        else:
            inner[path[-1]] = copy.deepcopy(rng.choice(STRANGE))
    return value


@pytest.mark.parametrize("case", ["llama3", "qwen3moe", "gemma3", "mistral"])
def test_changed_json(tmp_path, fresh, rounds, case):
    rng = random.Random(int(fresh.integers(2**63)))
    folder = checkpoints.write(tmp_path / "m", case)
    card = "---\nlicense: x\nbase_model:\n- a/b-7B\ntags: [c]\n---\n"
    (folder / "README.md").write_text(card)
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    files = {path: json.loads(path.read_text()) for path in folder.glob("*.json")}
    good = 0
    for _ in rounds(1.5):
        path = rng.choice(list(files))
        text = json.dumps(changed(rng, files[path]))
        path.write_text(text)
        try:
            with gq.open(folder) as f:
                togguf.write(togguf.plan(f), tmp_path / "m.gguf")
            good += 1
        except gq.GGMLQError as error:
            assert len(str(error)) > 20  # noqa: PT017
        except BaseException:
            print(path.name, text[:3000])
            raise
        path.write_text(json.dumps(files[path]))
    assert good
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("case", ["mistral", "gemma"])
def test_changed_pieces(tmp_path, fresh, rounds, case):
    rng = random.Random(int(fresh.integers(2**63)))
    folder = checkpoints.write(tmp_path / "m", case)
    path = folder / "tokenizer.model"
    base = path.read_bytes()
    for _ in rounds(1):
        raw = bytearray(base)
        for _ in range(rng.choice([1, 2, 5])):
            at = rng.randrange(len(raw))
            raw[at : at + rng.choice([0, 1, 4])] = rng.choice(
                [b"", b"\xff", b"\0", b"\x0a\xff\xff\xff\x7f", bytes(9)]
            )
        path.write_bytes(raw)
        try:
            with gq.open(folder) as f:
                togguf.plan(f)
        except gq.GGMLQError as error:
            assert "tokenizer.model" in str(error)  # noqa: PT017
