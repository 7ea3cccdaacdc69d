"""GGUF files: read without copies, written atomically. NumPy is all it needs.

    open, GGUFFile    file.py       the mapping of names to arrays; split.py finds the parts of a model
    Metadata          metadata.py   keys and values with their types; node.py is one value,
                                    typed.py chooses types, sequence.py is what an array looks like
    save, layout      writer.py     plan.py decides and checks everything before a byte is written,
                                    atomic.py brings files to their names; prepared.py lets others write
    Streamed          inputs.py     a tensor that is made while it is written
    GGUFFile.to       load.py       a model to a GPU; select.py says which tensors, portions.py in
                                    which runs of bytes
    read_imatrix      imatrix.py    importance of columns, for quantizing; collector.py makes, merges and
                                    writes it
    edit              edit.py       metadata changed in place, in the room that a file has for it
    check             check.py      every rule of the format, as a list of findings
    place_of          places.py     layer and role of a tensor, from its name

The way down from ``open``: source.py is the checked bytes, header.py the layout, tensors.py the
table of tensors, chain.py the fast search through arrays of strings.
"""

from .collector import Collector, collected
from .file import GGUFFile, open
from .imatrix import Imatrix, read_imatrix
from .inputs import Streamed
from .metadata import Metadata
from .sequence import Array
from .typed import Typed
from .valuetype import ValueType
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
