"""Ranges of files that fsspec reaches: ``s3://``, ``gs://``, ``az://``, ``sftp://`` and many more.

HTTP is not among them: what a server answers there is checked more closely in ranges.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from ..base import missing
from ..errors import MissingDependencyError, RemoteError, RemoteNotFoundError
from .address import Address

PIECE = 8 << 20  # bytes of one request


class Others:
    """A remote file that fsspec reads: its size, its version and ranges of its bytes."""

    def __init__(self, address: Address) -> None:
        self.address = address
        scheme = address.url.partition("://")[0]
        try:
            fsspec: Any = importlib.import_module("fsspec")
            self._system, self._path = fsspec.core.url_to_fs(address.url)
        except ImportError as error:
            raise MissingDependencyError(
                f"{address.shown}: {scheme}:// is read through fsspec and what it needs for it, and that "
                f"cannot be imported: {error}; {missing.install('remote')}, and for s3 s3fs, for gs gcsfs"
            ) from error
        except ValueError as error:
            raise RemoteError(
                f"{address.shown}: fsspec knows no {scheme}://: {error}; https:// and hf:// need nothing more"
            ) from error
        self.size: int | None = None
        self.size, self.version = self._facts()

    def _facts(self) -> tuple[int, str]:
        try:
            self._system.invalidate_cache()
            facts = self._system.info(self._path)
            return int(facts["size"]), str(self._system.ukey(self._path))
        except FileNotFoundError as error:
            raise RemoteNotFoundError(
                f"{self.address.shown}: there is no such file; check the address"
            ) from error
        except Exception as error:  # of any of the packages behind fsspec
            raise RemoteError(
                f"{self.address.shown}: {type(self._system).__name__} says: {error}; check the address, "
                "and that you may read it"
            ) from error

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from ``start`` to ``stop``, in parts; RemoteError if the file has changed meanwhile."""
        while start < stop:
            end = min(start + PIECE, stop)
            try:
                data = self._system.cat_file(self._path, start=start, end=end)
            except Exception as error:
                raise RemoteError(
                    f"{self.address.shown}: bytes {start} to {end - 1} cannot be read: {error}; open it again"
                ) from error
            now = self._facts()
            if now != (self.size, self.version) or len(data) != end - start:
                raise RemoteError(
                    f"{self.address.shown}: it had {self.size} bytes and version {self.version}, and now "
                    f"has {now[0]} and {now[1]}; of bytes {start} to {end - 1} there came {len(data)}; "
                    "the file changed; open it again"
                )
            yield data
            start = end
