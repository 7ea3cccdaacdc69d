"""safetensors files, and folders and indexes of them: read without copies, written atomically.

    file.py      open, SafetensorsFile: the files of a model, a mapping of names to arrays
    header.py    the header of a file: JSON without trust, types of elements
    scales.py    the scales of 8-bit weights
    writer.py    save: one file, whole or not at all
    check.py     every rule, as a list of findings
    either.py    gq.open and gq.save: safetensors or GGUF, by the content or the name

This reader is our own. The package ``safetensors`` has no NumPy type for bfloat16 and 8-bit floats, makes no
views whose bytes the system could copy, and explains a damaged file in one word.
"""

from .file import SafetensorsFile, open
from .header import Entry
from .writer import save

__all__ = ["Entry", "SafetensorsFile", "open", "save"]
