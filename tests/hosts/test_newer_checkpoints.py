"""transformers itself: its modules of this year's families, and what their checkpoints become."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: tools/test --hosts")

import checkpoints_newer as cases  # noqa: E402

import ggmlq as gq  # noqa: E402
from ggmlq.checkpoint import to_gguf  # noqa: E402
from ggmlq.port import compare  # noqa: E402

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]  # warnings of others


@pytest.mark.parametrize("case", cases.CASES)
def test_a_converted_checkpoint_says_what_the_module_says(case, tmp_path):
    if not hasattr(transformers, f"{cases.CASES[case][0]}ForCausalLM"):
        pytest.skip(f"this version of transformers has no {cases.CASES[case][0]}")
    _, _, logits = cases.by_transformers(case, tmp_path / case)
    to_gguf(tmp_path / case, tmp_path / "m.gguf", "f32")
    m = gq.model.load(tmp_path / "m.gguf", arithmetic="exact", cache="f32")
    assert gq.nmse(m.logits(cases.TOKENS), logits) < 1e-6
    kind = getattr(transformers, f"{cases.CASES[case][0]}ForCausalLM")
    compared = compare(kind.from_pretrained(tmp_path / case, dtype=torch.float32), m.file)
    assert compared.ok, str(compared)
