"""Every error that ggmlq raises on purpose.

A message has four parts: the request, the actual values, the rule, the way out. Each class
also derives from the built-in error that a NumPy user would catch.
"""


class GGMLQError(Exception):
    """The root: ``except GGMLQError`` catches all that ggmlq raises on purpose."""

    # KeyError would print the message in quotes, OSError errno's text in its place.
    __str__ = Exception.__str__


class FormatError(GGMLQError, KeyError, ValueError):
    """A format name or id that ggml does not have, or no longer has."""


class FormatAttributeError(FormatError, AttributeError):
    """``gq.formats.name`` for a name that there is not: so ``hasattr`` works."""


class CodeError(GGMLQError, KeyError, ValueError):
    """A code of 8 or 16 bits that does not exist, or that does not suit the call."""


class CodeAttributeError(CodeError, AttributeError):
    """``gq.codes.name`` for a name that there is not."""


class ShapeError(GGMLQError, ValueError):
    """Shapes, lengths or buffer sizes that do not fit each other."""


class DTypeError(GGMLQError, TypeError):
    """An element type or a kind of object that an operation does not take."""


class ArrayAttributeError(DTypeError, AttributeError):
    """An attribute that arrays of weights or open files do not have: so ``hasattr`` works."""


class NonFiniteError(GGMLQError, ValueError):
    """NaN or infinity where only finite numbers have a meaning."""


class ImportanceError(GGMLQError, ValueError):
    """An importance matrix that is missing where it is needed, negative, or 0 everywhere."""


class BlockIndexError(GGMLQError, IndexError):
    """An index that would cut through a row of blocks."""


class UnsupportedError(GGMLQError, NotImplementedError):
    """Something that is defined but that this version cannot do."""


class DeviceError(GGMLQError, RuntimeError):
    """Arrays on different devices, or a device that is not there."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has too little memory left for the request."""


class HostMemoryError(GGMLQError, MemoryError):
    """The machine, or the limit that the process runs under, leaves too little memory."""


class MissingDependencyError(GGMLQError, ImportError):
    """An optional package that the request needs is not installed."""


class MissingPartError(GGMLQError, AttributeError):
    """A part of ggmlq that needs such a package, asked for as an attribute: so ``hasattr`` works."""


class LibraryFailedError(GGMLQError, RuntimeError):
    """A user's library crashed, aborted or hung in the process that ran it, or reported failure."""

    def __init__(self, text: str, how: str = "", tail: str = "") -> None:
        super().__init__(text)
        self.how = how  # "died: SIGSEGV"
        self.tail = tail  # the end of what it printed


class GroupError(GGMLQError, ConnectionError):
    """A group of processes whose engine fails or is none, or a rank that is not in it."""


class WorkerError(GGMLQError, RuntimeError):
    """Work for an executor that takes none, or lost its workers."""


class GGUFError(GGMLQError, ValueError):
    """A GGUF file that is damaged or incomplete, or something that a GGUF file cannot hold."""


class GGUFKeyError(GGUFError, KeyError):
    """A tensor or a metadata key that the file does not have."""


class NodeNameError(GGMLQError, KeyError):
    """A name of a graph's node that a run of llama.cpp does not have."""


class _SystemError(GGMLQError, OSError):
    """An error of the operating system in words, with the facts of ``cause``."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message)
        if cause is not None:
            self.errno, self.strerror, self.filename = cause.errno, cause.strerror, cause.filename


class GGUFOSError(GGUFError, _SystemError):
    """The operating system refused: no permission, a full disk, a folder in place of a file."""


class SafetensorsError(GGMLQError, ValueError):
    """A safetensors file, or an index of them, that is damaged, or what such a file cannot hold."""


class SafetensorsKeyError(SafetensorsError, KeyError):
    """A tensor that a safetensors file does not have."""


class SafetensorsOSError(SafetensorsError, _SystemError):
    """The operating system refused a safetensors file."""


class SafetensorsNotFoundError(SafetensorsOSError, FileNotFoundError):
    """There is no such file."""


class RemoteError(GGMLQError, OSError):
    """A file elsewhere that cannot be read: no answer, a wrong one, or another file than before."""


class RemoteNotFoundError(RemoteError, FileNotFoundError):
    """The server says that there is no such file."""


class ConvertError(GGMLQError, ValueError):
    """A conversion of a file that is impossible as requested."""


class ConfigError(GGMLQError, ValueError):
    """A configuration of a kernel, or a file of them, that no kernel can carry out."""


class CalibrationError(GGMLQError, RuntimeError):
    """Something that needs a calibration which was not made, or no longer holds."""


class GRUFileError(GGMLQError, ValueError):
    """A file that should hold a GRU and does not, or is damaged."""


class DumpError(GGMLQError, ValueError):
    """A file with a kernel's operands or result that cannot be read as such."""


class PageError(GGMLQError, OSError):
    """A page or a picture that cannot be written at this place or in this form."""


class GGUFNotFoundError(GGUFOSError, FileNotFoundError):
    """There is no such file."""
