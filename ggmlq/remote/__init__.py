"""Opens remote models like local files: ``https://``, ``hf://owner/name/file``, and addresses of fsspec.

A file of the same size is made in the cache, with holes. The header is fetched into it first, each tensor
at its first use, and readers map it as they map any file. Every byte is fetched before a reader gets it:
holes are never taken for zeros.

address.py      what an address means; hf:// becomes https://
ranges.py       ranges of a file over HTTP, every answer checked; connections that end at a deadline
held.py         the file with holes: which pieces are there; a header read while only the beginning is
shelf.py        where such files are kept, how much of them, and how they go
opening.py      open; ranges through fsspec, for s3:// and its like
"""

from .address import is_address
from .opening import open
from .shelf import Entry, empty, entries, problem

__all__ = ["Entry", "empty", "entries", "is_address", "open", "problem"]
