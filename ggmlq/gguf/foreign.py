"""Explanations for files of other kinds that a user tries to open as GGUF or safetensors, with a way out."""

from __future__ import annotations

import mmap
import re

from ..base.text import short

HEAD = 512  # bytes looked at
CONVERT = "save it as safetensors with what made it (safetensors.torch.save_file), which gq.open reads"
UNPACK = "unpack it, and open the .gguf file in it"

# The first that fits counts: a pattern at the start of the file, what it is, and the way out.
KINDS = [
    (
        rb".{5}\0{3}\{",
        "a safetensors file",
        "open it with gq.open; `ggmlq convert` makes a GGUF file of its folder",
    ),
    (
        rb"version https://git-lfs",
        "a pointer of Git LFS, the file itself was not fetched",
        "run `git lfs pull`, or download it",
    ),
    (
        rb"(?i)\s*(<!doctype html|<html|<\?xml|<head)",
        "a web page, such as a download gives that was refused",
        "open its address in a browser, log in, and fetch the file itself",
    ),
    (
        rb"PK\x03\x04.{26,80}\.npy",
        "an npz file of NumPy",
        "save its arrays with gq.save(path, dict(np.load(npz)))",
    ),
    (rb"PK\x03\x04.{26,120}(data\.pkl|/version)", "a checkpoint of PyTorch", CONVERT),
    (rb"PK\x03\x04|PK\x05\x06", "a zip archive", UNPACK),
    (rb"\x93NUMPY", "an npy file of NumPy", 'save its array with gq.save(path, {"name": np.load(npy)})'),
    (rb"\x1f\x8b", "one packed with gzip", UNPACK),
    (rb"\x28\xb5\x2f\xfd", "one packed with zstd", UNPACK),
    (rb"\xfd7zXZ\0", "one packed with xz", UNPACK),
    (rb"BZh[1-9]", "one packed with bzip2", UNPACK),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (rb".{257}ustar", "a tar archive", UNPACK),
    (rb"\x80[\x02-\x05]", "a pickle, such as an old checkpoint of PyTorch", CONVERT),
    (
        rb"lmgg|fmgg|tjgg|algg",
        "a model of ggml from before GGUF",
        "fetch it anew as GGUF, or convert it with an old llama.cpp",
    ),
    (rb"\0{4}", "zeros, as a download leaves them that was cut off", "fetch it again"),
]
SAFETENSORS = re.compile(rb".{5}\0{3}\{", re.DOTALL)  # a header of 1 TiB at most
WORDS = re.compile(rb"[\x20-\x7e\s]+")


def explanation(data: mmap.mmap, expected: str = "GGUF") -> str:
    """A sentence that says what kind of file these bytes are, for an error that they are no ``expected``."""
    head = data[:HEAD]
    kind = _known(head)
    if kind:
        return f"this is no {expected} file but {kind}"
    if len(data) < HEAD and WORDS.fullmatch(head):
        text = short(head.decode().strip(), 100)
        return f"this is no {expected} file but a text, {text}; fetch the file itself"
    return f"this is no {expected} file; check the path, or fetch it again"


def safetensors_explanation(data: mmap.mmap) -> str | None:
    """The explanation where a safetensors file is expected, before its first bytes are read as a length."""
    head = data[:HEAD]
    kind = None if SAFETENSORS.match(head) else _known(head)
    return kind and f"this is no safetensors file but {kind}"


def _known(head: bytes) -> str | None:
    for pattern, what, way in KINDS:
        if re.match(pattern, head, re.DOTALL):
            return f"{what}; {way}"
    return None
