"""GGUF files: read without copies, written atomically. NumPy is all it needs.

Reading, from the bytes up:

    values.py      the types of metadata values, and the sequence that stands for an array of them
    source.py      the bytes of one file, each read checked; limits on a header; ranges that the system moves
    node.py        a value: from a file, to Python, to a file; the fast search through arrays of strings
    metadata.py    Metadata: keys and values with their types; types for Python values
    header.py      the header: magic, version, metadata, table of tensors; explanations of other files
    companions.py  scales that are tensors of their own, read and written with the weights
    opened.py      the common part of open models: a mapping that can be closed, and selections from it
    file.py        open, GGUFFile: a mapping of names to arrays, of one file or the parts of a split model
    load.py        GGUFFile.to: a model to a GPU, in portions

Writing:

    plan.py        the plan of a save, checked before a byte is written: tensors, place, headers, parts
    atomic.py      files brought to their names, all or none; one saver at a time
    writer.py      save, layout; files whose tensors other processes write
    edit.py        metadata changed in place, in the room that a file has for it

Beside them:

    imatrix.py     the importance of columns: read, collected, merged and written
    check.py       every rule of the format, as a list of findings
"""

from .file import GGUFFile, open
from .imatrix import Collector, Imatrix, collected, read_imatrix
from .metadata import Metadata, Typed
from .plan import Streamed
from .values import Array, ValueType
from .writer import layout, save

__all__ = [
    "Array",
    "Collector",
    "GGUFFile",
    "Imatrix",
    "Metadata",
    "Streamed",
    "Typed",
    "ValueType",
    "collected",
    "layout",
    "open",
    "read_imatrix",
    "save",
]
