"""The file tests/golden/checkpoints.json: what llama.cpp's converter makes of the tests' small checkpoints.

LLAMA_CPP is a source tree of llama.cpp; its converter needs torch, transformers and sentencepiece. It refuses
vocabularies that it does not know; for those of the tests the name of the pre-tokenizer is given to it.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

from . import ROOT, Options, Texts

OPTIONS = {"llama_cpp": {"type": Path, "metavar": "LLAMA_CPP"}}
sys.path.insert(0, str(ROOT / "tests"))


def texts(options: Options) -> Texts:
    """The keys and tensors of all cases, as gguf-py reads the files of the converter."""
    import checkpoints as cases

    llama: Path = options.llama_cpp
    sys.path[:0] = [str(llama), str(llama / "gguf-py")]
    from conversion.base import TextModel

    recognise = TextModel.get_vocab_base_pre
    files = {}
    with tempfile.TemporaryDirectory() as temporary:
        for case, (*_, kind) in cases.CASES.items():
            folder = cases.write(Path(temporary) / f"Tiny-{case}-1M-Instruct-v0.2", case)
            out = Path(temporary) / f"{case}.gguf"
            name = cases.PRE.get(case)
            TextModel.get_vocab_base_pre = (lambda self, tokenizer, name=name: name) if name else recognise
            sys.argv[1:] = [str(folder), "--outfile", str(out), "--outtype", kind]
            runpy.run_path(str(llama / "convert_hf_to_gguf.py"), run_name="__main__")
            files[case] = figures(out)
    yield "tests/golden/checkpoints.json", lines(files)


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


def lines(value: object, depth: int = 0) -> str:
    """JSON with a line for each tensor and key."""
    if depth == 3 or not isinstance(value, dict):
        return json.dumps(value)
    indent = " " * depth
    inner = ",\n".join(f"{indent} {json.dumps(key)}: {lines(part, depth + 1)}" for key, part in value.items())
    return f"{{\n{inner}\n{indent}}}" + "\n" * (depth == 0)
