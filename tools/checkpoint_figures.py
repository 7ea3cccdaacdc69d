"""What llama.cpp's converter makes of the small checkpoints of the tests, as figures:
tests/golden/checkpoints.json.

    python tools/checkpoint_figures.py LLAMA_CPP

LLAMA_CPP is a source tree of llama.cpp; its converter needs torch, transformers and sentencepiece. It refuses
vocabularies that it has not seen; for those of the tests the name of the pre-tokenizer is given to it.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

TREE = Path(__file__).parents[1]
sys.path.insert(0, str(TREE / "tests"))


def main() -> int:
    """Convert all cases, read what came out with gguf-py, write the figures."""
    import checkpoints

    llama = Path(sys.argv[1])
    sys.path[:0] = [str(llama), str(llama / "gguf-py")]
    from conversion.base import TextModel

    recognised = TextModel.get_vocab_base_pre
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for case, (*_, kind) in checkpoints.CASES.items():
            folder = checkpoints.write(Path(place) / f"Tiny-{case}-1M-Instruct-v0.2", case)
            out = Path(place) / f"{case}.gguf"
            name = checkpoints.PRE.get(case)
            TextModel.get_vocab_base_pre = (lambda self, tokenizer, name=name: name) if name else recognised
            sys.argv[1:] = [str(folder), "--outfile", str(out), "--outtype", kind]
            runpy.run_path(str(llama / "convert_hf_to_gguf.py"), run_name="__main__")
            found[case] = figures(out)
    path = TREE / "tests" / "golden" / "checkpoints.json"
    path.write_text(written(found))
    print(f"wrote {path}")
    return 0


def written(found: dict[str, dict[str, dict[str, object]]]) -> str:
    """JSON with a line for each tensor and key."""
    cases = []
    for case, parts in found.items():
        lines = [
            f'  "{part}": {{\n'
            + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
            + "\n  }"
            for part, rows in parts.items()
        ]
        cases.append(f' "{case}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(cases) + "\n}\n"


def figures(path: Path) -> dict[str, dict[str, object]]:
    """Keys with type and value (long ones as a hash), tensors with type, shape and hash."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    keys = {
        name: [[kind.name.lower() for kind in field.types], short(field.contents())]
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        t.name: [t.tensor_type.name.lower(), [int(n) for n in reversed(t.shape)], digest(t.data.tobytes())]
        for t in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


def short(value: object) -> object:
    """A value, or its length and hash."""
    text = json.dumps(value)
    return value if len(text) < 200 else [len(value) if isinstance(value, list) else 0, digest(text.encode())]


def digest(raw: bytes) -> str:
    """The beginning of a hash."""
    return sha256(raw).hexdigest()[:16]


if __name__ == "__main__":
    raise SystemExit(main())
