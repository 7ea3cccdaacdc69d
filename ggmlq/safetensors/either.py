"""``gq.open`` and ``gq.save`` for GGUF and safetensors: open looks at the content, save at the name."""

from __future__ import annotations

import builtins
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from .. import gguf
from ..base import addressed
from ..errors import DTypeError, GGUFError
from ..gguf.source import checked_path
from ..gguf.writer import NO_METADATA
from . import file as safetensors
from . import writer
from .file import ENDING, INDEX, in_folder

PATH = "a model is memory-mapped; pass a str or an os.PathLike, write bytes in memory to a file first"


def open(path: str | os.PathLike[str], **options: Any) -> gguf.GGUFFile:
    """Open a model: a GGUF file or any part of a split one; safetensors, an index of them, or a folder.

    The content decides, not the name. No tensor is read. An address, ``https://…`` or
    ``hf://owner/name/file``, is a path too: its tensors are fetched at their first use. There are no
    options: ``open(path).to("cuda")`` takes the tensors to a device.

    Returns
    -------
    GGUFFile or SafetensorsFile
        Both are mappings of names to arrays, with ``metadata``, ``info(name)``, ``to(device)``, and usable
        in a ``with`` block. To type checkers it is the first.
    """
    if options:
        raise DTypeError(
            f"open(path, {', '.join(f'{name}=…' for name in options)}): a model is opened where it lies, and "
            'opening has no options; write gq.open(path).to("cuda") for all tensors on a device, '
            '.select("blk.0.*") for some, ["name"].to("cuda") for one'
        )
    if (there := addressed.opened(path)) is not None:
        return there  # type: ignore[no-any-return]
    text = checked_path("open(path)", path, PATH)
    file: Any = safetensors.open(text) if is_safetensors(text) else gguf.open(text)
    return file  # type: ignore[no-any-return]


def is_safetensors(path: str) -> bool:
    """True for a path that is read as safetensors."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return in_folder(path)
        if not stat.S_ISREG(mode):
            return False
        with builtins.open(path, "rb") as file:
            head, size = file.read(9), os.fstat(file.fileno()).st_size
    except OSError:  # what is wrong is told by whoever opens it
        return path.endswith((ENDING, INDEX))
    if head[:4] == b"GGUF":
        return False
    whole = head[5:] == b"\0\0\0{" and int.from_bytes(head[:8], "little") <= size - 8  # of another name
    return whole or path.endswith((ENDING, INDEX))


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    metadata: Mapping[str, Any] | Iterable[tuple[str, Any]] = NO_METADATA,
    **options: Any,
) -> list[str]:
    """Write a model: safetensors where the path ends so, GGUF otherwise.

    See :func:`ggmlq.gguf.save`, which takes the options ``alignment``, ``byteorder``,
    ``split_max_bytes`` and ``split_max_tensors``, and :func:`ggmlq.safetensors.save`, which takes none.
    """
    text = checked_path("save(path, tensors)", path, "the path comes first; pass a str or an os.PathLike")
    if not text.endswith(ENDING):
        return gguf.save(path, tensors, metadata, **options)
    if options:
        raise GGUFError(
            f"save({text!r}): {', '.join(options)} are options of GGUF files; safetensors has none; leave "
            "them out, or name a .gguf file"
        )
    if metadata is NO_METADATA:
        facts = getattr(tensors, "metadata", {})
        metadata = facts if isinstance(tensors, safetensors.SafetensorsFile) else {}
    return writer.save(path, tensors, metadata)
