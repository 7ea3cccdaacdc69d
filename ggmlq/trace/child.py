"""The process in which a trace runs llama.cpp; the library may crash, abort or hang there.

It is made like ``ggmlq/llama/worker.py``. The first answer to ``run`` is the first product; each ``next``
lets the graph go on until the next one. So the library stands still while the parent judges a product, and
the product's arrays stay where they are.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import traceback
from collections.abc import Sequence
from ctypes import c_char_p, c_int
from fnmatch import fnmatchcase
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..base.system import wake_when_orphaned
from ..errors import GGMLQError, LibraryFailedError, MissingDependencyError, UnsupportedError
from ..llama.library import Library, Symbols, checked
from ..llama.protocol import Arrays, Stream, send
from ..llama.worker import listen, share_cxx_runtime, take_pipes
from .libllama import Hook, LibLlama, Wishes, extra_kinds, locate_llama
from .memory import SharedFile
from .settings import Asks
from .tracer import Tracer

CODE = "import sys; sys.path[:] = {path!r}; from ggmlq.trace.child import main; main()"


class Talk:
    """The pipes to the parent process: receives its requests, sends the answers."""

    def __init__(self, requests: Stream, answers: Stream) -> None:
        self._answers = answers
        self._inbox: SimpleQueue[tuple[int, dict[str, Any], Arrays]] = SimpleQueue()
        self._number = 0
        threading.Thread(target=listen, args=(requests, self._inbox), daemon=True).start()

    def request(self) -> dict[str, Any]:
        """The next request to this process."""
        self._number, message, _ = self._inbox.get()
        return message

    def answer(self, message: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Answer the last request."""
        send(self._answers, self._number, message, arrays or [])

    def exchange(self, message: dict[str, Any]) -> None:
        """Send a product, and wait until it was judged."""
        self.answer({"kind": "product", **message})
        self.request()


class Runner:
    """The loaded library and its model; each public method answers the request of its name."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._references: list[Any] = []  # callbacks that C calls, which would be collected otherwise
        self._model: tuple[str, int] | None = None
        # Layouts of weights that the library offers; filled only where some are left out.
        self._offered: set[str] = set()

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Load libllama and its backends; the answer has its version, its path and all libraries."""
        build, path = locate_llama(message["lib"])
        self._shared = SharedFile.opened(message["shared"])
        self._library = Library(build, whole=True)
        self._symbols: Symbols = self._library.symbols
        self._llama = LibLlama(path)
        if self._symbols.has("ggml_backend_reg_count") and not self._symbols.ggml_backend_reg_count():
            self._symbols.ggml_backend_load_all_from_path(str(build.folder).encode())
        if message["without"]:
            self._references += extra_kinds(message["without"], self._symbols, self._llama, self._offered)
        return {"version": self._library.version, "path": str(path),
                "libraries": [str(library) for library in checked(build, path)]}  # fmt: skip

    def _loaded(self, path: str) -> int:
        if self._model is None:
            self._model = path, self._llama.load(path)
        return self._model[1]

    def tokens(self, message: dict[str, Any]) -> dict[str, Any]:
        """The tokens of a text, and those of them that begin every text."""
        model = self._loaded(message["model"])
        numbers = self._llama.tokenize(model, message["text"])
        short, bare = self._llama.tokenize(model, "a"), self._llama.tokenize(model, "a", whole=False)
        begin = next(i for i in range(len(short) + 1) if short[i : i + len(bare)] in (bare, []))
        return {"kind": "tokens", "tokens": numbers, "begin": numbers[:begin] if begin < len(short) else []}

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run a prompt and some more tokens; the answer has the logits of each step."""
        model = self._loaded(message["model"])
        tokens = message["tokens"] or self._tokens(model, message)
        wishes = Wishes(
            len(tokens) + message["generate"], message["threads"], message["cache"], message["flash"]
        )
        tracer = None
        if message["traced"]:
            tracer = self._tracer(message)
        context = self._llama.context(model, wishes, tracer and tracer.callback)
        steps = [tokens, *([token] for token in message["then"])]
        all_logits: list[NDArray[np.float32]] = []
        at = 0
        for step in range(1 + message["generate"]):
            if tracer:
                tracer.step = step
            if step >= len(steps):  # greedy: the same logits give the same tokens
                steps.append([int(np.argmax(all_logits[-1]))])
            self._llama.decode(context, steps[step], at, message["through"])
            if tracer and tracer.error is not None:
                raise tracer.error
            at += len(steps[step])
            all_logits.append(self._llama.logits(context, model))
        self._llama.free_context(context)
        arrays, places = self._shared.room([a.nbytes for a in all_logits])
        for array, logits in zip(arrays, all_logits, strict=True):
            array[:] = logits.view(np.uint8)
        return {
            "kind": "end", "tokens": tokens, "then": [step[0] for step in steps[1:]],
            "nodes": tracer.nodes if tracer else 0, "others": tracer.others if tracer else {},
            "places": places, "offered": sorted(self._offered),
            "listing": tracer.listing if tracer else [], "unwatched": unwatched(tracer),
            "unmatched": unmatched(tracer) if tracer else {},
        }  # fmt: skip

    def tool(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run a command of llama.cpp and trace all its graphs."""
        tracer = self._tracer(message, counts=True)
        self._references.append(tracer)
        with Hook(self._symbols, self._llama.lib, tracer.callback):
            run_tool(self._llama.path.parent, message["tool"], message["model"])
        tracer.off = True
        if tracer.error is not None:
            raise tracer.error
        return {
            "kind": "end", "tokens": [], "then": [], "nodes": tracer.nodes, "others": tracer.others,
            "places": [], "offered": sorted(self._offered), "listing": [], "unmatched": {},
            "unwatched": unwatched(tracer),
        }  # fmt: skip

    def _tracer(self, message: dict[str, Any], counts: bool = False) -> Tracer:
        with gguf.open(Path(message["model"])) as file:
            names, asks = set(file), Asks.of(message["asks"])
        return Tracer(self._symbols, self._shared, self._talk.exchange, names, asks, counts=counts)

    def _tokens(self, model: int, message: dict[str, Any]) -> list[int]:
        """The tokens of the prompt, or random ones."""
        if message["prompt"] is not None:
            return self._llama.tokenize(model, message["prompt"])
        size = self._llama.vocabulary_size(model)
        rng = np.random.default_rng(message["seed"])
        return [int(token) for token in rng.integers(0, size, message["random"])]


def unmatched(tracer: Tracer) -> dict[str, list[str]]:
    """The first pattern that no node's name fits, where results are read, with the names that there are."""
    names = list(tracer.names)
    missing = [p for p in tracer.asks.select if names and not any(fnmatchcase(name, p) for name in names)]
    return dict.fromkeys(missing[:1], names)


def unwatched(tracer: Tracer | None) -> list[str]:
    """The names of caches and inputs that were too large to be watched between their nodes."""
    return list(tracer.memory.unwatched) if tracer and tracer.memory else []


def serve(talk: Talk) -> None:
    """Answer requests until the parent is gone."""
    runner = Runner(talk)
    while True:
        message = talk.request()
        try:
            answer = getattr(runner, message.pop("do"))(message)
        except GGMLQError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        except Exception:
            answer = {"error": "RuntimeError", "text": traceback.format_exc()}
        talk.answer(answer)


def main() -> None:
    """Run as a process: see :mod:`ggmlq.trace.session`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    wake_when_orphaned()
    share_cxx_runtime()
    serve(Talk(*take_pipes()))


# --- a command of llama.cpp, such as llama-completion, in the process that is traced --------------
#
# Since 2026 the main function of ``llama-completion`` and its like is in a library of its own,
# ``libllama-completion-impl``, as ``int llama_completion(int, char **)`` of C++. We call it with the words of
# its command line; redirected calls (``libllama.py``) give its graphs our callback.

PLACES = ("", "bin", "lib", "build/bin", "../bin", "../lib")
MODEL = ("-m", "--model")


def run_tool(folder: Path, words: Sequence[str], model: str) -> None:
    """Run a command to its end; the model is added where its words name none."""
    name = Path(words[0]).name
    library = _library(folder, name)
    symbol = name.replace("-", "_")
    try:
        function = getattr(library, f"_Z{len(symbol)}{symbol}iPPc")
    except AttributeError:
        raise UnsupportedError(
            f"{words[0]}: {library._name} has no function {symbol}(int, char **); it is of another year; "
            "trace the model without a command"
        ) from None
    line = [*words] if any(word in MODEL for word in words) else [words[0], MODEL[0], model, *words[1:]]
    argv = (c_char_p * (len(line) + 1))(*(word.encode() for word in line), None)
    function.restype = c_int
    status = function(c_int(len(line)), argv)
    if status:
        raise LibraryFailedError(f"{' '.join(line)}: ended with status {status}; try it without the trace")


def _library(folder: Path, name: str) -> ctypes.CDLL:
    for place in PLACES:
        path = folder / place / f"lib{name}-impl.so"
        if path.is_file():
            try:
                return ctypes.CDLL(str(path.absolute()))
            except OSError as error:
                raise MissingDependencyError(f"{name}: cannot load {path}: {error}; build it anew") from error
    raise MissingDependencyError(
        f"{name}: there is no lib{name}-impl.so in {folder} or beside it; a command is traced where its main "
        "function is in a shared library (llama.cpp of 2026, -DBUILD_SHARED_LIBS=ON, on Linux); otherwise "
        "trace the model without a command"
    )
