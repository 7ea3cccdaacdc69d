"""The file tests/golden/newer.json: what transformers says of small checkpoints of this year's families.

It needs torch and transformers 5.24 or later.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from . import ROOT, Options, Texts

OPTIONS: dict[str, dict[str, object]] = {}
sys.path.insert(0, str(ROOT / "tests"))


def texts(options: Options) -> Texts:
    """Of each case the configuration, the shapes of tensors by their names, and some logits."""
    import checkpoints_newer as cases

    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        for case in cases.CASES:
            config, shapes, logits = cases.by_transformers(case, Path(temporary) / case)
            some = [[float(f"{x:.7g}") for x in row] for row in logits[cases.SOME]]
            said = json.dumps({"config": config, "shapes": shapes, "logits": some})
            lines.append(f" {json.dumps(case)}: {said}")
    yield "tests/golden/newer.json", "{\n" + ",\n".join(lines) + "\n}\n"
