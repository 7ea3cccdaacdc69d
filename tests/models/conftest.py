"""Trained models of others, which ``tools/test --models`` fetches; without them tests say so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from beside import located

from ggmlq.commands import _trained as files


def trained(model):
    """The path of a model's file; the test is skipped where nobody asked for it or it is not there."""
    if not os.environ.get("GGMLQ_MODELS"):
        pytest.skip("trained models are not asked for: tools/test --models")
    path = Path(files.folder()) / model.name
    if not path.is_file():
        pytest.skip(f"trained models are not all there: {model.name}, as tools/test --models says above")
    return path


@pytest.fixture(params=["smollm2", "gemma3"])
def path(request):
    """The file of each language model."""
    return trained(getattr(files, request.param.upper()))


@pytest.fixture
def smollm2():
    return trained(files.SMOLLM2)


@pytest.fixture
def gemma3():
    return trained(files.GEMMA3)


@pytest.fixture
def phonemes():
    return trained(files.PHONEMES)


@pytest.fixture(scope="session")
def libllama():
    """A libllama; tests that ask for it are skipped where there is none."""
    return located(layouts=True)


@pytest.fixture
def prose(fresh):
    """``prose(tokenizer, n)``: n tokens of a page of the documentation, from a place drawn by the seed."""
    pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    texts = [text for page in pages if len(text := page.read_text(encoding="utf-8")) > 10_000]

    def some(tokenizer, count):
        text = texts[fresh.integers(len(texts))]
        start = int(fresh.integers(len(text) - 8 * count)) if len(text) > 8 * count else 0
        return tokenizer.encode(text[start:])[:count]

    return some
