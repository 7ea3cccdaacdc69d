"""transformers' AutoTokenizer on the files that a GGUF file's tokenizer becomes: the same tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from vocabularies import hard_texts, pairs_vocabulary, sentence_vocabulary

import ggmlq as gq
from ggmlq.checkpoint import backtokens

transformers = pytest.importorskip("transformers", reason="transformers is not installed: tools/test --hosts")
pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]  # warnings of others


def texts_of(metadata, rng):
    """Texts that are hard to cut; for sentencepiece only characters that are tokens."""
    texts = [text.replace("\0", "") for text in hard_texts(rng, 60)]
    if metadata["tokenizer.ggml.model"] == "gpt2":
        return texts
    letters = {*metadata["tokenizer.ggml.tokens"], " "}
    return ["".join(letter for letter in text if letter in letters) for text in texts]


@pytest.mark.parametrize("kind", ["llama-bpe", "qwen2", "gpt-2", "smollm", "spaces", "no space first"])
def test_the_tokens_are_the_files(kind, tmp_path, fresh: np.random.Generator):
    metadata = sentence_vocabulary(fresh) if "space" in kind else pairs_vocabulary(kind)
    metadata |= {"tokenizer.ggml.add_space_prefix": False} if kind.startswith("no ") else {}
    for name, content in backtokens.tokenizer(metadata).files.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / name).write_bytes(raw)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), gq.model.Tokenizer(metadata)
    for text in texts_of(metadata, fresh):
        assert theirs(text)["input_ids"] == [int(token) for token in ours.encode(text)], repr(text)
    assert theirs.eos_token_id == metadata["tokenizer.ggml.eos_token_id"]
