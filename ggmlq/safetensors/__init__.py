"""safetensors files, and folders and indexes of them: read without copies, written atomically.

    open, SafetensorsFile   file.py      the mapping of names to arrays; place.py finds the files of a model
    save                    writer.py    one file, whole or not at all
    check                   check.py     what is wrong with a file, as a list of findings

The way down from ``open``: header.py is the layout, dtypes.py the types of elements, jsons.py JSON that
strangers wrote, scales.py which scales belong to which 8-bit weights.

A reader of our own, not the package ``safetensors``: that one has no NumPy type for bfloat16 and 8-bit
floats, makes no views that a copy could hand to the system, and says of a damaged file no more than one word.
"""

from .file import SafetensorsFile, open
from .header import Entry
from .writer import save

__all__ = ["Entry", "SafetensorsFile", "open", "save"]
