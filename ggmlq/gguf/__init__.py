"""GGUF files: read without copies, written atomically. NumPy is all it needs.

Reading, from ``open`` down:

    file.py        open, GGUFFile: a mapping of names to arrays
    opened.py      the common part of open models: a mapping that can be closed
    split.py       the parts of a split model
    source.py      the bytes of one file, each read checked
    limits.py      limits on the size of a header
    foreign.py     explanations of files of other kinds
    header.py      the header: magic, version, metadata, table of tensors
    chain.py       the fast search through arrays of strings
    tensors.py     the table of tensors, checked
    companions.py  scales that are tensors of their own, read and written with the weights
    metadata.py    Metadata: keys and values with their types
    node.py        one value; sequence.py: an array of values
    valuetype.py   the types of values
    places.py      layer and role of a tensor, from its name
    select.py      selections of tensors
    load.py        GGUFFile.to: a model to a GPU
    portions.py    the runs of bytes in which it travels

Writing:

    writer.py      save, layout
    plan.py        the plan of a save, checked before a byte is written
    typed.py       types for Python values
    inputs.py      arrays that can be saved; Streamed: a tensor that is computed while it is written
    extents.py     arrays inside of files, whose bytes the system can move
    target.py      checks of the place of a new file
    atomic.py      files brought to their names, all or none
    lock.py        one saver at a time for a name
    writeback.py   written bytes brought to the disk early
    prepared.py    a file whose tensors other processes write
    edit.py        metadata changed in place, in the room that a file has for it

Beside them:

    imatrix.py     read_imatrix: the importance of columns
    collector.py   importance matrices collected, merged and written
    statistics.py  statistics of a tensor
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
